"""One run: its parts, its loop, what it writes and shows."""
