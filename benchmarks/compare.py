"""Compares our speed with a peer's: make bench-compare PEER=pfrl, or PEER=torch.

With a library, a cycle is four agent steps on the real game and one update, with the paper's
settings. With torch, it is an update of a lean PyTorch agent of our own, for three networks. Both
sides are measured alternately; the peer runs in its own process and virtual environment.
"""

import dataclasses
import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.process import load_tensorflow
from rainbow_tf.types import EnvironmentSpec

CYCLES = 20
ROUNDS = 15
ATARI = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 6, ())
MINATAR = EnvironmentSpec((10, 10, 4), np.dtype(bool), 1, 6, ())


def seconds(cycle: Callable[[], object]) -> Callable[[], float]:
    """A function that runs the cycles and returns the seconds of one."""

    def run() -> float:
        started = time.perf_counter()
        for _ in range(CYCLES):
            cycle()
        return (time.perf_counter() - started) / CYCLES

    return run


def our_cycles(game: str) -> Callable[[], object]:
    """Four steps of the game and an update."""
    from rainbow_tf.training.build import build_parts
    from rainbow_tf.training.loop import train

    config = Config(game=game, eval_period_frames=0)
    ticks = train(config, build_parts(dataclasses.replace(config, min_history_frames=4_000)))
    next(tick for tick in ticks if tick.results)
    return functools.partial(next, ticks)


def our_updates(network: str) -> Callable[[], object]:
    """An update of a network."""
    from rainbow_tf.training.build import make_learner
    from rainbow_tf.training.progress import blank_batch

    spec = MINATAR if network == "minatar" else ATARI
    config = Config(environment="any", network=network, frame_stack=spec.frame_stack)
    learner = make_learner(config, spec, online_seed=1, target_seed=2)
    batch = blank_batch(config, spec)
    noise = np.random.default_rng(1).integers(256, size=batch.observation_t.shape)
    noise = (noise if spec is ATARI else noise % 2).astype(spec.frame_dtype)
    batch = batch._replace(observation_tm1=noise, observation_t=noise[::-1].copy())
    return functools.partial(learner.update, batch)


def peer(python: str, name: str, *arguments: str) -> Callable[[], float]:
    """A function that lets the peer run its cycles and returns the seconds of one."""
    script = Path(__file__).parent / f"peer_{name}.py"
    process = subprocess.Popen(
        [python, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        sys.exit(f"{script} did not start; its message is above.")

    def run() -> float:
        print("go", file=process.stdin, flush=True)
        return float(process.stdout.readline())

    return run


def compare(what: str, name: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
    """Prints the median times and the quartiles of their ratio."""
    theirs(), ours()
    rounds = np.array([(ours(), theirs()) for _ in range(ROUNDS)])
    low, median, high = np.percentile(rounds[:, 1] / rounds[:, 0], [25, 50, 75])
    mine, other = np.median(rounds, axis=0) * 1e3
    print(f"{what}: rainbow_tf {mine:.1f} ms, {name} {other:.1f} ms")
    print(f"rainbow_tf is {median:.2f} times as fast (quartiles {low:.2f} to {high:.2f})")


def main() -> None:
    """Compares with the named peer."""
    python, name, game, threads = sys.argv[1:]
    load_tensorflow(int(threads))
    if name != "torch":
        theirs = peer(python, name, game, str(CYCLES))
        compare(f"four steps of {game} and an update", name, seconds(our_cycles(game)), theirs)
        return
    for network in ("nature", "data_efficient", "minatar"):
        theirs = peer(python, name, network, str(CYCLES), threads)
        what = f"an update of {network} with --threads={threads}"
        compare(what, name, seconds(our_updates(network)), theirs)


if __name__ == "__main__":
    main()
