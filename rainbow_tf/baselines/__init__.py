"""Baseline agents that are not variants of DQN."""
