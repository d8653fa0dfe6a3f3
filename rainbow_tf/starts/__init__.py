"""Recorded start positions for evaluation."""
