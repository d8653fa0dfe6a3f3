"""Predicted values against obtained returns."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row
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
        found = [(e.values, e.returns, e.outside_support) for run, e in pairs if run.agent == name]
        values, returns, outside = map(np.concatenate, zip(*found, strict=True))
        points[name] = np.stack([values, returns])
        if is_by_run:
            points[name] = np.array([(v.mean(), r.mean()) for v, r, _ in found]).T
        outside = outside[~np.isnan(outside)]
        share = 100 * float(outside.mean()) if len(outside) else None
        means = {"value": values, "return": returns, "value minus return": values - returns}
        row: Row = {"agent": style.label, **{kind: float(m.mean()) for kind, m in means.items()}}
        rows.append({**row, "returns outside the support (%)": share, "episodes": len(values)})
    supports = {(run.config.v_min, run.config.v_max) for run, _ in pairs}
    support = supports.pop() if len(supports) == 1 else (-np.inf, np.inf)
    shown = list({run.folder: run for run, _ in pairs}.values())  # one may have two evaluations
    kind = f"{count:,} episodes, a point per {'run' if is_by_run else 'episode'}"
    page.chapter("Predicted values against returns")
    page.figure(
        "values",
        "Above the line a policy predicts more than it gets, below it less. Returns in the shaded "
        "areas are outside the support of the distribution, which cannot predict them.",
        figures.value_check(points, look, support=support),
        note=made_of(shown, kind),
    )
    caption = (
        "Predicted value and obtained return: means over episodes, of discounted clipped rewards."
    )
    page.table("values", caption, rows, digits=2)
