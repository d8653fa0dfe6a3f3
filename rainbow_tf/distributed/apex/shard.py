"""One process's share of the replay. Does not know TensorFlow or Ray."""

from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.types import Batch, EnvironmentSpec


class Rollout(NamedTuple):
    """T steps of an actor's E lanes."""

    frame: np.ndarray  # [T, E, *frame]
    action_tm1: np.ndarray  # [T, E]
    reward_t: np.ndarray  # [T, E]
    discount_t: np.ndarray  # [T, E]
    episode_over: np.ndarray  # [T, E]
    is_first: np.ndarray  # [T, E]
    errors: np.ndarray | None  # [T, E, n], of the windows that close at each step


class ShardStatus(NamedTuple):
    """Fill and priorities of a shard, after it wrote a rollout."""

    num_sampleable: int
    total_priority: float
    max_priority: float
    fill: float  # share of the slots that hold a frame


EMPTY = ShardStatus(0, 0.0, 1.0, 0.0)


class ReplayShard:
    """The replays of some actors, one each, because only the lanes of one step together.

    They are sampled in proportion to priority, as one tree over them would be. An id is that of
    the actor's replay times the actors, plus the actor.
    """

    def __init__(self, *, config: Config, spec: EnvironmentSpec, actors: list[int], seed: int):
        rngs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(1 + len(actors)))
        self._rng = next(rngs)
        capacity = config.replay_capacity // config.actors
        self._replays = {
            actor: make_replay(config, spec, capacity=capacity, rng=rng)
            for actor, rng in zip(actors, rngs, strict=True)
        }
        self._num_actors = config.actors
        self._strata = np.arange(config.batch_size)
        self._next: dict[int, int] = {}  # number of the rollout that continues the last one

    def add(self, actor: int, number: int, rollout: Rollout, begins: bool) -> ShardStatus | None:
        """Stores a rollout; returns None if the one before it is missing.

        Steps after a lost rollout would join two episodes.
        """
        replay = self._replays[actor]
        if begins:
            replay.cut_episodes()
        elif self._next.get(actor) != number:
            return None
        self._next[actor] = number + 1
        columns = {name: column for name, column in rollout._asdict().items() if column is not None}
        for t in range(len(rollout.frame)):
            replay.add(**{name: column[t] for name, column in columns.items()})
        return self.status()

    def status(self) -> ShardStatus:
        """Fill and priorities."""
        replays = self._replays.values()
        return ShardStatus(
            sum(replay.num_sampleable for replay in replays),
            sum(replay.total_priority for replay in replays),
            max(replay.max_priority for replay in replays),
            float(np.mean([replay.fill for replay in replays])),
        )

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Ids and transitions of a batch; importance weights are over all replays."""
        ends = np.cumsum([replay.total_priority for replay in self._replays.values()])
        size = len(self._strata)
        masses = (self._strata + self._rng.random(size)) * (ends[-1] / size)
        masses = np.minimum(masses, np.nextafter(ends[-1], 0))  # rounding can reach the end
        shares = np.bincount(np.searchsorted(ends, masses, side="right"), minlength=len(ends))
        all_ids, batches, priorities = [], [], []
        for (actor, replay), share in zip(self._replays.items(), shares, strict=True):
            if share > 0:
                ids, batch = replay.sample(importance_exponent, int(share))
                all_ids.append(ids * self._num_actors + actor)
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
        for actor in np.unique(ids % self._num_actors):
            its = ids % self._num_actors == actor
            self._replays[actor].update_priorities(ids[its] // self._num_actors, errors[its])

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions, after the exponent."""
        priorities = np.zeros(len(ids))
        for actor in np.unique(ids % self._num_actors):
            its = ids % self._num_actors == actor
            priorities[its] = self._replays[actor].priorities(ids[its] // self._num_actors)
        return priorities

    def call(self, actor: int, method: str, *arguments: Any) -> Any:
        """Calls a method of an actor's replay."""
        return getattr(self._replays[actor], method)(*arguments)
