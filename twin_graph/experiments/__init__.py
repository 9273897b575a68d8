"""Experiments: a file of settings and seeds becomes runs, the runs' records become statistics and a report.

`plan` reads the file, `trial` measures what its runs will need, `runner` trains them in processes of their own, which
`on_ray` begins on other machines, `results` reads their records, `statistics` compares them, `figures` and `report`
show it. Only `trial` imports TensorFlow.
"""
