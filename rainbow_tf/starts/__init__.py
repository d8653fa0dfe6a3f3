"""Recorded starts of games, for evaluation."""
