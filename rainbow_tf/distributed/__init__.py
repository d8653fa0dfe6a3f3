"""More than one process: sweeps of runs, and Ape-X, on Ray."""
