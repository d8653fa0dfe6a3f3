"""The Rainbow agent: layers, networks, losses, learner and actor."""
