"""A sum tree: proportional sampling and updates in logarithmic time."""

import numpy as np

_FANOUT = 64  # A wide node is one NumPy row: four levels hold 16M leaves.


class SumTree:
    """Float64 priorities of `capacity` leaves, sampled in proportion.

    Inner nodes are always recomputed from their children, so rounding errors never accumulate.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"A sum tree needs at least one leaf, got capacity={capacity}.")
        self.capacity = capacity
        widths = [capacity]
        while widths[-1] > 1 or len(widths) == 1:
            widths.append(-(-widths[-1] // _FANOUT))
        # Leaves first, root last; level k is padded to whole nodes of level k + 1.
        self._levels = [np.zeros((above, _FANOUT)) for above in widths[1:]]
        self._flat = [level.reshape(-1) for level in self._levels]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._levels[-1][0].sum())

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Priorities of the leaves."""
        return self._flat[0][leaves]

    def set(self, leaves: np.ndarray, priorities: np.ndarray | float) -> None:
        """Sets priorities of leaves; for a repeated leaf the last value counts."""
        self._flat[0][leaves] = priorities
        nodes = leaves
        for level, parents in zip(self._levels, self._flat[1:], strict=False):
            nodes = nodes // _FANOUT
            parents[nodes] = level[nodes].sum(axis=1)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The leaf that contains each cumulative mass in [0, total); never one of priority 0."""
        nodes = np.zeros(masses.shape, np.int64)
        rest = masses
        rows = np.arange(len(masses))
        for level in reversed(self._levels):
            sums = np.cumsum(level[nodes], axis=1)  # [B, fanout]
            # Rounding can lift the rest to its node's sum: keep it below.
            rest = np.minimum(rest, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= rest[:, None]).sum(axis=1)
            rest = rest - np.where(child > 0, sums[rows, child - 1], 0.0)
            nodes = nodes * _FANOUT + child
        return nodes

    def fill(self, priorities: np.ndarray) -> None:
        """Sets all leaves, [capacity]."""
        self._flat[0][: self.capacity] = priorities
        for level, parents in zip(self._levels, self._flat[1:], strict=False):
            parents[: len(level)] = level.sum(axis=1)

    def leaves(self) -> np.ndarray:
        """All priorities, as a read-only view."""
        view = self._flat[0][: self.capacity]
        view.flags.writeable = False
        return view
