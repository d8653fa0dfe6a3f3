"""What a run prints: a table at the start, a progress bar during training."""

import shutil
import time

import numpy as np
import tensorflow as tf

from rainbow_tf.config import Config
from rainbow_tf.console import duration, progress_bar, size, table
from rainbow_tf.replay.replay import replay_bytes
from rainbow_tf.runs.weights import assign, values
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.checkpoint import agent_variables, disk_bytes
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.types import Batch, EnvironmentSpec


def describe(config: Config, parts: AnyParts, start_frames: int) -> str:
    """The table printed before training; measures the speed for it."""
    spec = parts.spec
    frames_per_second, seconds = measure_speed(config, parts, start_frames)
    disk = f"{size(disk_bytes(config, spec, parts.learner.online.count_params()))} on disk"
    frames = config.frames - start_frames
    gpus = tf.config.list_physical_devices("GPU")
    replay = {}
    if config.has_replay:
        memory = replay_bytes(config.replay_capacity, spec, compressed=config.compressed_replay)
        disk += " when the replay is full"
        learning = config.steps(config.frames) - config.steps(config.min_history_frames)
        updates = int(learning * config.updates_per_step)
        replay["updates"] = f"{updates:,}, the first after {config.min_history_frames:,} frames"
        replay["replay"] = f"{config.replay_capacity:,} steps, {size(memory)} when full"
    actors = {}
    if config.actors > 0:
        place = "this machine" if config.address is None else f"the cluster at {config.address}"
        shards = f"{config.replay_shards} replay shard{'s' if config.replay_shards > 1 else ''}"
        actors["actors"] = f"{config.actors} of {config.num_envs} lanes, {shards}, on {place}"
    rows = {
        "agent": config.agent,
        "environment": f"{config.game or config.environment}, {spec.num_actions} actions, "
        f"observations {(spec.frame_stack, *spec.frame_shape)} {spec.frame_dtype}",
        "parameters": f"{parts.learner.online.count_params():,}",
        **replay,
        **actors,
        "checkpoints": f"every {config.checkpoint_period_frames:,} frames, {disk} "
        f"({size(_free_disk(config))} free)",
        "device": f"{len(gpus)} GPU" if gpus else "CPU",
        "run folder": str(config.folder),
        "expected time": f"{duration(seconds)} for {frames:,} frames, "
        f"at {frames_per_second:,.0f} frames/s when learning",
    }
    return table(rows)


def _free_disk(config: Config) -> int:
    folder = config.folder.absolute()
    return shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free


def measure_speed(config: Config, parts: AnyParts, start_frames: int = 0) -> tuple[float, float]:
    """Frames per second while learning, and remaining seconds, from a short trial.

    The trial compiles what the run needs and leaves the agent unchanged.
    """
    variables = agent_variables(parts)
    saved = values(variables)
    states = {name: rng.bit_generator.state for name, rng in parts.generators.items()}
    step_seconds, learning_seconds = parts.seconds(config, blank_batch(config, parts.spec))
    assign(variables, saved)
    for name, rng in parts.generators.items():
        rng.bit_generator.state = states[name]
    return _forecast(config, start_frames, step_seconds, learning_seconds)


def _forecast(
    config: Config, start_frames: int, step_seconds: float, learning_seconds: float
) -> tuple[float, float]:
    frames = config.frames - start_frames
    history = min(max(0, config.min_history_frames - start_frames), frames)
    evaluations = frames // config.eval_period_frames if config.eval_period_frames else 0
    seconds = (
        config.steps(history) * step_seconds
        + config.steps(frames - history) * learning_seconds
        + evaluations * config.steps(config.eval_frames) * step_seconds
    )
    return config.frames_per_step / learning_seconds, seconds


def blank_batch(config: Config, spec: EnvironmentSpec) -> Batch:
    """A batch of zeros, to measure and compile with."""
    size = config.batch_size
    blank = np.zeros((size, spec.frame_stack, *spec.frame_shape), spec.frame_dtype)
    return Batch(
        observation_tm1=blank,
        action_tm1=np.zeros(size, np.int32),
        reward_t=np.zeros(size, np.float32),
        discount_t=np.zeros(size, np.float32),
        observation_t=blank,
        weight=np.ones(size, np.float32),
    )


class ProgressBar:
    """Frames done, frames per second, time left and the last returns."""

    def __init__(self, frames: int, start_frames: int):
        self._bar = progress_bar(total=frames, initial=start_frames, unit="frame", unit_scale=True)

    def show(self, frames: int, metrics: Metrics) -> None:
        """Moves the bar to a number of frames."""
        self._bar.update(min(frames, self._bar.total) - self._bar.n)
        if metrics.recent:
            last = " ".join(f"{episode.score:g}" for episode in list(metrics.recent)[-3:])
            mean = metrics.return_mean(100)
            self._bar.set_postfix_str(f"mean {mean:.1f}, last {last}", refresh=False)

    def show_evaluation(self, played: int, planned: int) -> None:
        """Shows the progress of an evaluation, as often as the bar moves."""
        if time.time() - self._bar.last_print_t >= self._bar.mininterval:
            self._bar.set_postfix_str(f"evaluation: {played:,} of about {planned:,} frames")
            self._bar.last_print_t = time.time()

    def close(self) -> None:
        """Closes the bar."""
        self._bar.close()
