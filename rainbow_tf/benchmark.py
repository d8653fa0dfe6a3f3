"""Measures the speed of the agent on this machine: python -m rainbow_tf.benchmark.

Every figure is a median with quartiles. Things that are compared are measured alternately in one
process, so that a machine that slows down affects both sides.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import itertools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from absl import flags

from rainbow_tf.command import ALL_SETTINGS, Command, Flag, settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.process import load_tensorflow
from rainbow_tf.replay.replay import Replay, make_replay, replay_bytes
from rainbow_tf.runs.folder import RunFolder
from rainbow_tf.types import Counters, EnvironmentSpec

ATARI_SPEC = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 6, ())
_PAPER_FRAMES = 200_000_000


class Figure(NamedTuple):
    """A measurement."""

    name: str
    unit: str
    samples: np.ndarray | list[float]


def seconds_in_turns(repeats: int, *actions: Callable[[], object]) -> np.ndarray:
    """Seconds per action, measured alternately: [actions, repeats]."""
    for action in actions:
        action()
    seconds = np.empty((len(actions), repeats))
    for k, (i, action) in itertools.product(range(repeats), enumerate(actions)):
        started = time.perf_counter()
        action()
        seconds[i, k] = time.perf_counter() - started
    return seconds


def measure_learner(config: Config, repeats: int) -> Iterator[Figure]:
    """The update of the full network, absolute and relative to the matmul rate."""
    import tensorflow as tf

    learner, batch = _learner_and_batch(config)
    size = 1536
    matrix = tf.random.stateless_uniform((size, size), [1, 2])
    matmul = tf.function(lambda: tf.matmul(matrix, matrix))
    seconds = seconds_in_turns(repeats, lambda: matmul().numpy(), lambda: learner.update(batch))
    matmul_rate = 2 * size**3 / seconds[0] / 1e9
    yield Figure("float32 matmul", "GFLOP/s", matmul_rate)
    yield Figure("learner step", "ms", seconds[1] * 1e3)
    if config.network == "impala" or config.has_quantiles or config.munchausen:
        return  # `update_flops` does not count these
    flops = update_flops(learner.online, config.batch_size, double=config.double)
    update_rate = flops / seconds[1] / 1e9
    yield Figure(f"learner step at {flops / 1e9:.2f} GFLOP", "GFLOP/s", update_rate)
    yield Figure("learner step, share of matmul", "%", 100 * update_rate / matmul_rate)


def update_flops(network, batch_size: int, *, double: bool) -> float:
    """Minimum arithmetic of one update: the forward passes and one backward pass."""
    side = ATARI_SPEC.frame_shape[0]
    macs = []  # multiplications per example in each layer
    for layer in network.torso.convolutions:
        side = (side - layer.kernel_size[0]) // layer.strides[0] + 1
        macs.append(side**2 * int(np.prod(layer.kernel.shape)))
    macs += [int(np.prod(layer.kernel.shape)) for layer in network.head._layers]
    passes = 3 if double else 2
    # The backward pass has two products per layer, one for the first: its inputs need no gradient.
    return 2.0 * batch_size * (passes * sum(macs) + 2 * sum(macs) - macs[0])


def measure_acting(config: Config, repeats: int) -> Iterator[Figure]:
    """Choosing actions for several lanes at once."""
    learner, batch = _learner_and_batch(config)
    lanes = (1, 4, 8, 32)
    actions = [_acting(config, learner, batch.observation_t[:count], noise=True) for count in lanes]
    seconds = seconds_in_turns(repeats, *actions)
    for count, samples in zip(lanes, seconds, strict=True):
        yield Figure(f"acting, {count} lanes", "ms", samples * 1e3)
    yield Figure("8 single calls against one of 8 lanes", "times", 8 * seconds[0] / seconds[2])


def measure_environment(config: Config, repeats: int) -> Iterator[Figure]:
    """Steps of the environment without an agent."""
    for lanes in (1, 4, 8, 16):
        with contextlib.closing(_random_play(config, lanes)) as frames:
            (seconds,) = seconds_in_turns(repeats, functools.partial(_advance, frames, 20))
        yield Figure(f"environment, {lanes} lanes", "steps/s", 20 * lanes / seconds)


def measure_replay(config: Config, repeats: int) -> Iterator[Figure]:
    """Full replays of three sizes, and a compressed one."""
    capacities = (10_000, 100_000, 1_000_000)
    play = _recorded_play(config)
    filled = [_full_replay(config, capacity, play) for capacity in capacities]
    before = psutil.Process().memory_info().rss
    filled.append(_full_replay(config, 100_000, play, compression="lz4"))
    compressed_bytes = (psutil.Process().memory_info().rss - before) / 100_000
    names = [*(f"{capacity:,} slots" for capacity in capacities), "100,000 slots, lz4"]
    adds = [functools.partial(add, 20) for _, add in filled]
    for name, samples in zip(names, seconds_in_turns(repeats, *adds), strict=True):
        yield Figure(f"replay add, {config.num_envs} lanes, {name}", "ms", samples * 50)
    rng = np.random.default_rng(1)
    ids: np.ndarray

    def sample(replay: Replay) -> None:
        nonlocal ids
        ids, _ = replay.sample(0.4)

    def update(replay: Replay) -> None:
        replay.update_priorities(ids, rng.random(len(ids)))

    actions = [functools.partial(act, replay) for replay, _ in filled for act in (sample, update)]
    seconds = seconds_in_turns(20 * repeats, *actions)
    for name, sampling, updating in zip(names, seconds[::2], seconds[1::2], strict=True):
        yield Figure(f"replay sample, {name}", "ms", sampling * 1e3)
        yield Figure(f"replay update, {name}", "ms", updating * 1e3)
    small, _, large, _ = seconds[::2] + seconds[1::2]
    yield Figure("replay sample and update, 1,000,000 slots", "ms", large * 1e3)
    yield Figure("the same against 10,000 slots", "times", large / small)
    yield Figure("replay memory", "bytes/step", [replay_bytes(1, ATARI_SPEC)])
    yield Figure("replay memory, lz4", "bytes/step", [compressed_bytes])


def _full_replay(
    config: Config, capacity: int, play: list[np.ndarray], *, compression: str = "none"
) -> tuple[Replay, Callable[[int], None]]:
    """A full replay, and a function that adds more steps."""
    config = dataclasses.replace(config, prioritized=True, replay_compression=compression)
    replay = make_replay(config, ATARI_SPEC, capacity=capacity, rng=np.random.default_rng(1))
    add = _adder(config, replay, play)
    add(capacity // config.num_envs)
    return replay, add


def _adder(config: Config, replay: Replay, play: list[np.ndarray]) -> Callable[[int], None]:
    """A function that adds steps of the recorded play, repeated, in episodes of 500."""
    frames, times = itertools.cycle(play), itertools.cycle(range(500))
    lanes = config.num_envs
    nothing, no, yes = np.zeros(lanes), np.zeros(lanes, bool), np.ones(lanes, bool)
    discount = np.full(lanes, config.discount)

    def add(steps: int) -> None:
        for t in itertools.islice(times, steps):
            replay.add(
                frame=next(frames),
                action_tm1=nothing,
                reward_t=nothing,
                discount_t=discount,
                episode_over=yes if t == 499 else no,
                is_first=yes if t == 0 else no,
            )

    return add


def measure_agent(config: Config, repeats: int) -> Iterator[Figure]:
    """The whole agent on the real game, and its learner alone in the same process."""
    started = time.perf_counter()
    config = dataclasses.replace(config, min_history_frames=1_600, eval_period_frames=0)
    parts, ticks = _learning(config)
    yield Figure("time to first update", "s", [time.perf_counter() - started])
    _, batch = parts.replay.sample(0.4)
    play = functools.partial(_advance, ticks, 10)
    agent, learner = seconds_in_turns(repeats, play, lambda: parts.learner.update(batch))
    frames = 10 * config.num_envs * config.frames_per_step
    updates = 10 * config.num_envs * config.updates_per_step
    yield Figure("whole agent", "frames/s", frames / agent)
    yield Figure("whole agent, a cycle of one update", "ms", agent / updates * 1e3)
    yield Figure("whole agent against its learner alone", "%", 100 * updates * learner / agent)
    days = _PAPER_FRAMES / (frames / agent) / 86400
    yield Figure(f"{_PAPER_FRAMES // 10**6}M frames would take", "days", days)
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes on macOS, kilobytes elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield Figure("peak memory", "MB", [peak / unit])


def measure_minatar(config: Config, repeats: int) -> Iterator[Figure]:
    """A small network, where the overhead per call matters."""
    if importlib.util.find_spec("minatar") is None:
        return
    from rainbow_tf.training.loop import learn

    small = Config(environment="MinAtar/Breakout-v1", replay_capacity=100_000, frames=10**7)
    parts, ticks = _learning(dataclasses.replace(small, min_history_frames=2_000))
    update, cycle = seconds_in_turns(
        10 * repeats, lambda: learn(parts.replay, parts.learner, 0.4), lambda: next(ticks)
    )
    yield Figure("MinAtar update with sampling", "ms", update * 1e3)
    yield Figure("MinAtar, four steps and an update", "ms", cycle * 1e3)


def measure_checkpoint(config: Config, repeats: int) -> Iterator[Figure]:
    """Saving a run with a full replay, at first and after a period, and restoring it."""
    seconds = {}
    for capacity in (100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            run = dataclasses.replace(config, replay_capacity=capacity, run_dir=folder)
            seconds[capacity] = yield from _measure_saves(run, repeats)
    ratio = seconds[1_000_000] / seconds[100_000]
    yield Figure("a period's checkpoint at 1,000,000 against 100,000", "times", ratio)


def _measure_saves(config: Config, repeats: int) -> Generator[Figure, None, np.ndarray]:
    """Figures of one replay capacity; returns the seconds of the checkpoints after a period."""
    from rainbow_tf.training.checkpoint import agent_variables, restore
    from rainbow_tf.training.run import Run

    quiet, folder = io.StringIO(), RunFolder(config)  # quiet: no table, no progress bar
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        run = Run(config, folder, None, is_stopping=lambda: False)
        run.begin()
    parts, store = run.parts, folder.store
    rng = np.random.default_rng(1)
    for variable in agent_variables(parts).values():
        if "float" in variable.dtype:  # random, as after training: zeros would compress
            variable.assign(rng.normal(size=variable.shape))

    def save() -> tuple[float, float]:
        run.reached = Counters(run.reached.steps + 1, 0)
        started = time.perf_counter()
        run.save()
        seconds = time.perf_counter() - started
        newest = store.folder / f"{store.numbers()[-1]:06d}"
        return seconds, sum(path.stat().st_size for path in newest.iterdir()) / 1e6

    capacity = config.replay_capacity
    assert isinstance(parts.replay, Replay)
    add = _adder(config, parts.replay, _recorded_play(config))
    add(capacity // config.num_envs)
    seconds, megabytes = save()
    yield Figure(f"checkpoint, all of {capacity:,} steps", "s", [seconds])
    yield Figure(f"checkpoint, all of {capacity:,} steps", "MB", [megabytes])
    saves = []
    for _ in range(max(3, repeats // 10)):
        add(config.steps(config.checkpoint_period_frames) // config.num_envs)
        saves.append(save())
    period_seconds, sizes = np.array(saves).T
    yield Figure(f"checkpoint, a period's steps of {capacity:,}", "s", period_seconds)
    yield Figure(f"checkpoint, a period's steps of {capacity:,}", "MB", sizes)
    started = time.perf_counter()
    newest, _ = store.newest_whole()
    assert newest is not None
    restore(parts, store, newest)
    yield Figure(f"restoring {capacity:,} steps", "s", [time.perf_counter() - started])
    run.close()
    return period_seconds


def measure_serving(config: Config, repeats: int) -> Iterator[Figure]:
    """The exported policy in this process, compared with the compiled actor."""
    from rainbow_tf.export.client import SavedModelPolicy
    from rainbow_tf.export.saved_model import export_policy

    learner, batch = _learner_and_batch(config)
    with tempfile.TemporaryDirectory() as folder:
        export_policy(
            learner.online,
            config=config,
            spec=ATARI_SPEC._replace(action_meanings=("?",) * ATARI_SPEC.num_actions),
            output_dir=Path(folder),
        )
        policy = SavedModelPolicy(folder)
        stacks = np.concatenate([batch.observation_t] * 2)
        images = np.ascontiguousarray(np.moveaxis(stacks, 1, 3))
        for size in (1, 8, 64):
            acting, serving = seconds_in_turns(
                3 * repeats,
                _acting(config, learner, stacks[:size], noise=False),
                functools.partial(policy.predict, {"observations": images[:size]}),
            )
            yield Figure(f"served policy, batch {size}", "ms", serving * 1e3)
            yield Figure(f"served policy, batch {size}", "answers/s", size / serving)
            yield Figure(f"the same against the compiled actor, {size}", "times", serving / acting)


def _random_play(config: Config, lanes: int) -> Generator[np.ndarray, None, None]:
    """Newest frames [E, 84, 84] of random play without end."""
    rng = np.random.default_rng(1)
    environment = make_environment(config, num_envs=lanes, seed=1)
    with contextlib.closing(environment):
        environment.reset()
        while True:
            actions = rng.integers(environment.spec.num_actions, size=lanes)
            yield environment.step(actions).observation[:, -1]


def _recorded_play(config: Config) -> list[np.ndarray]:
    with contextlib.closing(_random_play(config, config.num_envs)) as frames:
        return list(itertools.islice(frames, 2_000))


def _advance(iterator: Iterator, steps: int) -> None:
    for _ in itertools.islice(iterator, steps):
        pass


def _learning(config: Config):
    """The parts of a run that has made its first update, and the ticks that follow."""
    from rainbow_tf.training.build import build_parts
    from rainbow_tf.training.loop import train

    parts = build_parts(config)
    ticks = train(config, parts)
    next(tick for tick in ticks if tick.results)
    return parts, ticks


def _learner_and_batch(config: Config):
    from rainbow_tf.training.build import make_learner
    from rainbow_tf.training.progress import blank_batch

    batch = blank_batch(config, ATARI_SPEC)
    noise = np.random.default_rng(1).integers(256, size=batch.observation_t.shape, dtype=np.uint8)
    batch = batch._replace(observation_tm1=noise, observation_t=noise[::-1].copy())
    return make_learner(config, ATARI_SPEC, online_seed=1, target_seed=2), batch


def _acting(config: Config, learner, observation: np.ndarray, *, noise: bool) -> Callable:
    """A newly compiled function that chooses actions for an observation."""
    from rainbow_tf.runs.weights import make_policy

    rng = np.random.default_rng(1)
    policy = make_policy(config, learner.online, noise=noise, rng=rng)
    return functools.partial(policy.act, observation)


SECTIONS: dict[str, Callable[[Config, int], Iterator[Figure]]] = {
    "learner": measure_learner,
    "acting": measure_acting,
    "environment": measure_environment,
    "agent": measure_agent,
    "minatar": measure_minatar,
    "replay": measure_replay,
    "checkpoint": measure_checkpoint,
    "serving": measure_serving,
}


def run(values: flags.FlagValues) -> None:
    """Runs the sections, prints every figure, and writes them to --out."""
    names = values.only.split(",") if values.only else list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise ConfigError(f"--only={unknown[0]} is unknown; choose from {', '.join(SECTIONS)}.")
    config = settings(values)
    load_tensorflow()
    rows = []
    for name in names:
        for figure, unit, samples in SECTIONS[name](config, values.repeats):
            low, median, high = np.percentile(samples, [25, 50, 75]).tolist()
            rows.append({"name": figure, "unit": unit, "median": median, "low": low, "high": high})
            value = f"{median:>10,.4g} {unit:<10}"
            print(f"{figure:<44} {value} ({low:,.4g} to {high:,.4g})", flush=True)
    if values.out is not None:
        Path(values.out).write_text(json.dumps(rows, indent=2) + "\n")


COMMAND = Command(
    settings=ALL_SETTINGS,
    options={
        "game": Flag("qbert", "Atari game to play."),
        "only": Flag(None, f"Sections to run: {','.join(SECTIONS)}; default: all."),
        "out": Flag(None, "File to write the figures to."),
        "repeats": Flag(30, "Measurements per figure.", minimum=3, maximum=100_000),
    },
    run=run,
    example="give --only=learner, for example",
    interrupted="interrupted; no figures were written.",
)

if __name__ == "__main__":
    COMMAND.main()
