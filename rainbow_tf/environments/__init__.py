"""The worlds: Atari as the paper plays it, and Gymnasium."""
