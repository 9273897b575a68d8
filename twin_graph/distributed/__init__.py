"""Asynchronous training: workers with environments and replays of their own, on variables on parameter servers.

    chief          the run's folder: snapshots, refreshes, evaluations, resume points (`chief.Chief`, with a `LiveRun`)
    servers        hold the shared variables and counters (`server.serve`)
    workers        act, sample, compute gradients of a copy, apply them to the shared variables (`worker.work`)

Servers are TensorFlow's own `tf.train.Server`s, and all other processes open sessions on them, through the relay that
each has in front of it (`relay.Relay`): they obey everyone who gets through. Snapshots reach the workers' targets
through the run's folder.
"""
