"""Missing and unfinished runs."""

from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run


def write(page: Page, runs: list[Run]) -> None:
    """Writes which runs the grid of games, agents and seeds lacks."""
    found = study.missing_runs(runs)
    page.chapter("Missing runs")
    if not found:
        page.text("None: every agent has every game with every seed, to the end.")
        return
    page.text(
        f"{len(found):,} runs of the grid of games, agents and seeds are missing or unfinished. "
        "Nothing was filled in for them. An unfinished run counts only if its agent has no "
        "finished one; in the curves of a game, if its agent has no finished run there."
    )
    look = styles({item.agent for item in found})
    rows: list[Row] = [
        {"game": game, "agent": look[agent].label, "seed": seed, "found": problem}
        for game, agent, seed, problem in found
    ]
    page.table(Table("missing", "Missing runs: by game.", rows))
