"""The replay of a run with actors, as the learner sees it: shards that sample ahead."""

import contextlib
import errno
import functools
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import say
from rainbow_tf.distributed.apex.shard import EMPTY, ReplayShard
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training.checkpoint import restore_replay
from rainbow_tf.types import Batch, EnvironmentSpec

PREFETCHED = 3  # batches sampled in advance
WAITING_ADDS = 4  # rollouts per actor that its shard may still have to store
_RESTART_SECONDS = 120.0


class RemoteShard:
    """A shard's process, its last status, and the rollouts that it has yet to store."""

    def __init__(
        self, *, ray: ModuleType, config: Config, spec: EnvironmentSpec, number: int, seed: int
    ):
        self._ray = ray
        self.number = number
        self.actors = list(range(number, config.actors, config.replay_shards))
        capacity = config.replay_capacity * len(self.actors) // config.actors
        memory = replay_bytes(capacity, spec, compressed=config.compressed_replay)
        shard = ray.remote(num_cpus=1, memory=memory)(ReplayShard)
        self._process = functools.partial(
            shard.remote, config=config, spec=spec, actors=self.actors, seed=seed
        )
        self.start()

    def start(self) -> None:
        """Starts a process with an empty replay."""
        self.handle = self._process()
        self.status = EMPTY
        self.adds: dict[Any, int] = {}  # answer to come, and actor

    def settle(self) -> set[int]:
        """Collects answers, waiting if too many are open; returns the actors that were refused."""
        refused = set()
        for answer, actor in list(self.adds.items()):
            is_full = len(self.adds) > WAITING_ADDS * len(self.actors)
            done, _ = self._ray.wait([answer], timeout=None if is_full else 0)
            if not done:
                break
            del self.adds[answer]
            status = None
            with contextlib.suppress(self._ray.exceptions.ObjectLostError):  # lost with its node
                status = self._ray.get(answer)
            if status is None:
                refused.add(actor)
            self.status = status or self.status
        return refused

    def restart(self) -> None:
        """Starts another process after one died, and waits for it."""
        self.start()
        try:
            self._ray.get(self.handle.__ray_ready__.remote(), timeout=_RESTART_SECONDS)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError) as error:
            raise ConfigError(
                f"Replay shard {self.number} died, and no other process could be started for it; "
                "rerun the command to resume from the last checkpoint."
            ) from error


class RemoteReplays:
    """The replays of all actors of some shards, as a checkpoint saves them.

    Chunk numbers cover all actors: the replay's own number times the actors, plus the actor.
    """

    def __init__(self, *, ray: ModuleType, shards: Sequence[RemoteShard], num_actors: int):
        self._ray = ray
        self._shards = shards
        self._num_actors = num_actors
        self._shard_of = {actor: shard for shard in shards for actor in shard.actors}

    def _call(self, actor: int, method: str, *arguments: Any) -> Any:
        return self._ray.get(self._shard_of[actor].handle.call.remote(actor, method, *arguments))

    def _call_all(self, method: str) -> dict[int, Any]:
        return {actor: self._call(actor, method) for actor in self._shard_of}

    def _chunks(self, method: str) -> list[int]:
        found = self._call_all(method).items()
        return [number * self._num_actors + actor for actor, its in found for number in its]

    def state(self) -> dict[str, np.ndarray]:
        """State of the actors' replays, with the actor in the name."""
        states = self._call_all("state").items()
        return {f"{actor}/{name}": its[name] for actor, its in states for name in its}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores these actors from the states of all."""
        for actor in self._shard_of:
            prefix = f"{actor}/"
            its = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            self._call(actor, "restore", its)
        for shard in self._shards:
            shard.status = self._ray.get(shard.handle.status.remote())

    def written_chunks(self) -> list[int]:
        """Chunks that hold steps."""
        return self._chunks("written_chunks")

    def changed_chunks(self) -> list[int]:
        """Chunks that were written since `forget_changes`."""
        return self._chunks("changed_chunks")

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        its_number, actor = divmod(number, self._num_actors)
        return self._call(actor, "chunk", its_number)

    def restore_chunk(self, number: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned."""
        its_number, actor = divmod(number, self._num_actors)
        self._call(actor, "restore_chunk", its_number, steps)

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""
        self._call_all("forget_changes")


class ShardedReplay(RemoteReplays):
    """Samples each batch from one shard, chosen in proportion to its total priority.

    So every transition is sampled as often as from one replay. A shard that dies is refilled from
    the last checkpoint.
    """

    def __init__(self, *, ray: ModuleType, config: Config, spec: EnvironmentSpec, seed: int):
        seeds = np.random.SeedSequence(seed)
        shards = [
            RemoteShard(ray=ray, config=config, spec=spec, number=number, seed=int(shard_seed))
            for number, shard_seed in enumerate(seeds.generate_state(config.replay_shards))
        ]
        super().__init__(ray=ray, shards=shards, num_actors=config.actors)
        self.rng = np.random.default_rng(seeds)
        self._store = CheckpointStore(config.folder / CHECKPOINTS)
        self._ahead: deque[tuple[RemoteShard, Any]] = deque()
        self.broken_off: set[int] = set()  # actors whose next rollout must start fresh episodes

    @property
    def num_sampleable(self) -> int:
        """Transitions that can be sampled, by the last answers of the shards."""
        return sum(shard.status.num_sampleable for shard in self._shards)

    @property
    def fill(self) -> float:
        """Share of the slots that hold a frame."""
        fills = [shard.status.fill * len(shard.actors) for shard in self._shards]
        return sum(fills) / self._num_actors

    @property
    def max_priority(self) -> float:
        """The largest error seen so far."""
        return max(shard.status.max_priority for shard in self._shards)

    def add(self, actor: int, number: int, rollout: Any, begins: bool) -> None:
        """Has a rollout stored; it goes from its actor to the shard directly."""
        shard = self._shard_of[actor]
        shard.adds[shard.handle.add.remote(actor, number, rollout, begins)] = actor

    def settle(self) -> None:
        """Collects the answers to `add`."""
        for shard in self._shards:
            try:
                self.broken_off |= shard.settle()
            except self._ray.exceptions.RayActorError:
                self._recover(shard)

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """A batch that was sampled ahead; requests the next ones."""
        while True:
            while len(self._ahead) <= PREFETCHED:
                shard = self._choose()
                self._ahead.append((shard, shard.handle.sample.remote(importance_exponent)))
            shard, answer = self._ahead.popleft()
            try:
                return self._ray.get(answer)
            except self._ray.exceptions.RayActorError:
                self._recover(shard)

    def _choose(self) -> RemoteShard:
        masses = np.array([shard.status.total_priority for shard in self._shards])
        if masses.sum() == 0:
            raise ValueError("Nothing to sample: no shard has a complete transition.")
        return self._shards[self.rng.choice(len(masses), p=masses / masses.sum())]

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors the priorities of transitions still stored, without waiting."""
        self._of_batch(ids).update_priorities.remote(ids, errors)

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions."""
        return self._ray.get(self._of_batch(ids).priorities.remote(ids))

    def _of_batch(self, ids: np.ndarray) -> Any:
        """The process that a batch came from: all its transitions are of one shard."""
        return self._shard_of[int(ids[0]) % self._num_actors].handle

    def _call(self, actor: int, method: str, *arguments: Any) -> Any:
        """The result of a call for a checkpoint; fails the checkpoint if the shard dies."""
        try:
            return super()._call(actor, method, *arguments)
        except self._ray.exceptions.RayActorError as error:
            shard = self._shard_of[actor]
            self._recover(shard)
            reason = f"replay shard {shard.number} died during the checkpoint"
            raise OSError(errno.EIO, reason) from error

    def _recover(self, shard: RemoteShard) -> None:
        say(f"Replay shard {shard.number} died; restarting it.")
        shard.restart()
        self._ahead = deque(entry for entry in self._ahead if entry[0] is not shard)
        checkpoint, _ = self._store.newest_whole()
        if checkpoint is None:
            say(f"Warning: no checkpoint yet; replay shard {shard.number} starts empty.")
            return
        only_it = RemoteReplays(ray=self._ray, shards=[shard], num_actors=self._num_actors)
        restore_replay(only_it, self._store, checkpoint)
        say(f"Replay shard {shard.number} was restored to {checkpoint.frames:,} frames.")
