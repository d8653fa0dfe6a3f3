"""Human-normalised scores and published scores."""

import csv
import functools
from importlib import resources
from typing import NamedTuple, TypeVar

import numpy as np

REGIMES = ("noop", "human")
# The medians over 57 games that the paper prints, in percent, for no-op starts and human starts.
PRINTED_MEDIANS: dict[str, tuple[float | None, float]] = {
    "dqn": (79, 68),
    "a3c": (None, 116),
    "ddqn": (117, 110),
    "prioritized_ddqn": (140, 128),
    "dueling_ddqn": (151, 117),
    "distributional_dqn": (164, 125),
    "noisy_dqn": (118, 102),
    "rainbow": (223, 153),
}

Scores = TypeVar("Scores", float, np.ndarray)


class Reference(NamedTuple):
    """What a random player and a human score in a game."""

    random: float
    human: float

    def percent(self, scores: Scores) -> Scores:
        """Scores with random at 0 and human at 100."""
        # The absolute value: in human starts, video_pinball's human is below random.
        return 100 * (scores - self.random) / abs(self.human - self.random)


@functools.cache
def references(regime: str) -> dict[str, Reference]:
    """The references of 57 games, for starts after no-ops or from human play."""
    return {
        row["game"]: Reference(float(row[f"random_{regime}"]), float(row[f"human_{regime}"]))
        for row in _rows("reference_scores")
    }


def published(publication: str, regime: str) -> dict[str, dict[str, float]]:
    """Scores by agent and game of the Rainbow paper, or after 400K frames (no-op starts only)."""
    if publication == "dopamine" or (publication, regime) == ("atari100k", "human"):
        return {}
    rows = _rows(f"{publication}_{regime}")
    _, *agents = rows[0]
    return {agent: {row["game"]: float(row[agent]) for row in rows} for agent in agents}


class Point(NamedTuple):
    """A point of Dopamine's curves: training returns with sticky actions."""

    frames: float
    mean: float
    deviation: float
    seeds: int


def dopamine_curves(game: str) -> dict[str, list[Point]]:
    """Dopamine's curves in a game, by agent."""
    found: dict[str, list[Point]] = {}
    for row in _rows("dopamine_early_curves"):
        if row["game"] == game:
            frames, mean, deviation = (float(row[name]) for name in ("frames_M", "mean", "sd"))
            point = Point(1e6 * frames, mean, deviation, int(row["seeds"]))
            found.setdefault(row["agent"], []).append(point)
    return found


@functools.cache
def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("rainbow_tf.scoring") / f"data/{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
