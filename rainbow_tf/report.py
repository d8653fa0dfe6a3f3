"""Tables and figures of runs: python -m rainbow_tf.report --runs=runs/ --out=report/."""

from pathlib import Path

from absl import flags

from rainbow_tf import __version__
from rainbow_tf.command import Command
from rainbow_tf.config import ConfigError
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.chapters import (
    ablations,
    end_scores,
    games,
    method,
    missing,
    over_time,
    overview,
    paper,
    values,
)
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.wording import game_noun, number_of
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
        "Scores to report alone or beside those of --runs. paper: the Rainbow paper. atari100k: "
        "after 400K frames, from data-efficient Rainbow to BBF. dopamine: curves beside those of "
        "--runs.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "mixed",
        False,
        "Show scores of different protocols side by side, labelled, instead of refusing them.",
        flag_values=values,
    )


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
    found: list[Run] = []
    # Dopamine's curves are labelled as what they are; the other scores must follow our protocol.
    with_paper = published in ("paper", "atari100k")
    if runs is not None:
        found = study.checked_protocols(read_runs(runs), mixed=is_mixed, with_paper=with_paper)
    try:
        page = Page(out, *_title(found, published))
        if found:
            _write_runs(page, found, published if with_paper else None, published == "dopamine")
        elif published is not None:
            if published == "paper":
                paper.write(page)
            ends = end_scores.with_published({}, None, published)
            end_scores.write(page, ends)
            games.write(page, ends, [])
        has_reference = [study.has_reference(run.environment) for run in found] or [True]
        method.write(page, has_humans=any(has_reference), has_others=not all(has_reference))
        return page.write(__version__)
    except OSError as error:
        raise ConfigError(
            f"--out={out} cannot be written ({error.strerror}); give another folder."
        ) from error


def _write_runs(page: Page, runs: list[Run], published: str | None, with_dopamine: bool) -> None:
    overview.write(page, runs, with_paper=published is not None)
    atari = [run for run in runs if study.has_reference(run.environment)]
    others = [run for run in runs if not study.has_reference(run.environment)]
    counted = study.counted(atari)
    if atari:
        over_time.write(page, counted)
    ablations.write(page, counted + study.counted(others))
    if atari:
        ends = study.end_scores(counted)
        if published is not None:
            played = {run.environment for run in counted}
            ends = end_scores.with_published(ends, played, published)
        end_scores.write(page, ends)
        games.write(page, ends, atari, with_dopamine=with_dopamine)
    if others:
        games.write_environments(page, others)
    values.write(page, runs)
    missing.write(page, runs)
    if published == "paper":
        paper.write(page)


def _title(runs: list[Run], published: str | None) -> tuple[str, str]:
    if not runs and published == "paper":
        return "The scores of Rainbow", "The tables that Hessel et al. published in 2018."
    if not runs:
        return "Atari after 400K frames", "Published scores of Atari 100K agents, 2019 to 2023."
    environments = sorted({run.environment for run in runs})
    title = number_of(game_noun(runs), [len(environments)])
    if len(environments) == 1:
        title = environments[0].replace("_", " ")
    look = styles({run.agent for run in runs})
    agents = number_of("agent", [len(look)])
    if len(look) == 1:
        agents = next(iter(look.values())).label
    return f"Rainbow on {title}", f"{number_of('run', [len(runs)])} of {agents}."


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="settings look like --runs=runs/",
    interrupted="interrupted; the report is incomplete.",
)

if __name__ == "__main__":
    COMMAND.main()
