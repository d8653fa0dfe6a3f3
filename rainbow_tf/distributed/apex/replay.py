"""The replay of a run with actors, as the learner sees it: shards that sample ahead."""

import errno
import functools
import sys
import time
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from tqdm import tqdm

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed.apex.shard import EMPTY, NewShardError, ReplayShard, ShardStatus
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training.checkpoint import restore_replay
from rainbow_tf.types import Batch, EnvironmentSpec

PREFETCHED = 3  # batches sampled in advance
WAITING_ADDS = 4  # rollouts per actor that its shard may still have to store
_RESTART_SECONDS = 120.0


def say(line: str) -> None:
    """Prints a line above the progress bar."""
    tqdm.write(line, file=sys.stderr)


class RemoteShard:
    """A shard's process, and the requests in flight to it.

    Chunk numbers cover all actors: the replay's own number times the actors, plus the actor.
    """

    def __init__(
        self, *, ray: ModuleType, config: Config, spec: EnvironmentSpec, number: int, seed: int
    ):
        self._ray = ray
        self.number = number
        self._num_actors = config.actors
        self.actors = list(range(number, config.actors, config.replay_shards))
        capacity = config.replay_capacity * len(self.actors) // config.actors
        memory = replay_bytes(capacity, spec, compressed=config.compressed_replay)
        shard = ray.remote(num_cpus=1, memory=memory, max_restarts=-1)(ReplayShard)
        self._handle = shard.remote(config=config, spec=spec, actors=self.actors, seed=seed)
        self._handle.begin.remote()
        # If it died while no call was in flight, the first sign is that it is new.
        self.death = (ray.exceptions.RayActorError, NewShardError)
        self.status = EMPTY
        self._adds: deque[tuple[int, Any]] = deque()  # actor and answer

    def begin_add(self, actor: int, number: int, rollout: Any, begins: bool) -> None:
        """Has a rollout stored; it goes from its actor to the shard directly."""
        self._adds.append((actor, self._handle.add.remote(actor, number, rollout, begins)))

    def settle(self) -> set[int]:
        """Collects answers, waiting if too many are open; returns the actors that were refused."""
        refused = set()
        while self._adds:
            actor, answer = self._adds[0]
            is_full = len(self._adds) > WAITING_ADDS * len(self.actors)
            done, _ = self._ray.wait([answer], timeout=None if is_full else 0)
            if not done:
                break
            self._adds.popleft()
            try:
                status: ShardStatus | None = self._ray.get(answer)
            except self._ray.exceptions.ObjectLostError:  # lost with its node
                status = None
            if status is None:
                refused.add(actor)
            else:
                self.status = status
        return refused

    def begin_sample(self, importance_exponent: float) -> Any:
        """Requests a batch; `receive` waits for it."""
        return self._handle.sample.remote(importance_exponent)

    def receive(self, answer: Any) -> tuple[np.ndarray, Batch]:
        """Ids and batch of a request."""
        return self._ray.get(answer)

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Requests new priorities, without waiting."""
        self._handle.update_priorities.remote(ids, errors)

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions."""
        return self._ray.get(self._handle.priorities.remote(ids))

    def wait_until_alive(self) -> None:
        """Waits for the process, which Ray restarts with an empty replay."""
        self._adds.clear()
        give_up = time.monotonic() + _RESTART_SECONDS
        while True:
            try:
                self._ray.get(self._handle.begin.remote())
                self.status = EMPTY
                return
            except self.death as error:
                if time.monotonic() > give_up:
                    raise ConfigError(
                        f"Replay shard {self.number} died and Ray could not restart it in "
                        f"{_RESTART_SECONDS:.0f} s; rerun the command to resume from the last "
                        "checkpoint."
                    ) from error
                time.sleep(0.5)

    def state(self) -> dict[str, np.ndarray]:
        """State of its actors' replays, with the actor in the name."""
        states = self._ray.get([self._handle.state.remote(actor) for actor in self.actors])
        return {
            f"{actor}/{name}": array
            for actor, state in zip(self.actors, states, strict=True)
            for name, array in state.items()
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores its share of the states of all shards."""
        for actor in self.actors:
            prefix = f"{actor}/"
            its = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            self._ray.get(self._handle.restore.remote(actor, its))
        self.status = self._ray.get(self._handle.status.remote())

    def written_chunks(self) -> list[int]:
        """Chunks that hold steps."""
        return self._chunks(self._handle.written_chunks)

    def changed_chunks(self) -> list[int]:
        """Chunks that were written since `forget_changes`."""
        return self._chunks(self._handle.changed_chunks)

    def _chunks(self, method: Any) -> list[int]:
        found = self._ray.get([method.remote(actor) for actor in self.actors])
        return [
            number * self._num_actors + actor
            for actor, numbers in zip(self.actors, found, strict=True)
            for number in numbers
        ]

    def chunk(self, chunk: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        number, actor = divmod(chunk, self._num_actors)
        return self._ray.get(self._handle.chunk.remote(actor, number))

    def restore_chunk(self, chunk: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned."""
        number, actor = divmod(chunk, self._num_actors)
        self._ray.get(self._handle.restore_chunk.remote(actor, number, steps))

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""
        self._ray.get(self._handle.forget_changes.remote())


class ShardedReplay:
    """Samples each batch from one shard, chosen in proportion to its total priority.

    So every transition is sampled as often as from one replay. A shard that dies is refilled from
    the last checkpoint.
    """

    def __init__(self, *, ray: ModuleType, config: Config, spec: EnvironmentSpec, seed: int):
        self._ray = ray
        self._store = CheckpointStore(config.folder / CHECKPOINTS)
        seeds = np.random.SeedSequence(seed)
        self.rng = np.random.default_rng(seeds)
        self._shards = [
            RemoteShard(ray=ray, config=config, spec=spec, number=number, seed=int(shard_seed))
            for number, shard_seed in enumerate(seeds.generate_state(config.replay_shards))
        ]
        self._num_actors = config.actors
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
        """Has an actor's rollout stored, by its reference."""
        shard = self._of_actor(actor)
        shard.begin_add(actor, number, rollout, begins)
        self.settle(shard)

    def settle(self, *shards: RemoteShard) -> None:
        """Collects the answers of these shards, or of all."""
        for shard in shards or self._shards:
            refused = self._guarded(shard, shard.settle)
            self.broken_off.update(refused or ())

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """A batch that was sampled ahead; requests the next ones."""
        while True:
            while len(self._ahead) <= PREFETCHED:
                shard = self._choose()
                self._ahead.append((shard, shard.begin_sample(importance_exponent)))
            shard, answer = self._ahead.popleft()
            draw = self._guarded(shard, functools.partial(shard.receive, answer))
            if draw is not None:
                return draw

    def _choose(self) -> RemoteShard:
        masses = np.array([shard.status.total_priority for shard in self._shards])
        if masses.sum() == 0:
            raise ValueError("Nothing to sample: no shard has a complete transition.")
        return self._shards[self.rng.choice(len(masses), p=masses / masses.sum())]

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors the priorities of transitions still stored; a batch is of one shard."""
        self._of_ids(ids).update_priorities(ids, errors)

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of sampled transitions."""
        return self._of_ids(ids).priorities(ids)

    def _of_ids(self, ids: np.ndarray) -> RemoteShard:
        return self._of_actor(int(ids[0]) % self._num_actors)

    def _of_actor(self, actor: int) -> RemoteShard:
        return self._shards[actor % len(self._shards)]

    def _guarded(self, shard: RemoteShard, call: Callable[[], Any]) -> Any:
        """The result of a call, or None if the shard died and was recovered."""
        try:
            return call()
        except shard.death:
            self._recover(shard)
            return None

    def _recover(self, shard: RemoteShard) -> None:
        say(f"Replay shard {shard.number} died; restarting it.")
        shard.wait_until_alive()
        self._ahead = deque(entry for entry in self._ahead if entry[0] is not shard)
        checkpoint, _ = self._store.newest_whole()
        if checkpoint is None:
            say(f"Warning: no checkpoint yet; replay shard {shard.number} starts empty.")
            return
        restore_replay(shard, self._store, checkpoint)
        frames = checkpoint.frames
        say(f"Replay shard {shard.number} was restored to {frames:,} frames.")

    def state(self) -> dict[str, np.ndarray]:
        """State of the replays of all actors."""
        states = [self._saved(shard, shard.state) for shard in self._shards]
        return {name: array for state in states for name, array in state.items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned."""
        for shard in self._shards:
            shard.restore(state)

    def written_chunks(self) -> list[int]:
        """Chunks that hold steps."""
        return [n for shard in self._shards for n in self._saved(shard, shard.written_chunks)]

    def changed_chunks(self) -> list[int]:
        """Chunks that were written since `forget_changes`."""
        return [n for shard in self._shards for n in self._saved(shard, shard.changed_chunks)]

    def chunk(self, chunk: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""
        shard = self._of_actor(chunk % self._num_actors)
        return self._saved(shard, lambda: shard.chunk(chunk))

    def restore_chunk(self, chunk: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned."""
        self._of_actor(chunk % self._num_actors).restore_chunk(chunk, steps)

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""
        for shard in self._shards:
            self._saved(shard, shard.forget_changes)

    def _saved(self, shard: RemoteShard, call: Callable[[], Any]) -> Any:
        """The result of a call for a checkpoint; fails the checkpoint if the shard dies."""
        try:
            return call()
        except shard.death as error:
            self._recover(shard)
            raise OSError(
                errno.EIO, f"replay shard {shard.number} died during the checkpoint"
            ) from error
