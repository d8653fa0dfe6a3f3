"""A process's share of the replay. Knows nothing of TensorFlow or Ray."""

from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.replay import make_replay
from rainbow_tf.replay.union import ReplayUnion
from rainbow_tf.types import Batch, WorldSpec


class Rollout(NamedTuple):
    """T steps of an actor's E lanes, as the replay takes them one by one."""

    frame: np.ndarray  # [T, E, *frame]
    action_tm1: np.ndarray  # [T, E]
    reward_t: np.ndarray  # [T, E]
    discount_t: np.ndarray  # [T, E]
    episode_over: np.ndarray  # [T, E]
    is_first: np.ndarray  # [T, E]
    errors: np.ndarray | None  # [T, E, n], of steps whose window a frame may close


class Standing(NamedTuple):
    """What a shard tells when it has written a rollout."""

    num_sampleable: int
    total_priority: float
    max_priority: float
    fill: float  # share of the slots that hold a frame


EMPTY = Standing(0, 0.0, 1.0, 0.0)


class NewShardError(RuntimeError):
    """The process is a new one, and who calls it takes it for one that died."""


class ReplayShard:
    """The replays of some of the actors, one for each: lanes of one replay step together."""

    def __init__(self, *, config: Config, spec: WorldSpec, actors: list[int], seed: int):
        self._union = make_union(config, spec, actors, seed)
        self._is_begun = False
        self._next: dict[int, int] = {}  # number of the rollout that goes on from the last one

    def begin(self) -> None:
        """Lets the shard be used, by who knows that it is empty."""
        self._is_begun = True

    @property
    def _held(self) -> ReplayUnion:
        if not self._is_begun:
            raise NewShardError
        return self._union

    def add(self, actor: int, number: int, rollout: Rollout, begins: bool) -> Standing | None:
        """Writes what an actor played from a reset on, or after its rollout before.

        What follows a rollout that was lost, or that an earlier process held, is not written.
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
        return self.standing()

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Draws a batch; gives the ids of its transitions with it."""
        return self._held.sample(importance_exponent)

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors the priorities of what is still there."""
        self._held.update_priorities(ids, errors)

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of what was drawn."""
        return self._held.priorities(ids)

    def standing(self) -> Standing:
        """How full the shard is, and how its priorities stand."""
        replays = self._held.replays.values()
        return Standing(
            self._held.num_sampleable,
            self._held.total_priority,
            max(replay.max_priority for replay in replays),
            float(np.mean([replay.fill for replay in replays])),
        )

    def state(self, actor: int) -> dict[str, np.ndarray]:
        """What `Replay.state` gives of an actor's replay."""
        return self._held.replays[actor].state()

    def restore(self, actor: int, state: dict[str, np.ndarray]) -> None:
        """Takes back what `state` gave."""
        self._held.replays[actor].restore(state)

    def written_chunks(self, actor: int) -> list[int]:
        """Numbers of the chunks of an actor's replay that hold steps."""
        return list(self._held.replays[actor].written_chunks())

    def changed_chunks(self, actor: int) -> list[int]:
        """Numbers of the chunks that were written to since `forget_changes`."""
        return self._held.replays[actor].changed_chunks()

    def chunk(self, actor: int, number: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        return self._held.replays[actor].chunk(number)

    def restore_chunk(self, actor: int, number: int, steps: dict[str, np.ndarray]) -> None:
        """Takes back what `chunk` gave, after `restore`."""
        self._held.replays[actor].restore_chunk(number, steps)

    def forget_changes(self) -> None:
        """Takes all chunks as they are for saved."""
        for replay in self._held.replays.values():
            replay.forget_changes()


def make_union(config: Config, spec: WorldSpec, actors: list[int], seed: int) -> ReplayUnion:
    """A replay for each of the actors, with an equal part of the capacity."""
    rng, *rngs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(1 + len(actors)))
    capacity = config.replay_capacity // config.actors
    replays = {
        actor: make_replay(config, spec, capacity=capacity, rng=rng_)
        for actor, rng_ in zip(actors, rngs, strict=True)
    }
    return ReplayUnion(
        replays=replays, num_owners=config.actors, batch_size=config.batch_size, rng=rng
    )
