"""A run on disk: its folder, its checkpoints and its weights."""
