"""A twin: a network with its loss and updates in a graph and a session of its own; all that uses graphs."""
