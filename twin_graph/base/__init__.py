"""What everything may use: random streams, signals, texts, the machine. Imports nothing of this package but errors."""
