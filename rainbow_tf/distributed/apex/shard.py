"""One process's share of the replay. Does not know TensorFlow or Ray."""

from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.replay.union import ReplayUnion
from rainbow_tf.types import EnvironmentSpec


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
        rng, *rngs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(1 + len(actors)))
        capacity = config.replay_capacity // config.actors
        self._union = ReplayUnion(
            replays={
                actor: make_replay(config, spec, capacity=capacity, rng=its_rng)
                for actor, its_rng in zip(actors, rngs, strict=True)
            },
            num_owners=config.actors,
            batch_size=config.batch_size,
            rng=rng,
        )
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

    def status(self) -> ShardStatus:
        """Fill and priorities."""
        replays = self._held.replays.values()
        return ShardStatus(
            self._held.num_sampleable,
            self._held.total_priority,
            max(replay.max_priority for replay in replays),
            float(np.mean([replay.fill for replay in replays])),
        )

    def call(self, actor: int | None, method: str, *arguments: Any) -> Any:
        """Calls a method of an actor's replay, or of the union of all."""
        target = self._held if actor is None else self._held.replays[actor]
        return getattr(target, method)(*arguments)
