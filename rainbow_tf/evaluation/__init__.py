"""Plays without learning, and what the scores say."""
