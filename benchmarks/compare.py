"""Compares our training speed with another library's: make bench-compare PEER=pfrl.

A cycle is four agent steps on the real game and one update, with the paper's settings. The two are
measured alternately; the other library runs in its own process and virtual environment.
"""

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.process import load_tensorflow

CYCLES = 20
ROUNDS = 15


def our_cycles(game: str) -> Callable[[], float]:
    """A function that runs our cycles and returns the seconds per cycle."""
    load_tensorflow()
    from rainbow_tf.training.build import build_parts
    from rainbow_tf.training.loop import train

    config = Config(game=game, eval_period_frames=0)
    ticks = train(config, build_parts(dataclasses.replace(config, min_history_frames=4_000)))
    next(tick for tick in ticks if tick.results)

    def run() -> float:
        started = time.perf_counter()
        for _ in range(CYCLES):
            next(ticks)
        return (time.perf_counter() - started) / CYCLES

    return run


def peer_cycles(python: str, peer: str, game: str) -> Callable[[], float]:
    """A function that runs the cycles of the other library and returns the seconds per cycle."""
    script = Path(__file__).parent / f"peer_{peer}.py"
    process = subprocess.Popen(
        [python, str(script), game, str(CYCLES)],
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


def main() -> None:
    """Prints the median times and the quartiles of their ratio."""
    python, peer, game = sys.argv[1:]
    theirs, ours = peer_cycles(python, peer, game), our_cycles(game)
    theirs(), ours()
    rounds = np.array([(ours(), theirs()) for _ in range(ROUNDS)])
    ratios = rounds[:, 1] / rounds[:, 0]
    low, median, high = np.percentile(ratios, [25, 50, 75])
    mine, other = np.median(rounds, axis=0) * 1e3
    print(f"four steps of {game} and an update: rainbow_tf {mine:.1f} ms, {peer} {other:.1f} ms")
    print(f"rainbow_tf is {median:.2f} times as fast (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
