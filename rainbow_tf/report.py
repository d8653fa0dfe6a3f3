"""Tables and figures of runs: python -m rainbow_tf.report --runs=runs/ --out=report/."""

from pathlib import Path

from absl import flags

from rainbow_tf import __version__
from rainbow_tf.command import Command, Flag
from rainbow_tf.config import ConfigError
from rainbow_tf.process import printable
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.chapters import ablations, end_scores, games, over_time, overview, values
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.wording import game_noun, number_of
from rainbow_tf.scoring import study
from rainbow_tf.scoring.runs import Run, read_runs


def run(given: flags.FlagValues) -> None:
    """Writes the report."""
    path = write_report(
        runs=None if given.runs is None else Path(given.runs),
        out=Path(given.out),
        published=given.published,
        is_mixed=given.mixed,
    )
    print(f"The report is in {path}.")


def write_report(
    *, runs: Path | None, out: Path, published: str | None = None, is_mixed: bool = False
) -> Path:
    """Reads and checks everything, then writes; returns the path of the page."""
    if runs is None and published in (None, "dopamine"):
        raise ConfigError(
            "Nothing to report: give --runs, such as --runs=runs/, or --published=paper."
        )
    # Dopamine's curves are labelled as what they are; other scores must follow our protocol.
    with_paper = published in ("paper", "atari100k")
    problems: list[ConfigError] = []
    found = [] if runs is None else read_runs(runs, problems.append)
    for problem in problems:
        print(f"Left out: {printable(str(problem))}")
    found = study.checked_protocols(found, mixed=is_mixed, with_paper=with_paper)
    try:
        page = Page(out, *_title(found, published))
        if found:
            overview.write(page, found, with_paper=with_paper)
        for problem in problems:
            page.text(f"A run was left out: {problem}", "warning")
        _write_chapters(page, found, published)
        return page.write(__version__)
    except OSError as error:
        raise ConfigError(
            f"--out={out} cannot be written ({error.strerror}); give another folder."
        ) from error


def _write_chapters(page: Page, runs: list[Run], published: str | None) -> None:
    if not runs and published == "paper":
        end_scores.write_paper(page)
    atari = [run for run in runs if run.is_atari]
    others = [run for run in runs if not run.is_atari]
    counted = study.counted(atari)
    over_time.write(page, counted)
    ablations.write(page, counted + study.counted(others))
    if atari or not runs:
        ends = study.end_scores(counted)
        if published is not None:
            played = {run.environment for run in counted} if runs else None
            end_scores.add_published(ends, played, published)
        end_scores.write(page, ends)
        games.write(page, ends, atari, with_dopamine=published == "dopamine")
    if others:
        games.write_environments(page, others)
    values.write(page, runs)
    if runs:
        overview.write_missing(page, runs)
        if published == "paper":
            end_scores.write_paper(page)
    overview.write_method(page, has_humans=bool(atari) or not runs, has_others=bool(others))


def _title(runs: list[Run], published: str | None) -> tuple[str, str]:
    if not runs and published == "paper":
        return "The scores of Rainbow", "The tables that Hessel et al. published in 2018."
    if not runs:
        return "Atari after 400K frames", "Published scores of Atari 100K agents, 2019 to 2023."
    environments = {run.environment for run in runs}
    title = number_of(game_noun(runs), [len(environments)])
    if len(environments) == 1:
        title = runs[0].environment.replace("_", " ")
    labels = [style.label for style in styles({run.agent for run in runs}).values()]
    agents = labels[0] if len(labels) == 1 else number_of("agent", [len(labels)])
    return f"Rainbow on {title}", f"{number_of('run', [len(runs)])} of {agents}."


COMMAND = Command(
    options={
        "runs": Flag(None, "Folder to search for runs, at any depth."),
        "out": Flag("report", "Folder to write the report to."),
        "published": Flag(
            None,
            "Scores to report alone or beside those of --runs. paper: the Rainbow paper. "
            "atari100k: after 400K frames, from data-efficient Rainbow to BBF. dopamine: curves "
            "beside those of --runs.",
            choices=("paper", "atari100k", "dopamine"),
        ),
        "mixed": Flag(
            False,
            "Show scores of different protocols side by side, labelled, instead of refusing them.",
        ),
    },
    run=run,
    example="settings look like --runs=runs/",
    interrupted="interrupted; the report is incomplete.",
)

if __name__ == "__main__":
    COMMAND.main()
