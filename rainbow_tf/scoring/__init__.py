"""Scores: references and normalisation."""
