"""Several replays sampled as one; the lanes of each advance at their own pace."""

import numpy as np

from rainbow_tf.replay.replay import Replay
from rainbow_tf.types import Batch


class ReplayUnion:
    """Samples from all replays in proportion to priority, as one tree over them would.

    The keys of `replays` are their owners. An id is the replay's id times `num_owners` plus the
    owner.
    """

    def __init__(
        self,
        *,
        replays: dict[int, Replay],
        num_owners: int,
        batch_size: int,
        rng: np.random.Generator,
    ):
        self.replays = replays
        self._owners = np.array(list(replays))
        self._num_owners = num_owners
        self._strata = np.arange(batch_size)
        self._rng = rng

    @property
    def num_sampleable(self) -> int:
        """Transitions that can be sampled now."""
        return sum(replay.num_sampleable for replay in self.replays.values())

    @property
    def total_priority(self) -> float:
        """Sum of all priorities."""
        return sum(replay.total_priority for replay in self.replays.values())

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Ids and transitions of a batch; importance weights are over all replays."""
        ends = np.cumsum([self.replays[owner].total_priority for owner in self._owners])
        size = len(self._strata)
        masses = (self._strata + self._rng.random(size)) * (ends[-1] / size)
        masses = np.minimum(masses, np.nextafter(ends[-1], 0))  # rounding can reach the end
        shares = np.bincount(np.searchsorted(ends, masses, side="right"), minlength=len(ends))
        all_ids, batches, priorities = [], [], []
        for owner, share in zip(self._owners, shares, strict=True):
            if share > 0:
                replay = self.replays[owner]
                ids, batch = replay.sample(importance_exponent, int(share))
                all_ids.append(ids * self._num_owners + owner)
                batches.append(batch)
                priorities.append(replay.priorities(ids))
        # Dividing by the largest weight cancels the total and the number of transitions.
        mass = np.concatenate(priorities)
        weight = ((mass / mass.min()) ** -importance_exponent).astype(np.float32)
        if len(batches) == 1:
            return all_ids[0], batches[0]._replace(weight=weight)
        joined = Batch(*map(np.concatenate, zip(*batches, strict=True)))
        return np.concatenate(all_ids), joined._replace(weight=weight)

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Sets the priorities of transitions still stored from their errors."""
        for owner in np.unique(ids % self._num_owners):
            its = ids % self._num_owners == owner
            self.replays[owner].update_priorities(ids[its] // self._num_owners, errors[its])

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions, after the exponent."""
        priorities = np.zeros(len(ids))
        for owner in np.unique(ids % self._num_owners):
            its = ids % self._num_owners == owner
            priorities[its] = self.replays[owner].priorities(ids[its] // self._num_owners)
        return priorities
