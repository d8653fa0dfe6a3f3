"""What a run must keep to go on: agent, memory, counters and random generators."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.training.evaluation import Evaluator
from rainbow_tf.training.loop import BEGINNING, Counters, Tick
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.training.parts import Parts
from rainbow_tf.training.snapshot import AGENT_FILE, assign, check_alike, named, values
from rainbow_tf.training.storage import Checkpoint, CheckpointStore, StoredFile
from rainbow_tf.types import WorldSpec

_REPLAY = "replay"
_STEPS = "steps_"
_DISK_SHARE = 0.1  # of the steps' bytes, at most, in 56 of 57 games played at random


class Checkpointer:
    """Saves a run every period: the agent whole, of the memory what is new."""

    def __init__(
        self,
        *,
        config: Config,
        store: CheckpointStore,
        parts: Parts,
        metrics: Metrics,
        evaluator: Evaluator,
        say: Callable[[str], None],
    ):
        self._config = config
        self._store = store
        self._parts = parts
        self._metrics = metrics
        self._evaluator = evaluator
        self._say = say
        self._chunks: dict[str, StoredFile] = {}
        self._saved = BEGINNING

    def resume(self, checkpoint: Checkpoint) -> None:
        """Takes the run's own numbers from a checkpoint whose parts are restored."""
        self._metrics.restore(checkpoint.state["metrics"])
        self._evaluator.restore(checkpoint.state["evaluator"])
        self._chunks = {
            name: file
            for name, file in checkpoint.files.items()
            if name not in (AGENT_FILE, _REPLAY)
        }
        self._saved = counters(checkpoint)

    def observe(self, tick: Tick, *, now: bool = False) -> None:
        """Saves if a period has passed, or `now`."""
        period = self._config.checkpoint_period_frames
        saved_frames = self._saved.steps * self._config.frames_per_step
        if now or tick.frames // period > saved_frames // period:
            self.save(tick.counters)

    def save(self, reached: Counters, *, again: bool = False) -> None:
        """Saves the run as it stands; a disk that does not take it does not stop the run."""
        if reached == self._saved and not again:
            return
        self._saved = reached  # also where the disk is full: it is tried again after a period
        try:
            self._write(reached)
        except OSError as error:
            frames = reached.steps * self._config.frames_per_step
            self._say(
                f"The checkpoint at {frames:,} frames could not be written to "
                f"{self._store.folder}: {error.strerror}. The checkpoints before it stay."
            )

    def _write(self, reached: Counters) -> None:
        parts = self._parts
        unchanged = {
            name: file for name, file in self._chunks.items() if self._store.is_there(file)
        }
        for number in parts.replay.changed_chunks():
            unchanged.pop(_chunk_name(number), None)
        new: dict[str, Callable[[], dict[str, np.ndarray]]] = {
            AGENT_FILE: lambda: values(agent_variables(parts)),
            _REPLAY: parts.replay.state,
        }
        for number in parts.replay.written_chunks():
            if _chunk_name(number) not in unchanged:
                new[_chunk_name(number)] = functools.partial(parts.replay.chunk, number)
        state = {
            "config": dataclasses.asdict(self._config),
            "counters": reached,
            "frames": reached.steps * self._config.frames_per_step,
            "generators": {name: rng.bit_generator.state for name, rng in _generators(parts)},
            "metrics": self._metrics.state(),
            "evaluator": self._evaluator.state(),
        }
        checkpoint = self._store.write(state=state, new=new, old=unchanged)
        parts.replay.forget_changes()
        self._chunks = {
            _chunk_name(number): checkpoint.files[_chunk_name(number)]
            for number in parts.replay.written_chunks()
        }
        with contextlib.suppress(OSError):  # What is left over goes with the next one.
            self._store.prune(self._config.max_checkpoints)


def counters(checkpoint: Checkpoint) -> Counters:
    """How far the run had come."""
    return Counters(*checkpoint.state["counters"])


def restore(parts: Parts, store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Makes the parts what they were, to the last bit; only the world starts anew."""
    assign(agent_variables(parts), store.read(checkpoint.files[AGENT_FILE]))
    replay = parts.replay
    state = store.read(checkpoint.files[_REPLAY])
    check_alike(replay.state(), state)
    replay.restore(state)
    for number in replay.written_chunks():
        replay.restore_chunk(number, store.read(checkpoint.files[_chunk_name(number)]))
    replay.forget_changes()
    for name, rng in _generators(parts):
        rng.bit_generator.state = checkpoint.state["generators"][name]


def disk_bytes(config: Config, spec: WorldSpec, num_parameters: int) -> int:
    """Estimate of what the checkpoints take when the memory is full."""
    states = config.max_checkpoints * (4 * 4 * num_parameters + 8 * config.replay_capacity)
    period = min(config.steps(config.checkpoint_period_frames), config.replay_capacity)
    steps = config.replay_capacity + (config.max_checkpoints - 1) * period
    return int(states + _DISK_SHARE * replay_bytes(steps, spec))


def agent_variables(parts: Parts) -> dict[str, Any]:
    """Every variable of the learner, noise seeds and Adam's moments among them."""
    learner = parts.learner
    return {
        **named("online", learner.online.variables),
        **named("target", learner.target.variables),
        **named("optimizer", learner.optimizer.variables),
    }


def _generators(parts: Parts) -> Iterable[tuple[str, np.random.Generator]]:
    return (
        ("replay", parts.replay.rng),
        ("actor", parts.actor.rng),
        ("evaluation_actor", parts.evaluation_actor.rng),
    )


def _chunk_name(number: int) -> str:
    return f"{_STEPS}{number:05d}"
