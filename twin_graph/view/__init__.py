"""A page of runs for this machine's browser: `records` reads, `server` answers, `static` shows. No TensorFlow."""
