"""Medians over games and games at each threshold, over time (figures 1 to 3 of the paper)."""

from collections.abc import Mapping

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import Look, panels, styles
from rainbow_tf.reporting.figures import Line
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.wording import made_of, short
from rainbow_tf.scoring import study
from rainbow_tf.scoring.aggregate import THRESHOLDS, moving_average
from rainbow_tf.scoring.runs import Run

_SMOOTH = 5  # points, as in the paper
Grids = dict[str, study.Grid]


def window(points: int, length: int) -> int:
    """A smoothing window that keeps the shape of short curves."""
    return max(1, min(points, length // 10))


def write(page: Page, runs: list[Run]) -> None:
    """Writes both chapters, if any agent played two games or more."""
    look = styles({run.agent for run in runs})
    found = {name: study.percent_grid(of) for name, of in study.by_agent(runs).items()}
    for name in look:
        if not len(found[name].frames):
            page.text(f"The runs of {look[name].label} have no frames in common.", "warning")
    grids = {name: found[name] for name in look if len(found[name].frames)}
    if max((len(grid.games) for grid in grids.values()), default=0) < 2:
        return
    size = window(_SMOOTH, min(len(grid.frames) for grid in grids.values()))
    note = made_of(runs, window=size)
    _medians(page, grids, look, size, note)
    _thresholds(page, grids, look, size, note)


def _medians(page: Page, grids: Grids, look: Look, size: int, note: str) -> None:
    medians = {
        name: Line(grid.frames[size - 1 :], moving_average(np.median(grid.scores, axis=0), size))
        for name, grid in grids.items()
    }
    page.chapter("Median score over time")
    if max(len(line.frames) for line in medians.values()) == 1:
        listed = "; ".join(
            f"{look[name].label} {line.values[0]:.1f} % of human after {short(line.frames[0])} "
            "frames"
            for name, line in medians.items()
        )
        page.text(f"There is one evaluation, so no curve. Median score: {listed}.")
        return
    page.figure(
        "median_curves",
        "Median over games of the human-normalised score, averaged over seeds in each game first "
        "(figures 1 and 3 of the paper).",
        figures.median_curves(panels(medians), look),
        note=note,
    )
    if "rainbow" in medians and len(medians) > 1:
        page.text(_milestones(medians, look))
    if len({grid.games for grid in grids.values()}) > 1:
        listed = ", ".join(f"{look[name].label} {len(grid.games)}" for name, grid in grids.items())
        page.text(
            "Agents did not play the same games, so their medians differ for that reason too; "
            f"number of games: {listed}.",
            "warning",
        )
    rows = [
        {"agent": look[name].label, "million frames": frame / 1e6, "median (% of human)": value}
        for name, line in medians.items()
        for frame, value in zip(line.frames.tolist(), line.values.tolist(), strict=True)
    ]
    page.table("median_curves", "The numbers of this figure.", rows, digits=3, is_folded=True)


def _thresholds(page: Page, grids: Grids, look: Look, size: int, note: str) -> None:
    reached = {}
    for level in THRESHOLDS:
        lines = {}
        for name, grid in grids.items():
            scores = moving_average(grid.scores, size)  # [G, T]
            lines[name] = Line(grid.frames[size - 1 :], np.sum(scores >= level, axis=0))
        if any(line.values.any() for line in lines.values()):
            reached[level] = panels(lines)
    page.chapter("Games at each level of human performance")
    if not reached:
        page.text(f"No agent reaches {THRESHOLDS[0]} % of human in any game during training.")
        return
    if max(len(grid.frames) for grid in grids.values()) == size:
        page.text("There is one evaluation, so no curve; the table of end scores has the counts.")
        return
    most = max(len(grid.games) for grid in grids.values())
    page.figure(
        "thresholds",
        "Number of games in which an agent reaches a level, over time (figure 2 of the paper).",
        figures.threshold_curves(reached, look, num_games=most),
        note=note,
    )
    others = [f"{level} %" for level in THRESHOLDS if level not in reached]
    if others:
        page.text(f"No agent reaches {' or '.join(others)} in any game during training.")


def _milestones(medians: Mapping[str, Line], look: Look) -> str:
    """When Rainbow reaches DQN and the best of the others, as the paper reports it."""
    rainbow = medians["rainbow"]
    best = {name: line.values.max() for name, line in medians.items() if name != "rainbow"}
    highest = max(best, key=lambda name: best[name])
    text = f"Rainbow ends at a median of {rainbow.values[-1]:.0f} % of human."
    for name in [name for name in best if name in {"dqn", highest}]:
        whose = f"{look[name].label} at its best ({best[name]:.0f} %)"
        if name == highest and len(best) > 1:
            whose = f"the best of all others, {look[name].label} ({best[name]:.0f} %)"
        above = np.flatnonzero(rainbow.values >= best[name])
        if len(above):
            text += f" It reaches {whose} after {short(rainbow.frames[above[0]])} frames."
        else:
            text += f" It does not reach {whose}."
    return text
