"""What the records of a run say, without TensorFlow: status, log, depth, verification."""
