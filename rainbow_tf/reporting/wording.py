"""Phrases that chapters and figures share."""

from collections.abc import Iterable

from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run

_STARTS = {
    "noop": "no-op starts",
    "human": "human starts",
    "policy": "starts recorded by a policy, not by people",
    "random": "starts recorded by a random player, not by people",
}


def number_of(noun: str, counts: Iterable[int]) -> str:
    """Such as `1 game` or `2 to 5 seeds`."""
    ordered = sorted(counts)
    low, high = ordered[0], ordered[-1]
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} {noun}{'s' if high != 1 else ''}"


def short(number: float) -> str:
    """A number for an axis: 12K, 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "K")):
        if abs(number) >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"


def protocol_title(protocol: str) -> str:
    """A protocol in words."""
    rules, _, starts = protocol.partition("/")
    title = _STARTS.get(starts, protocol)
    return f"{title}, sticky actions" if rules == "sticky" else title


def seed_counts(runs: Iterable[Run]) -> list[int]:
    """The number of seeds of each agent in each environment."""
    return [
        len(group)
        for of_agent in study.by_agent(runs).values()
        for group in study.by_environment(of_agent).values()
    ]


def game_noun(runs: Iterable[Run]) -> str:
    """What the runs were trained on: `game` for Atari alone."""
    is_atari = all(study.has_reference(run.environment) for run in runs)
    return "game" if is_atari else "environment"


def made_of(runs: list[Run], *more: str) -> str:
    """What a figure was made of: games, seeds, whatever more, protocols."""
    games = number_of(game_noun(runs), [len({run.environment for run in runs})])
    kinds = {
        run.curve.protocol + (" in training" if run.curve.is_training else "")
        for run in runs
        if len(run.curve.frames)
    }
    seeds = f"{number_of('seed', seed_counts(runs))} each"
    parts = [f"{games}, {seeds}", *more, ", ".join(sorted(kinds))]
    return " · ".join(part for part in parts if part)


def smoothing(window: int) -> str:
    """How curves were smoothed, if they were."""
    return f"moving average over {window} points" if window > 1 else ""
