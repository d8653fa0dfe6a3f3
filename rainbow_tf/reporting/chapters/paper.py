"""The paper's own tables, and why their medians differ from those of its text."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.chapters.end_scores import with_published
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.reporting.wording import protocol_title
from rainbow_tf.scoring import normalise, study


def write(page: Page) -> None:
    """Writes the medians of the paper's tables beside those it prints."""
    page.chapter("The paper's tables")
    look = styles(normalise.PRINTED_MEDIANS)
    rows: dict[str, Row] = {name: {"agent": style.label} for name, style in look.items()}
    medians: dict[str, dict[str, tuple[float, float | None]]] = {}
    rainbow = []
    for i, regime in enumerate(normalise.REGIMES):
        protocol = f"paper/{regime}"
        ends = with_published({}, None, "paper")[protocol]
        title = protocol_title(protocol)
        of_regime = medians.setdefault(title.capitalize(), {})
        for name in look:
            printed = normalise.PRINTED_MEDIANS[name][i]
            columns: Row = {}
            if name in ends:
                percent = study.percent(ends[name], protocol)
                scores = sorted(score for (score,) in percent.values())
                median = float(np.median(scores))
                # The median of 57 is the 29th: three more games, all below or all above the
                # others, make it the 26th or the 29th of these 54.
                low, high = scores[25], scores[28]
                of_regime[name] = (median, printed)
                columns = {"54 games": median, "possible for 57": f"{low:.1f} to {high:.1f}"}
                if name == "rainbow":
                    rainbow.append((median, f"between {low:.1f} and {high:.1f} % ({title})"))
            columns["printed"] = printed
            for column in ("54 games", "possible for 57", "printed"):
                rows[name][f"{title}, {column}"] = columns.get(column)
    page.figure(
        figures.published_medians(
            medians, look, note="bars: 54 games · diamonds: 57 games · 1 score per game and agent"
        ),
        "paper_medians",
        "Medians of the paper's per-game tables, and those that it prints.",
    )
    caption = (
        "Median score in percent of human: from the 54 games of the paper's tables, the range "
        "possible with three more games, and what the paper prints for 57."
    )
    page.table(Table("paper_medians", caption, list(rows.values())))
    (noop, noop_range), (human, human_range) = rainbow
    page.text(
        f"From the tables Rainbow's medians are {noop:.1f} % (no-op starts) and {human:.1f} % "
        "(human starts); the paper's text says 223 % and 153 %. Both can be right: the text is "
        "about 57 games, and the tables list 54, without jamesbond, riverraid and up_n_down. "
        "Whatever Rainbow scored there, the median of all 57 lies "
        f"{noop_range} and {human_range}, and so do the printed ones."
    )
