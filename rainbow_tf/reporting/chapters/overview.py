"""The runs in numbers, which of them are missing, and how to read the report."""

from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row
from rainbow_tf.reporting.wording import game_noun, number_of, protocol_title, seed_counts, short
from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run


def write(page: Page, runs: list[Run], *, with_paper: bool) -> None:
    """Writes the counts, the protocol and warnings about runs that differ."""
    counts = {
        game_noun(runs): [len({run.environment for run in runs})],
        "agent": [len({run.agent for run in runs})],
        "seed": seed_counts(runs),
        "run": [len(runs)],
    }
    is_one = len(runs) == 1
    facts = []
    for noun, numbers in counts.items():
        value, _, name = number_of(noun, numbers).rpartition(" ")
        if noun == "seed":
            facts.append((value, name if is_one else f"{name} of each"))
        elif value != "1":
            facts.append((value, name))
    frames = short(max(run.last_frame for run in runs))
    page.facts([*facts, (frames, "frames" if is_one else "frames at most")])
    protocols = sorted({run.curve.protocol for run in runs if run.is_atari})
    if protocols:
        listed = "; ".join(f"`{name}` ({protocol_title(name)})" for name in protocols)
        page.text(f"Protocol of the curves: {listed}.")
    conflicts = study.conflicting_protocols(runs, with_paper=with_paper)
    if conflicts:
        page.text(
            "Mixed protocols: scores in this report follow different rules "
            f"({', '.join(conflicts)}), as their labels say. Do not compare them with one another.",
            "warning",
        )
    if all(run.curve.is_training for run in runs):
        page.text(
            "No run has been evaluated yet: scores here are mean returns of the last 100 episodes "
            "of training, with exploration, not evaluations.",
            "warning",
        )
    for sentence in study.differing_settings(runs):
        page.text(sentence, "warning")


def write_missing(page: Page, runs: list[Run]) -> None:
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
    look = styles({agent for _, agent, _, _ in found})
    rows: list[Row] = [
        {"game": game, "agent": look[agent].label, "seed": seed, "found": problem}
        for game, agent, seed, problem in found
    ]
    page.table("missing", "Missing runs: by game.", rows)


def write_method(page: Page, *, has_humans: bool, has_others: bool) -> None:
    """Explains the numbers: of games with a human reference, and of other environments."""
    page.chapter("How to read this")
    if has_humans:
        page.text(
            "A human-normalised score is 100 × (score − random) / |human − random|: 0 % is "  # noqa: RUF001
            "random play, 100 % a human tester. No-op and human starts have separate references. "
            "Scores are means over whole games with unclipped rewards."
        )
        page.text(
            "Medians and means are over games, of each game's mean over seeds. The interquartile "
            "mean is over all runs. Intervals resample seeds within each game 2,000 times, or with "
            "one seed the episodes of its evaluation. An agent's curve over games ends where its "
            "shortest counted run ends. Frames are emulator frames."
        )
    if has_others:
        page.text(
            "Scores of environments without a human reference are mean returns per episode, "
            "without reward clipping. There, one frame is one step of the environment."
        )
