"""Weights in and out: snapshots for other programs, and their checkpoints as snapshots."""
