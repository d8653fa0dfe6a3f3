"""Predicted values against obtained returns."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.reporting.wording import made_of
from rainbow_tf.scoring.runs import Run

_MANY_EPISODES = 3000


def write(page: Page, runs: list[Run]) -> None:
    """Writes the chapter, if an evaluation recorded values."""
    pairs = [(run, e) for run in runs for e in run.evaluations if len(e.values)]
    if not pairs:
        return
    look = styles({run.agent for run, _ in pairs})
    count = sum(len(e.values) for _, e in pairs)
    is_by_run = count > _MANY_EPISODES
    points = {}
    rows: list[Row] = []
    for name, style in look.items():
        found = [e for run, e in pairs if run.agent == name]
        values = np.concatenate([e.values for e in found])
        returns = np.concatenate([e.returns for e in found])
        outside = np.concatenate([e.outside_support for e in found])
        outside = outside[~np.isnan(outside)]
        points[name] = np.stack([values, returns])
        if is_by_run:
            points[name] = np.array([(e.values.mean(), e.returns.mean()) for e in found]).T
        share = float(100 * outside.mean()) if len(outside) else None
        row: Row = {"agent": style.label, "value": float(values.mean())}
        row["return"] = float(returns.mean())
        row["value minus return"] = float((values - returns).mean())
        row["returns outside the support (%)"] = share
        rows.append({**row, "episodes": len(values)})
    supports = {(run.config.v_min, run.config.v_max) for run, _ in pairs}
    support = next(iter(supports)) if len(supports) == 1 else (-np.inf, np.inf)
    shown = list({run.folder: run for run, _ in pairs}.values())  # one may have two evaluations
    kind = f"{count:,} episodes, a point per {'run' if is_by_run else 'episode'}"
    page.chapter("Predicted values against returns")
    page.figure(
        figures.value_check(points, look, support=support, note=made_of(shown, kind)),
        "values",
        "Above the line a policy predicts more than it gets, below it less. Returns in the shaded "
        "areas are outside the support of the distribution, which cannot predict them.",
    )
    caption = (
        "Predicted value and obtained return: means over episodes, of discounted clipped rewards."
    )
    page.table(Table("values", caption, rows, digits=2))
