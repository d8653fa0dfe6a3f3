"""Aggregates of end scores in each start regime, and published scores beside them."""

from collections.abc import Mapping

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Cell, Row, Table
from rainbow_tf.reporting.wording import number_of, protocol_title
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.aggregate import THRESHOLDS, games_at_least
from rainbow_tf.scoring.study import EndScores, Estimate

Ends = dict[str, dict[str, EndScores]]
Estimates = Mapping[str, Mapping[str, Estimate]]
Percents = Mapping[tuple[str, str], Mapping[str, list[float]]]
_AGGREGATES = ("median", "interquartile mean", "mean")


def with_published(ends: Ends, games: set[str] | None, publication: str) -> Ends:
    """Adds published scores of the same games; all games if None."""
    result = {protocol: dict(agents) for protocol, agents in ends.items()}
    for regime in normalise.REGIMES:
        of_regime = result.setdefault(f"paper/{regime}", {})
        for agent, scores in normalise.published(publication, regime).items():
            chosen = {g: [score] for g, score in scores.items() if games is None or g in games}
            if chosen:
                name = agent
                if games is not None and publication == "paper":
                    name = f"{agent} (paper)"
                elif any(agent in agents for agents in ends.values()):
                    name = f"{agent} (published)"
                of_regime[name] = EndScores(chosen, frozenset({publication}))
    return {protocol: agents for protocol, agents in result.items() if agents}


def write(page: Page, ends: Ends) -> None:
    """Writes the chapter, if there is a score in a game with a human reference."""
    estimates = {
        protocol: {
            name: study.estimate(agents[name], protocol)
            for name in styles(agents)
            if study.percent(agents[name], protocol)
        }
        for protocol, agents in ends.items()
    }
    estimates = {protocol: agents for protocol, agents in estimates.items() if agents}
    if not estimates:
        return
    page.chapter("End of training")
    percents = {
        (protocol, name): study.percent(ends[protocol][name], protocol)
        for protocol, agents in estimates.items()
        for name in agents
    }
    if len(estimates) > 1:
        _medians(page, estimates, percents)
    num_games = max(len(games) for games in percents.values())
    if num_games > 1:
        _figure(page, estimates, percents)
    _aggregates(page, ends, estimates, percents, _AGGREGATES if num_games > 1 else ("mean",))
    if num_games > 1:
        _levels(page, percents)
    _remarks(page, ends, estimates)


def _labels(estimates: Estimates) -> dict[str, str]:
    look = styles({name for agents in estimates.values() for name in agents})
    return {name: style.label for name, style in look.items()}


def _medians(page: Page, estimates: Estimates, percents: Percents) -> None:
    """The paper's table: an agent's median in each start regime."""
    rows: list[Row] = []
    for name, label in _labels(estimates).items():
        row: Row = {"agent": label}
        for protocol, agents in estimates.items():
            if name in agents:
                title = protocol_title(protocol)
                row[title] = float(agents[name].values.median)
                row[f"games, {title}"] = len(percents[protocol, name])
        rows.append(row)
    page.table(Table("end_of_training", "Median score in percent of human at the end.", rows))


def _figure(page: Page, estimates: Estimates, percents: Percents) -> None:
    shown = [estimate for agents in estimates.values() for estimate in agents.values()]
    if len(shown) == 1 and shown[0].intervals is None:
        return  # three single points: the table has them
    games = number_of("game", map(len, percents.values()))
    seeds = number_of("seed", (len(v) for of in percents.values() for v in of.values()))
    note = f"{games}, {seeds} each"
    kinds = sorted({estimate.over for estimate in shown if estimate.over})
    if kinds:
        note += f" · bars: 95 % bootstrap intervals over {' or '.join(kinds)}"
    page.figure(
        figures.aggregates(
            {protocol_title(protocol): agents for protocol, agents in estimates.items()},
            styles({name for agents in estimates.values() for name in agents}),
            note=note,
        ),
        "aggregates",
        "Aggregates of the end scores. The interquartile mean drops the lowest and the highest "
        "quarter of all runs, so a few games do not decide it.",
    )


def _aggregates(
    page: Page, ends: Ends, estimates: Estimates, percents: Percents, which: tuple[str, ...]
) -> None:
    rows: list[Row] = []
    labels = _labels(estimates)
    for protocol, agents in estimates.items():
        for name, estimate in agents.items():
            row: Row = {"agent": labels[name], "starts": protocol_title(protocol)}
            for i, kind in enumerate(_AGGREGATES):
                if kind in which:
                    row[kind] = float(estimate.values[i])
                    row[f"95 % of {kind}"] = _interval(estimate, i)
            games = percents[protocol, name]
            row |= {
                "intervals over": estimate.over,
                "games": len(games),
                "seeds": number_of("seed", map(len, games.values())).split(" seed")[0],
                "scores from": " and ".join(sorted(ends[protocol][name].sources)),
            }
            rows.append(row)
    page.table(Table("aggregates", "End scores in percent of human.", rows))


def _interval(estimate: Estimate, i: int) -> Cell:
    if estimate.intervals is None:
        return None
    low, high = estimate.intervals[i]
    return f"{low:,.1f} to {high:,.1f}"


def _levels(page: Page, percents: Percents) -> None:
    look = styles({name for _, name in percents})
    rows: list[Row] = []
    for (protocol, name), games in percents.items():
        means = np.array([np.mean(scores) for scores in games.values()])
        levels = {f"{level} %": int(games_at_least(means, level)) for level in THRESHOLDS}
        rows.append({"agent": look[name].label, "starts": protocol_title(protocol)})
        rows[-1] |= {**levels, "games": len(games)}
    caption = "Number of games at each level of human performance: at the end of training."
    page.table(Table("thresholds", caption, rows))


def _remarks(page: Page, ends: Ends, estimates: Estimates) -> None:
    every = [scores for agents in ends.values() for scores in agents.values()]
    conditions = sorted({text for scores in every for text in scores.conditions})
    if conditions:
        page.text(f"Scores from “{study.SNAPSHOT}” are means of {'; '.join(conditions)}.")
    if any(study.BEST in scores.sources for scores in every):
        page.text(
            f"Scores from “{study.BEST}” are the best evaluation of each run, which is biased "
            "upwards as the largest of many; `python -m rainbow_tf.evaluate` plays 200 new "
            "episodes with the best weights, as the paper does."
        )
    if any(e.over == "episodes" for agents in estimates.values() for e in agents.values()):
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
