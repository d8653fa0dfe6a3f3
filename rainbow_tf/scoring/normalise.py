"""Human-normalised scores and published scores."""

import csv
import functools
from importlib import resources
from typing import NamedTuple, TypeVar

import numpy as np

_COLUMNS = {"noop": "noop", "human": "human_starts"}
REGIMES = tuple(_COLUMNS)

# The paper's agents: the column of its tables, and the medians over 57 games that it prints, in
# percent, for no-op starts and human starts.
_PAPER: dict[str, tuple[str, float | None, float]] = {
    "dqn": ("DQN", 79, 68),
    "a3c": ("A3C", None, 116),
    "ddqn": ("DDQN", 117, 110),
    "prioritized_ddqn": ("Prior. DDQN", 140, 128),
    "dueling_ddqn": ("Duel. DDQN", 151, 117),
    "distributional_dqn": ("Distrib. DQN", 164, 125),
    "noisy_dqn": ("Noisy DQN", 118, 102),
    "rainbow": ("Rainbow", 223, 153),
}
PRINTED_MEDIANS = {agent: medians for agent, (_, *medians) in _PAPER.items()}
# BBF's sticky-action column is left out: the others have no sticky actions.
_ATARI100K_COLUMNS = {
    "DER_van_Hasselt_2019": "n20_data_efficient",
    "SimPLe_Kaiser_2019": "simple",
    "DrQ_eps_100runs": "drq_eps_n10",
    "SPR_100runs": "spr",
    "IRIS_5runs": "iris",
    "EfficientZero": "efficient_zero",
    "BBF_RR8": "bbf",
}
_DOPAMINE_AGENTS = {"Rainbow": "rainbow", "DQN": "dqn", "C51": "distributional_dqn"}

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
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}; there are {', '.join(REGIMES)}")
    column = _COLUMNS[regime]
    return {
        row["game"]: Reference(float(row[f"random_{column}"]), float(row[f"human_{column}"]))
        for row in _rows("reference_scores.csv")
    }


def human_normalised(game: str, score: float, regime: str) -> float | None:
    """A score in percent of human, in regime noop or human; None without a reference."""
    reference = references(regime).get(game)
    return None if reference is None else reference.percent(score)


def published(publication: str, regime: str) -> dict[str, dict[str, float]]:
    """Scores by agent and game of the Rainbow paper, or after 400K frames (no-op starts only)."""
    if publication == "paper":
        rows = _rows(f"rainbow_paper_{_COLUMNS[regime]}.csv")
        columns = {column: agent for agent, (column, *_) in _PAPER.items()}
    elif publication == "atari100k" and regime == "noop":
        later = {row["game"]: row for row in _rows("atari100k_published.csv")}
        rows = [row | later[_joined(row["game"])] | row for row in _rows("atari100k_der.csv")]
        columns = _ATARI100K_COLUMNS
    else:
        return {}
    return {
        agent: {row["game"]: float(row[column]) for row in rows}
        for column, agent in columns.items()
        if column in rows[0]
    }


class Point(NamedTuple):
    """A point of Dopamine's curves: training returns with sticky actions."""

    frames: float
    mean: float
    deviation: float
    seeds: int


def dopamine_curves(game: str) -> dict[str, list[Point]]:
    """Dopamine's curves in a game, by our names of its agents."""
    found: dict[str, list[Point]] = {}
    for row in _rows("dopamine_early_curves.csv"):
        if row["game"] == _joined(game):
            frames, mean, deviation = (float(row[name]) for name in ("frames_M", "mean", "sd"))
            point = Point(1e6 * frames, mean, deviation, int(row["seeds"]))
            found.setdefault(_DOPAMINE_AGENTS[row["agent"]], []).append(point)
    return found


def _joined(game: str) -> str:
    """A game as other projects write it: bankheist for bank_heist."""
    return game.replace("_", "")


@functools.cache
def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("rainbow_tf.scoring") / "data" / name).read_text()
    return list(csv.DictReader(text.splitlines()))
