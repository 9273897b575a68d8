"""Runs elsewhere: states of a run under a URL, sent, fetched, and continued by one machine at a time."""
