"""Presets: absl flagfiles, each holding only what differs from full Rainbow."""
