"""Environments: Atari with the paper's preprocessing, and Gymnasium."""
