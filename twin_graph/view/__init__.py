"""A page of runs for the browser of this machine: `records` reads, `server` answers, `static` shows. No TensorFlow."""
