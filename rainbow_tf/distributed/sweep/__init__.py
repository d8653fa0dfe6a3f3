"""Sweeps: many runs on one machine or a cluster."""
