"""What everything may use: random streams, signals, texts, the machine. Imports nothing else of this package."""
