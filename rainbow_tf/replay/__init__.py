"""The replay buffer: frames, priorities and n-step transitions."""
