"""How the numbers were made."""

from rainbow_tf.reporting.page import Page


def write(page: Page, *, has_humans: bool, has_others: bool) -> None:
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
