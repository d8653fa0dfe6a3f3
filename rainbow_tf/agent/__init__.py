"""The paper: layers, networks, losses, the learner and the actor."""
