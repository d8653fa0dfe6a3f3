"""End scores in each start regime, published scores beside them, and the paper's own tables."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import Look, styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row
from rainbow_tf.reporting.wording import number_of, protocol_title, sources
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.aggregate import AGGREGATES, THRESHOLDS
from rainbow_tf.scoring.runs import EVALUATED, Evaluation

Ends = dict[str, dict[str, study.EndScores]]
Results = dict[tuple[str, str], study.Estimate]  # by protocol and agent


def add_published(ends: Ends, games: set[str] | None, publication: str) -> None:
    """Adds published scores of the same games; all games if None."""
    ours = {agent for agents in ends.values() for agent in agents}
    for regime in normalise.REGIMES:
        protocol = f"paper/{regime}"
        for agent, scores in normalise.published(publication, regime).items():
            name = f"{agent} (published)" if agent in ours else agent
            if games is not None and publication == "paper":
                name = f"{agent} (paper)"
            chosen = {
                game: [Evaluation(protocol, score, publication)]
                for game, score in scores.items()
                if games is None or game in games
            }
            if chosen:
                ends.setdefault(protocol, {})[name] = chosen


def write(page: Page, ends: Ends) -> None:
    """Writes the chapter, if there is a score; all games have a human reference."""
    results = {
        (protocol, name): study.estimate(agents[name], protocol)
        for protocol, agents in ends.items()
        for name in styles(agents)
    }
    if not results:
        return
    page.chapter("End of training")
    look = styles({agent for _, agent in results})
    if len(ends) > 1:
        medians: dict[str, Row] = {name: {"agent": style.label} for name, style in look.items()}
        for (protocol, agent), estimate in results.items():
            starts = protocol_title(protocol)
            medians[agent][starts] = float(estimate.values[0])
            medians[agent][f"games, {starts}"] = len(estimate.percents)
        caption = "Median score in percent of human at the end."
        page.table("end_of_training", caption, list(medians.values()))
    has_games = max(len(estimate.percents) for estimate in results.values()) > 1
    # Three single points need no figure: the table has them.
    if has_games and (len(results) > 1 or any(e.over for e in results.values())):
        _figure(page, results, look)
    _tables(page, ends, results, look, has_games)
    _remarks(page, ends, results)


def _figure(page: Page, results: Results, look: Look) -> None:
    percents = [estimate.percents for estimate in results.values()]
    games = number_of("game", map(len, percents))
    seeds = number_of("seed", (len(scores) for of in percents for scores in of.values()))
    note = f"{games}, {seeds} each"
    kinds = sorted({estimate.over for estimate in results.values() if estimate.over})
    if kinds:
        note += f" · bars: 95 % bootstrap intervals over {' or '.join(kinds)}"
    panels: dict[str, dict[str, study.Estimate]] = {}
    for (protocol, agent), estimate in results.items():
        panels.setdefault(protocol_title(protocol), {})[agent] = estimate
    page.figure(
        "aggregates",
        "Aggregates of the end scores. The interquartile mean drops the lowest and the highest "
        "quarter of all runs, so a few games do not decide it.",
        figures.aggregates(panels, look),
        note=note,
    )


def _tables(page: Page, ends: Ends, results: Results, look: Look, has_games: bool) -> None:
    aggregates: list[Row] = []
    levels: list[Row] = []
    for (protocol, agent), estimate in results.items():
        games = estimate.percents
        row: Row = {"agent": look[agent].label, "starts": protocol_title(protocol)}
        means = np.array([np.mean(seeds) for seeds in games.values()])
        counts = {f"{level} %": int(np.sum(means >= level)) for level in THRESHOLDS}
        levels.append({**row, **counts, "games": len(games)})
        for i, kind in enumerate(AGGREGATES):
            if has_games or kind == "mean":
                row[kind] = float(estimate.values[i])
                row[f"95 % of {kind}"] = None
                if estimate.intervals is not None:
                    low, high = estimate.intervals[i]
                    row[f"95 % of {kind}"] = f"{low:,.1f} to {high:,.1f}"
        row["intervals over"] = estimate.over
        row["games"] = len(games)
        row["seeds"] = number_of("seed", map(len, games.values())).split(" seed")[0]
        row["scores from"] = sources(ends[protocol][agent])
        aggregates.append(row)
    page.table("aggregates", "End scores in percent of human.", aggregates)
    if has_games:
        caption = "Number of games at each level of human performance: at the end of training."
        page.table("thresholds", caption, levels)


def _remarks(page: Page, ends: Ends, results: Results) -> None:
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
    if any(estimate.over == "episodes" for estimate in results.values()):
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
    ranges = []
    for i, regime in enumerate(normalise.REGIMES):
        title = protocol_title(f"paper/{regime}")
        references = normalise.references(regime)
        for name, scores in normalise.published("paper", regime).items():
            percents = sorted(references[game].percent(score) for game, score in scores.items())
            median, printed = float(np.median(percents)), normalise.PRINTED_MEDIANS[name][i]
            # The median of 57 is the 29th: three more games, all below or all above the others,
            # make it the 26th or the 29th of these 54.
            low, high = percents[25], percents[28]
            rows[name][f"{title}, 54 games"] = median
            rows[name][f"{title}, possible for 57"] = f"{low:.1f} to {high:.1f}"
            rows[name][f"{title}, printed"] = printed
            medians.setdefault(title.capitalize(), {})[name] = (median, printed)
            if name == "rainbow":
                ranges.append(f"between {low:.1f} and {high:.1f} % ({title})")
    page.figure(
        "paper_medians",
        "Medians of the paper's per-game tables, and those that it prints.",
        figures.published_medians(medians, look),
        note="bars: 54 games · diamonds: 57 games · 1 score per game and agent",
    )
    caption = (
        "Median score in percent of human: from the 54 games of the paper's tables, the range "
        "possible with three more games, and what the paper prints for 57."
    )
    page.table("paper_medians", caption, list(rows.values()))
    noop, human = (agents["rainbow"][0] for agents in medians.values())
    page.text(
        f"From the tables Rainbow's medians are {noop:.1f} % (no-op starts) and {human:.1f} % "
        "(human starts); the paper's text says 223 % and 153 %. Both can be right: the text is "
        "about 57 games, and the tables list 54, without jamesbond, riverraid and up_n_down. "
        "Whatever Rainbow scored there, the median of all 57 lies "
        f"{' and '.join(ranges)}, and so do the printed ones."
    )
