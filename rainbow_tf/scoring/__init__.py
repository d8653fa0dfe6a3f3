"""The tables: normalised scores, aggregates, figures. Knows arrays and files, not agents."""
