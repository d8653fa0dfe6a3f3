"""The effect of removing each component of Rainbow (figure 4 of the paper)."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import ABLATIONS, styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row
from rainbow_tf.reporting.wording import made_of
from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run


def write(page: Page, runs: list[Run]) -> None:
    """Writes the waterfall, if there are Rainbow, DQN and an ablation on the same game."""
    drops = study.ablation_drops(runs, ABLATIONS)
    if not drops.agents and not drops.omitted:
        return
    page.chapter("The effect of each component")
    if drops.omitted:
        page.text(
            f"Left out, because DQN's area is not below Rainbow's: {', '.join(drops.omitted)}."
        )
    if not drops.agents:
        return
    look = styles(drops.agents)
    agents = {"rainbow", "dqn", *drops.agents}
    chosen = [r for r in runs if r.agent in agents and r.environment in drops.environments]
    page.figure(
        "ablations",
        "Change of the area under the learning curve when a component is removed from Rainbow: "
        "0 % is Rainbow, -100 % is DQN. The largest drop of each game is in full colour (figure 4 "
        "of the paper).",
        figures.waterfall(drops, look),
        note=made_of(chosen),
    )
    medians = np.nanmedian(drops.change, axis=1)
    worst = int(np.argmin(medians))
    if medians[worst] < 0:
        label = look[drops.agents[worst]].label
        page.text(f"The largest median drop is that of {label}: {medians[worst]:+.0f} %.")
    changes = dict(zip(drops.environments, drops.change.T, strict=True))
    if len(changes) > 1:
        changes["median"] = medians
    caption = (
        "Change of area by game and ablation: in percent of the difference between Rainbow and DQN."
    )
    if drops.intervals is not None:
        caption += " Bounds: bootstrap over seeds."
        name = list(changes)[-1]
        for bound, values in zip(("lower", "upper"), drops.intervals.T, strict=True):
            changes[f"{name}, {bound} bound (95 %)"] = values
    rows: list[Row] = []
    for game, values in changes.items():
        known = (None if np.isnan(value) else value for value in values.tolist())
        labels = (style.label for style in look.values())
        rows.append({"game": game, **dict(zip(labels, known, strict=True))})
    page.table("ablations", caption, rows)
