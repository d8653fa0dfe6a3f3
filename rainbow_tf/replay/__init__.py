"""The memory: frames, priorities, n-step transitions."""
