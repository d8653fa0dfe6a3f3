"""End scores in each start regime, published scores beside them, and the paper's own tables."""

from typing import NamedTuple

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.reporting.wording import number_of, protocol_title, sources
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.aggregate import THRESHOLDS, games_at_least
from rainbow_tf.scoring.runs import EVALUATED, Evaluation
from rainbow_tf.scoring.study import EndScores, Estimate

Ends = dict[str, dict[str, EndScores]]


class _Result(NamedTuple):
    agent: str
    starts: str
    scores: EndScores
    estimate: Estimate


def with_published(ends: Ends, games: set[str] | None, publication: str) -> Ends:
    """Adds published scores of the same games; all games if None."""
    result = {protocol: dict(agents) for protocol, agents in ends.items()}
    for regime in normalise.REGIMES:
        for agent, scores in normalise.published(publication, regime).items():
            name = agent
            if games is not None and publication == "paper":
                name = f"{agent} (paper)"
            elif any(agent in agents for agents in ends.values()):
                name = f"{agent} (published)"
            protocol = f"paper/{regime}"
            chosen = {
                game: [Evaluation(protocol, score, publication)]
                for game, score in scores.items()
                if games is None or game in games
            }
            if chosen:
                result.setdefault(protocol, {})[name] = chosen
    return result


def write(page: Page, ends: Ends) -> None:
    """Writes the chapter, if there is a score in a game with a human reference."""
    results = [
        _Result(name, protocol_title(protocol), agents[name], estimate)
        for protocol, agents in ends.items()
        for name in styles(agents)
        if (estimate := study.estimate(agents[name], protocol)) is not None
    ]
    if not results:
        return
    page.chapter("End of training")
    if len({result.starts for result in results}) > 1:
        _medians(page, results)
    has_games = max(len(result.estimate.percents) for result in results) > 1
    # Three single points need no figure: the table has them.
    if has_games and (len(results) > 1 or results[0].estimate.intervals is not None):
        _figure(page, results)
    _tables(page, results, has_games)
    _remarks(page, ends, results)


def _medians(page: Page, results: list[_Result]) -> None:
    """The paper's table: an agent's median in each start regime."""
    look = styles({result.agent for result in results})
    rows: dict[str, Row] = {name: {"agent": style.label} for name, style in look.items()}
    for agent, starts, _, estimate in results:
        rows[agent][starts] = float(estimate.values.median)
        rows[agent][f"games, {starts}"] = len(estimate.percents)
    caption = "Median score in percent of human at the end."
    page.table(Table("end_of_training", caption, list(rows.values())))


def _figure(page: Page, results: list[_Result]) -> None:
    percents = [result.estimate.percents for result in results]
    games = number_of("game", map(len, percents))
    seeds = number_of("seed", (len(scores) for of in percents for scores in of.values()))
    note = f"{games}, {seeds} each"
    kinds = sorted({result.estimate.over for result in results if result.estimate.over})
    if kinds:
        note += f" · bars: 95 % bootstrap intervals over {' or '.join(kinds)}"
    panels = study.grouped((r.starts, (r.agent, r.estimate)) for r in results)
    page.figure(
        figures.aggregates(
            {title: dict(estimates) for title, estimates in panels.items()},
            styles({result.agent for result in results}),
            note=note,
        ),
        "aggregates",
        "Aggregates of the end scores. The interquartile mean drops the lowest and the highest "
        "quarter of all runs, so a few games do not decide it.",
    )


def _tables(page: Page, results: list[_Result], has_games: bool) -> None:
    look = styles({result.agent for result in results})
    aggregates: list[Row] = []
    levels: list[Row] = []
    for agent, starts, scores, estimate in results:
        games = estimate.percents
        row: Row = {"agent": look[agent].label, "starts": starts}
        means = np.array([np.mean(seeds) for seeds in games.values()])
        counts = {f"{level} %": int(games_at_least(means, level)) for level in THRESHOLDS}
        levels.append({**row, **counts, "games": len(games)})
        for i, kind in enumerate(("median", "interquartile mean", "mean")):
            if has_games or kind == "mean":
                row[kind] = float(estimate.values[i])
                row[f"95 % of {kind}"] = None
                if estimate.intervals is not None:
                    low, high = estimate.intervals[i]
                    row[f"95 % of {kind}"] = f"{low:,.1f} to {high:,.1f}"
        row["intervals over"] = estimate.over
        row["games"] = len(games)
        row["seeds"] = number_of("seed", map(len, games.values())).split(" seed")[0]
        row["scores from"] = sources(scores)
        aggregates.append(row)
    page.table(Table("aggregates", "End scores in percent of human.", aggregates))
    if has_games:
        caption = "Number of games at each level of human performance: at the end of training."
        page.table(Table("thresholds", caption, levels))


def _remarks(page: Page, ends: Ends, results: list[_Result]) -> None:
    scores = [of for agents in ends.values() for of in agents.values()]
    every = [end for of in scores for seeds in of.values() for end in seeds]
    conditions = sorted({end.conditions for end in every if end.conditions})
    if conditions:
        page.text(f"Scores from “{EVALUATED}” are means of {'; '.join(conditions)}.")
    if any(end.source == study.BEST for end in every):
        page.text(
            f"Scores from “{study.BEST}” are the best evaluation of each run, which is biased "
            "upwards as the largest of many; `python -m rainbow_tf.evaluate` plays 200 new "
            "episodes with the best weights, as the paper does."
        )
    if any(result.estimate.over == "episodes" for result in results):
        page.text(
            "Intervals over episodes resample the evaluation's episodes of the one seed in each "
            "game. They do not cover the spread between seeds, which is often larger."
        )
    others = [protocol for protocol in ends if protocol.split("/")[-1] in ("policy", "random")]
    if others:
        page.text(
            f"{', '.join(others)}: these starts were not recorded by people. They are compared "
            "with the references of human starts because there are no better ones.",
            "warning",
        )


def write_paper(page: Page) -> None:
    """Writes the medians of the paper's tables beside those it prints."""
    page.chapter("The paper's tables")
    look = styles(normalise.PRINTED_MEDIANS)
    rows: dict[str, Row] = {name: {"agent": style.label} for name, style in look.items()}
    medians: dict[str, dict[str, tuple[float, float | None]]] = {}
    rainbow = []
    for i, (protocol, ends) in enumerate(with_published({}, None, "paper").items()):
        title = protocol_title(protocol)
        of_regime = medians.setdefault(title.capitalize(), {})
        for name in look:
            printed = normalise.PRINTED_MEDIANS[name][i]
            median = possible = None
            if name in ends:
                scores = sorted(np.ravel(list(study.percent(ends[name], protocol).values())))
                median = float(np.median(scores))
                # The median of 57 is the 29th: three more games, all below or all above the
                # others, make it the 26th or the 29th of these 54.
                low, high = scores[25], scores[28]
                possible = f"{low:.1f} to {high:.1f}"
                of_regime[name] = (median, printed)
                if name == "rainbow":
                    rainbow.append((median, f"between {low:.1f} and {high:.1f} % ({title})"))
            rows[name][f"{title}, 54 games"] = median
            rows[name][f"{title}, possible for 57"] = possible
            rows[name][f"{title}, printed"] = printed
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
