"""What the report is about, in numbers."""

from rainbow_tf.reporting.page import Page
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
    facts = []
    for noun, numbers in counts.items():
        value, _, name = number_of(noun, numbers).rpartition(" ")
        if noun == "seed":
            facts.append((value, f"{name} of each" if len(runs) > 1 else name))
        elif value != "1":
            facts.append((value, name))
    frames = max(run.last_frame for run in runs)
    page.facts([*facts, (short(frames), "frames at most" if len(runs) > 1 else "frames")])
    protocols = sorted({run.curve.protocol for run in runs if run.config.game is not None})
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
