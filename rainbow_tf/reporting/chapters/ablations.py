"""The effect of removing each component of Rainbow (figure 4 of the paper)."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import ABLATIONS, styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.reporting.wording import made_of
from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run


def write(page: Page, runs: list[Run]) -> None:
    """Writes the waterfall, if there are Rainbow, DQN and an ablation on the same game."""
    drops = study.ablation_drops(runs, ABLATIONS)
    if drops is None:
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
        figures.waterfall(drops, look, note=made_of(chosen)),
        "ablations",
        "Change of the area under the learning curve when a component is removed from Rainbow: "
        "0 % is Rainbow, -100 % is DQN. The largest drop of each game is in full colour (figure 4 "
        "of the paper).",
    )
    medians = np.nanmedian(drops.change, axis=1)
    worst = int(np.argmin(medians))
    if medians[worst] < 0:
        label = look[drops.agents[worst]].label
        page.text(f"The largest median drop is that of {label}: {medians[worst]:+.0f} %.")
    labels = [look[name].label for name in drops.agents]
    rows = [_row(game, labels, drops.change[:, i]) for i, game in enumerate(drops.environments)]
    if len(rows) > 1:
        rows.append(_row("median", labels, medians))
    if drops.intervals is not None:
        name = "median" if len(drops.environments) > 1 else drops.environments[0]
        rows.append(_row(f"{name}, lower bound (95 %)", labels, drops.intervals[:, 0]))
        rows.append(_row(f"{name}, upper bound (95 %)", labels, drops.intervals[:, 1]))
    caption = (
        "Change of area by game and ablation: in percent of the difference between Rainbow and DQN."
    )
    if drops.intervals is not None:
        caption += " Bounds: bootstrap over seeds."
    page.table(Table("ablations", caption, rows))


def _row(game: str, labels: list[str], values: np.ndarray) -> Row:
    cells = (None if np.isnan(value) else float(value) for value in values)
    return {"game": game, **dict(zip(labels, cells, strict=True))}
