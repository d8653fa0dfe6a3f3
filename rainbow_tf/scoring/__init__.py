"""Numbers from run folders: normalised scores, aggregates. Knows arrays and files, not agents."""
