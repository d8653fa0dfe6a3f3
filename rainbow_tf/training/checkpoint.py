"""Saves and restores a run: agent, replay, counters and random generators."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config
from rainbow_tf.console import say
from rainbow_tf.evaluation.evaluator import Evaluator
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.store import Checkpoint, CheckpointStore, StoredFile
from rainbow_tf.runs.weights import AGENT_FILE, assign, check_alike, named, values
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.types import BEGINNING, Counters, EnvironmentSpec, Restorable, Tick

_REPLAY = "replay"
_STEPS = "steps_"
_DISK_SHARE = 0.1  # of the raw bytes: an upper bound in 56 of 57 games played at random


@dataclasses.dataclass(kw_only=True)
class Checkpointer:
    """Saves a run every period: the whole agent, and the parts of the replay that changed."""

    config: Config
    store: CheckpointStore
    parts: AnyParts
    metrics: Metrics
    evaluator: Evaluator
    _chunks: dict[str, StoredFile] = dataclasses.field(default_factory=dict)
    _saved: Counters = BEGINNING

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint whose parts are already restored."""
        with checkpoint.checked():
            self.metrics.restore(checkpoint.state["metrics"])
            self.evaluator.restore(checkpoint.state["evaluator"])
        self._chunks = {
            name: file
            for name, file in checkpoint.files.items()
            if name not in (AGENT_FILE, _REPLAY)
        }
        self._saved = checkpoint.counters

    def observe(self, tick: Tick, *, now: bool = False) -> None:
        """Saves if a period has passed, or `now`."""
        saved_frames = self._saved.steps * self.config.frames_per_step
        if now or has_passed(self.config.checkpoint_period_frames, saved_frames, tick.frames):
            self.save(tick.counters)

    def save(self, reached: Counters, *, again: bool = False) -> None:
        """Saves the run; a failed write is reported and training continues."""
        if reached == self._saved and not again:
            return
        self._saved = reached  # even if the disk is full: the next attempt is a period later
        try:
            self._write(reached)
        except OSError as error:
            frames = reached.steps * self.config.frames_per_step
            say(
                f"The checkpoint at {frames:,} frames could not be written to "
                f"{self.store.folder}: {error.strerror}. Earlier checkpoints are kept."
            )

    def _write(self, reached: Counters) -> None:
        parts, replay = self.parts, self.parts.replay
        unchanged = {name: file for name, file in self._chunks.items() if self.store.is_there(file)}
        new: dict[str, Callable[[], dict[str, np.ndarray]]] = {
            AGENT_FILE: lambda: values(agent_variables(parts)),
        }
        if replay is not None:
            for number in replay.changed_chunks():
                unchanged.pop(_chunk_name(number), None)
            new[_REPLAY] = replay.state
            for number in replay.written_chunks():
                if _chunk_name(number) not in unchanged:
                    new[_chunk_name(number)] = functools.partial(replay.chunk, number)
        state = {
            "config": dataclasses.asdict(self.config),
            "counters": reached,
            "frames": reached.steps * self.config.frames_per_step,
            "generators": {n: rng.bit_generator.state for n, rng in parts.generators.items()},
            "metrics": self.metrics.state(),
            "evaluator": self.evaluator.state(),
        }
        checkpoint = self.store.write(state=state, new=new, old=unchanged)
        if replay is not None:
            replay.forget_changes()
            self._chunks = {
                _chunk_name(number): checkpoint.files[_chunk_name(number)]
                for number in replay.written_chunks()
            }
        with contextlib.suppress(OSError):  # The next checkpoint prunes again.
            self.store.prune(self.config.max_checkpoints)


def restore(parts: AnyParts, store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Restores the parts to the last bit; only the environment starts fresh episodes."""
    with checkpoint.checked():
        assign(agent_variables(parts), store.read(checkpoint.files[AGENT_FILE]))
        for name, rng in parts.generators.items():
            rng.bit_generator.state = checkpoint.state["generators"][name]
    if parts.replay is not None:
        restore_replay(parts.replay, store, checkpoint)
        parts.replay.forget_changes()


def restore_replay(replay: Restorable, store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Fills a replay or a shard of one; its chunks count as changed."""
    with checkpoint.checked():
        state = store.read(checkpoint.files[_REPLAY])
        check_alike(replay.state(), state)
        replay.restore(state)
        for number in replay.written_chunks():
            replay.restore_chunk(number, store.read(checkpoint.files[_chunk_name(number)]))


def disk_bytes(config: Config, spec: EnvironmentSpec, num_parameters: int) -> int:
    """Estimated size of the checkpoints when the replay is full."""
    capacity = config.replay_capacity if config.has_replay else 0
    states = config.max_checkpoints * (4 * 4 * num_parameters + 8 * capacity)
    period = min(config.steps(config.checkpoint_period_frames), capacity)
    steps = capacity + (config.max_checkpoints - 1) * period
    return int(states + _DISK_SHARE * replay_bytes(steps, spec))


def agent_variables(parts: AnyParts) -> dict[str, Any]:
    """Every variable of the learner, including noise seeds and Adam's moments."""
    owners = parts.learner.variables.items()
    return {key: v for owner, its in owners for key, v in named(owner, its).items()}


def _chunk_name(number: int) -> str:
    return f"{_STEPS}{number:05d}"
