"""One run: opened or resumed in its folder, trained, and left with a last checkpoint."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator

import numpy as np

from rainbow_tf.agent.learner import DivergedError
from rainbow_tf.agent.networks import store_torso
from rainbow_tf.baselines import a3c
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.evaluation.evaluator import Evaluator
from rainbow_tf.process import StopSignals
from rainbow_tf.runs.folder import RunFolder, resumes
from rainbow_tf.runs.store import Checkpoint, kept_best, write_atomically
from rainbow_tf.training.build import AnyParts, build_parts
from rainbow_tf.training.checkpoint import Checkpointer, agent_variables, restore
from rainbow_tf.training.loop import train
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.training.progress import ProgressBar, describe
from rainbow_tf.training.recorder import Recorder
from rainbow_tf.types import BEGINNING, Counters, Tick

Build = Callable[[Config, Counters], tuple[AnyParts, Iterator[Tick]]]


def build_single(config: Config, start: Counters) -> tuple[AnyParts, Iterator[Tick]]:
    """The parts of a run in this process, and its ticks."""
    if config.algorithm == "a3c":
        crew = a3c.build_crew(config, start.steps)
        return crew, a3c.train(config, crew, start)
    parts = build_parts(config, start.steps)
    return parts, train(config, parts, start)


class Run:
    """A run under way: its parts, and everything that observes its ticks."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        *,
        build: Build = build_single,
        is_stopping: Callable[[], bool],
    ):
        self._config = config
        self._is_stopping = is_stopping
        self.reached = BEGINNING if checkpoint is None else checkpoint.counters
        self.parts, self._ticks = build(config, self.reached)
        if checkpoint is not None:
            restore(self.parts, folder.store, checkpoint)
            print(f"Resuming from checkpoint {checkpoint.number} at {self.frames:,} frames.")
        elif resumes(config):
            print(f"{config.folder} has no checkpoint yet; starting from the beginning.")
        print(describe(config, self.parts, self.frames), flush=True)
        self._folder = folder
        self._checkpoint = checkpoint

    @property
    def frames(self) -> int:
        """Frames that the run has been trained for."""
        return self.reached.steps * self._config.frames_per_step

    @property
    def is_finished(self) -> bool:
        """Whether the run has all its frames and evaluations."""
        return self.frames >= self._config.frames and not self.evaluator.is_due(self.frames)

    def begin(self) -> None:
        """Writes the settings to the folder and opens its files."""
        config, parts, checkpoint = self._config, self.parts, self._checkpoint
        self._folder.begin(parts.spec)
        store_torso(config, parts.learner.online)
        self._bar = ProgressBar(config.frames, self.frames)
        self.metrics = Metrics(
            config=config,
            parts=parts,
            frames=self.frames,
            evaluated=0 if checkpoint is None else checkpoint.evaluated,
        )
        self.evaluator = Evaluator(
            config=config,
            policy=parts.evaluation_actor,
            network=parts.learner.online,
            write=self.metrics.write_evaluation,
            is_stopping=self._is_stopping,
            show=self._bar.show_evaluation,
        )
        self._checkpointer = Checkpointer(
            config=config,
            store=self._folder.store,
            parts=parts,
            metrics=self.metrics,
            evaluator=self.evaluator,
        )
        self._recorder = Recorder(
            config=config,
            parts=parts,
            metrics=self.metrics,
            frames=self.frames,
            is_stopping=self._is_stopping,
        )
        if checkpoint is not None:
            self._checkpointer.resume(checkpoint)
            self._folder.store.discard_newer(checkpoint.number)

    def ticks(self) -> Iterator[Tick]:
        """Trains; yields every tick after it was logged, evaluated and saved where that is due."""
        self._finish_interrupted_evaluation()
        for tick in self._ticks:
            self.reached = tick.counters
            self.metrics.observe(tick)
            self._bar.show(tick.frames, self.metrics)
            evaluated = self._evaluate()
            self._checkpointer.observe(tick, now=evaluated or self._is_stopping())
            if evaluated:
                self.evaluator.keep_best(tick.frames)
            self._recorder.observe(tick.frames)
            yield tick
            if self._is_stopping():
                break
        self.save()

    def save(self) -> None:
        """Writes a checkpoint, unless nothing has changed since the last one."""
        self._checkpointer.save(self.reached)

    def _evaluate(self) -> bool:
        with self.metrics.paused():
            return self.evaluator.observe(self.frames)

    def _finish_interrupted_evaluation(self) -> None:
        """Does what a stop or a kill left undone at the checkpoint."""
        if self.reached == BEGINNING:
            return
        if self._evaluate():
            self._checkpointer.save(self.reached, again=True)
        if self.evaluator.best != kept_best(self._config.folder):
            self.evaluator.keep_best(self.frames)

    def close(self) -> None:
        """Closes the files and the parts."""
        self._bar.close()
        self.metrics.close()
        self.parts.close()


@contextlib.contextmanager
def open_run(
    config: Config,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    *,
    stop: StopSignals,
    build: Build = build_single,
) -> Iterator[Run]:
    """A run to train by its `ticks`; a diverged one raises ConfigError."""
    run = Run(config, folder, checkpoint, build=build, is_stopping=lambda: stop.requested)
    stop.install()  # a Ctrl-C before this point leaves nothing behind
    run.begin()
    try:
        yield run
    except DivergedError as error:
        raise ConfigError(_diagnosis(config, run, error)) from error
    except GeneratorExit:  # the caller left a loop over the ticks
        run.save()
        raise
    finally:
        run.close()


def _diagnosis(config: Config, run: Run, error: DivergedError) -> str:
    """Writes what is known of the update, and the norms of all variables; says where it is."""
    content = {
        "frames": run.frames,
        "loss": error.result.loss,
        "q_mean": error.result.q_mean,
        **error.details,
        "norms": {
            f"{name} {variable.path}": float(np.linalg.norm(variable.numpy().astype(np.float64)))
            for name, variable in agent_variables(run.parts).items()
        },
        "config": dataclasses.asdict(config),
    }
    path = config.folder / f"diverged_at_{run.frames}.json"
    text = json.dumps(content, indent=2) + "\n"
    try:
        write_atomically(path, text.encode())
        known = f"is in {path}"
    except OSError as full:
        known = f"could not be written to {config.folder} ({full.strerror})"
    return f"{error} The diagnosis {known}; a smaller --learning_rate or --clip_rewards may help."
