"""Phrases that chapters and figures share."""

from collections import Counter
from collections.abc import Iterable

from rainbow_tf.scoring.runs import Run
from rainbow_tf.scoring.study import EndScores

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


def sources(scores: EndScores) -> str:
    """Where end scores come from."""
    return " and ".join(sorted({end.source for ends in scores.values() for end in ends}))


def seed_counts(runs: Iterable[Run]) -> list[int]:
    """The number of seeds of each agent in each environment."""
    return list(Counter((run.agent, run.environment) for run in runs).values())


def game_noun(runs: Iterable[Run]) -> str:
    """What the runs were trained on: `game` for Atari alone."""
    return "game" if all(run.is_atari for run in runs) else "environment"


def made_of(runs: list[Run], *more: str, window: int = 1) -> str:
    """What a figure was made of: games, seeds, smoothing, whatever more, protocols."""
    games = number_of(game_noun(runs), [len({run.environment for run in runs})])
    parts = [f"{games}, {number_of('seed', seed_counts(runs))} each"]
    if window > 1:
        parts.append(f"moving average over {window} points")
    kinds = {
        run.curve.protocol + (" in training" if run.curve.is_training else "")
        for run in runs
        if len(run.curve.frames)
    }
    return " · ".join([*parts, *more, ", ".join(sorted(kinds))])
