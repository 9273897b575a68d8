"""Two runs side by side, and a run trained again."""
