"""The command line of twin-graph; installed as `twin_graph_cli`. Commands parse, call the library and print."""
