"""One process's share of the replay. Does not know TensorFlow or Ray."""

from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.replay.union import ReplayUnion
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


class NewShardError(RuntimeError):
    """The process was restarted, and the caller does not know it yet."""


class ReplayShard:
    """The replays of some actors, one each: the lanes of a replay step together."""

    def __init__(self, *, config: Config, spec: EnvironmentSpec, actors: list[int], seed: int):
        self._union = make_union(config, spec, actors, seed)
        self._is_begun = False
        self._next: dict[int, int] = {}  # number of the rollout that continues the last one

    def begin(self) -> None:
        """Opens the shard for use, once the caller knows that it is empty."""
        self._is_begun = True

    @property
    def _held(self) -> ReplayUnion:
        if not self._is_begun:
            raise NewShardError
        return self._union

    def add(self, actor: int, number: int, rollout: Rollout, begins: bool) -> ShardStatus | None:
        """Stores a rollout; returns None if the one before it is missing.

        Steps after a lost rollout would join two episodes.
        """
        replay = self._held.replays[actor]
        if begins:
            replay.cut_episodes()
        elif self._next.get(actor) != number:
            return None
        self._next[actor] = number + 1
        columns = {name: column for name, column in rollout._asdict().items() if column is not None}
        for t in range(len(rollout.frame)):
            replay.add(**{name: column[t] for name, column in columns.items()})
        return self.status()

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Samples a batch; returns the ids of its transitions with it."""
        return self._held.sample(importance_exponent)

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors the priorities of transitions that are still stored."""
        self._held.update_priorities(ids, errors)

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions."""
        return self._held.priorities(ids)

    def status(self) -> ShardStatus:
        """Fill and priorities."""
        replays = self._held.replays.values()
        return ShardStatus(
            self._held.num_sampleable,
            self._held.total_priority,
            max(replay.max_priority for replay in replays),
            float(np.mean([replay.fill for replay in replays])),
        )

    def state(self, actor: int) -> dict[str, np.ndarray]:
        """`Replay.state` of an actor's replay."""
        return self._held.replays[actor].state()

    def restore(self, actor: int, state: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned."""
        self._held.replays[actor].restore(state)

    def written_chunks(self, actor: int) -> list[int]:
        """Numbers of the chunks of an actor's replay that hold steps."""
        return list(self._held.replays[actor].written_chunks())

    def changed_chunks(self, actor: int) -> list[int]:
        """Numbers of the chunks that were written since `forget_changes`."""
        return self._held.replays[actor].changed_chunks()

    def chunk(self, actor: int, number: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        return self._held.replays[actor].chunk(number)

    def restore_chunk(self, actor: int, number: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned, after `restore`."""
        self._held.replays[actor].restore_chunk(number, steps)

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""
        for replay in self._held.replays.values():
            replay.forget_changes()


def make_union(config: Config, spec: EnvironmentSpec, actors: list[int], seed: int) -> ReplayUnion:
    """One replay per actor, with equal shares of the capacity."""
    rng, *rngs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(1 + len(actors)))
    capacity = config.replay_capacity // config.actors
    replays = {
        actor: make_replay(config, spec, capacity=capacity, rng=rng_)
        for actor, rng_ in zip(actors, rngs, strict=True)
    }
    return ReplayUnion(
        replays=replays, num_owners=config.actors, batch_size=config.batch_size, rng=rng
    )
