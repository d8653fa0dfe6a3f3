"""Tables and figures of runs: python -m rainbow_tf.report --runs=runs/ --out=report/."""

from pathlib import Path

from absl import flags

from rainbow_tf import __version__
from rainbow_tf.command import Command
from rainbow_tf.config import ConfigError
from rainbow_tf.reporting import chapters
from rainbow_tf.reporting.page import Page
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.runs import Run, read_runs


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of a report."""
    flags.DEFINE_string(
        "runs", None, "Folder to look for run folders in, at any depth.", flag_values=values
    )
    flags.DEFINE_string("out", "report", "Folder to write the report to.", flag_values=values)
    flags.DEFINE_enum(
        "published",
        None,
        list(normalise.PUBLICATIONS),
        "Scores to report alone or beside those of --runs. paper: of the Rainbow paper. atari100k: "
        "of data-efficient Rainbow and SimPLe after 400K frames.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "mixed",
        False,
        "Show scores of unlike protocols side by side, labelled, instead of refusing them.",
        flag_values=values,
    )


def run(values: flags.FlagValues) -> None:
    """Writes the report."""
    path = write_report(
        runs=None if values.runs is None else Path(values.runs),
        out=Path(values.out),
        published=values.published,
        is_mixed=values.mixed,
    )
    print(f"The report is in {path}.")


def write_report(
    *, runs: Path | None, out: Path, published: str | None = None, is_mixed: bool = False
) -> Path:
    """Reads everything and checks it, then writes; gives the path of the page."""
    if runs is None and published is None:
        raise ConfigError(
            "Nothing to report: give --runs, such as --runs=runs/, or --published=paper."
        )
    found: list[Run] = []
    if runs is not None:
        found = study.checked_protocols(
            read_runs(runs), mixed=is_mixed, with_paper=published is not None
        )
    try:
        page = Page(out, *_title(found, published))
        if found:
            _report_runs(page, found, published)
        elif published is not None:
            if published == "paper":
                chapters.paper(page)
            ends = chapters.with_published({}, None, published)
            chapters.end_of_training(page, ends)
            chapters.per_game(page, ends, [])
        chapters.method(page)
        return page.write(__version__)
    except OSError as error:
        raise ConfigError(
            f"--out={out} cannot be written ({error.strerror}); give another folder."
        ) from error


def _report_runs(page: Page, runs: list[Run], published: str | None) -> None:
    chapters.overview(page, runs, with_paper=published is not None)
    atari = [run for run in runs if study.has_reference(run.world)]
    others = [run for run in runs if not study.has_reference(run.world)]
    if atari:
        counted = study.counted(atari)
        ends = study.end_scores(counted)
        if published is not None:
            ends = chapters.with_published(ends, {run.world for run in counted}, published)
        chapters.over_time(page, counted)
        chapters.ablations(page, counted)
        chapters.end_of_training(page, ends)
        chapters.per_game(page, ends, atari)
    if others:
        chapters.other_worlds(page, others)
    chapters.values(page, runs)
    chapters.missing(page, runs)
    if published == "paper":
        chapters.paper(page)


def _title(runs: list[Run], published: str | None) -> tuple[str, str]:
    if not runs and published == "paper":
        return "The scores of Rainbow", "What Hessel et al. published in 2018, from their tables."
    if not runs:
        return (
            "Atari after 400K frames",
            "What van Hasselt et al. and Kaiser et al. published in 2019.",
        )
    worlds = sorted({run.world for run in runs})
    agents = {run.agent for run in runs}
    games = worlds[0].replace("_", " ") if len(worlds) == 1 else f"{len(worlds)} games"
    lead = f"{len(runs):,} run{'s' if len(runs) > 1 else ''} of {len(agents)} agent"
    return f"Rainbow on {games}", f"{lead}{'s' if len(agents) > 1 else ''}."


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="settings look like --runs=runs/",
    interrupted="interrupted; the report is incomplete.",
)

if __name__ == "__main__":
    COMMAND.main()
