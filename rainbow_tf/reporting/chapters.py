"""The chapters of a report: what the paper shows, from our runs and from its own tables."""

from collections.abc import Mapping

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import ABLATIONS, Style, groups, styles
from rainbow_tf.reporting.figures import Estimate, Line, Points, seeds_text
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Cell, Table
from rainbow_tf.scoring import normalise
from rainbow_tf.scoring import study as studies
from rainbow_tf.scoring.aggregate import (
    THRESHOLDS,
    Interval,
    aggregate,
    bootstrap,
    games_at_least,
    moving_average,
    score_matrix,
)
from rainbow_tf.scoring.runs import Run
from rainbow_tf.scoring.study import EndScores

# The paper's moving averages, in points.
_SMOOTH_MEDIAN, _SMOOTH_GAME = 5, 10
_FOLD_ROWS = 25
_STARTS = {
    "noop": "no-op starts",
    "human": "human starts",
    "policy": "starts recorded by a policy, not by people",
    "random": "starts recorded by a random player, not by people",
}

Ends = dict[str, dict[str, EndScores]]


def protocol_title(protocol: str) -> str:
    """A protocol in words."""
    rules, _, starts = protocol.partition("/")
    title = _STARTS.get(starts, protocol)
    return f"{title}, sticky actions" if rules == "sticky" else title


def with_published(ends: Ends, games: set[str] | None, publication: str = "paper") -> Ends:
    """End scores and beside them published ones, on the same games; None for all that there are."""
    result = {protocol: dict(agents) for protocol, agents in ends.items()}
    for regime in normalise.REGIMES:
        of_regime = result.setdefault(f"paper/{regime}", {})
        for agent, scores in normalise.published(publication, regime).items():
            chosen = {
                game: [score] for game, score in scores.items() if games is None or game in games
            }
            if chosen:
                name = agent if games is None else f"{agent} ({publication})"
                of_regime[name] = EndScores(chosen, frozenset({publication}))
    return {protocol: agents for protocol, agents in result.items() if agents}


def overview(page: Page, runs: list[Run], *, with_paper: bool) -> None:
    """What the report is about, in numbers."""
    worlds = {run.world for run in runs}
    agents = {run.agent for run in runs}
    seeds = _seed_counts(runs)
    frames = max(run.last_frame for run in runs) / 1e6
    page.facts(
        [
            (f"{len(worlds)}", "game" if len(worlds) == 1 else "games"),
            (f"{len(agents)}", "agent" if len(agents) == 1 else "agents"),
            (
                seeds_text(seeds).split(" seed")[0],
                "seeds of each" if max(seeds) > 1 else "seed of each",
            ),
            (f"{len(runs):,}", "run" if len(runs) == 1 else "runs"),
            (f"{frames:,.4g}", "million frames at most"),
        ]
    )
    protocols = sorted({run.curve.protocol for run in runs if len(run.curve.frames)})
    listed = "; ".join(
        f"`{name}` ({protocol_title(name)})" if "/" in name else f"`{name}`" for name in protocols
    )
    page.text(f"Curves follow the protocol {listed or 'of runs that have no score yet'}.")
    unlike = studies.unlike_protocols(runs, with_paper=with_paper)
    if unlike:
        page.text(
            "Mixed protocols: scores in this report were taken by unlike rules ("
            f"{', '.join(unlike)}), as their labels say. They cannot be compared with one another.",
            "warning",
        )
    if all(run.curve.is_training for run in runs):
        page.text(
            "No run has been evaluated yet: scores here are mean returns of the last 100 games of "
            "training, with exploration, and not evaluations.",
            "warning",
        )
    for sentence in studies.unlike_settings(runs):
        page.text(sentence, "warning")


def over_time(page: Page, runs: list[Run]) -> None:
    """Median curves and thresholds over time (figures 1 to 3 of the paper)."""
    look = styles({run.agent for run in runs})
    grids = {}
    for name, of_agent in studies.by_agent(runs).items():
        found = studies.percent_grid(of_agent)
        if len(found.frames):
            grids[name] = found
        else:
            page.text(f"The runs of {look[name].label} have no frames in common.", "warning")
    if not grids:
        return
    page.chapter("Median score over time")
    window = _window(_SMOOTH_MEDIAN, min(len(grid.frames) for grid in grids.values()))
    medians = {
        name: Line(
            grid.frames[window - 1 :], moving_average(np.median(grid.scores, axis=0), window)
        )
        for name, grid in grids.items()
    }
    note = _note(grids.values(), window, runs)
    panels = groups(grids)
    page.figure(
        figures.median_curves(
            {title: {name: medians[name] for name in names} for title, names in panels.items()},
            look,
            label="Median score (% of human)",
            note=note,
        ),
        "median_curves",
        "Median over games of the human-normalised score, each game's mean over seeds first "
        "(figures 1 and 3 of the paper).",
    )
    for sentence in _milestones(medians, look):
        page.text(sentence)
    games = {name: frozenset(grid.worlds) for name, grid in grids.items()}
    if len(set(games.values())) > 1:
        listed = ", ".join(
            f"{style.label} {len(games[name])}" for name, style in look.items() if name in games
        )
        page.text(
            "Agents did not play the same games, so their medians differ for that reason too; "
            f"number of games: {listed}.",
            "warning",
        )
    page.table(_curve_table("median_curves", medians), is_folded=True)

    page.chapter("Games at each level of human performance")
    counts_over_time = {}
    for name, grid in grids.items():
        games_last = moving_average(grid.scores, window).T  # [T, G]
        counts = np.stack([games_at_least(games_last, level) for level in THRESHOLDS], axis=1)
        counts_over_time[name] = Line(grid.frames[window - 1 :], counts)
    page.figure(
        figures.threshold_curves(
            {
                title: {name: counts_over_time[name] for name in names}
                for title, names in panels.items()
            },
            look,
            num_games=max(len(grid.worlds) for grid in grids.values()),
            note=note,
        ),
        "thresholds",
        "Number of games in which an agent reaches a level, as a function of time (figure 2 of "
        "the paper).",
    )


def ablations(page: Page, runs: list[Run]) -> None:
    """The waterfall (figure 4 of the paper)."""
    drops = studies.ablation_drops(runs, ABLATIONS)
    if drops is None:
        return
    look = styles(drops.agents)
    page.chapter("What each part is worth")
    if drops.omitted:
        page.text(
            f"Left out, because DQN's area is not below Rainbow's: {', '.join(drops.omitted)}."
        )
    if not drops.agents:
        return
    chosen = [run for run in runs if run.agent in {"rainbow", "dqn", *drops.agents}]
    note = f"{_games(len(drops.worlds))}, {seeds_text(_seed_counts(chosen))} each"
    page.figure(
        figures.waterfall(drops, look, note=f"{note} · {_protocols(runs)}"),
        "ablations",
        "Change of the area under the learning curve when a part is taken out of Rainbow: 0 % is "
        "Rainbow, -100 % is DQN. The strongest drop of each game is in full colour (figure 4 of "
        "the paper).",
    )
    medians = np.nanmedian(drops.change, axis=1)
    worst = int(np.argmin(medians))
    if medians[worst] < 0:
        label = look[drops.agents[worst]].label
        page.text(f"The strongest median change comes with {label}: {medians[worst]:+.0f} %.")
    rows: list[list[Cell]] = [
        [world, *(None if np.isnan(value) else float(value) for value in drops.change[:, i])]
        for i, world in enumerate(drops.worlds)
    ]
    page.table(
        Table(
            "ablations",
            "Change of area by game and ablation: in percent of the difference between Rainbow "
            "and DQN.",
            ["game", *(look[name].label for name in drops.agents)],
            rows,
        ),
        is_folded=len(rows) > _FOLD_ROWS,
    )


def end_of_training(page: Page, ends: Ends) -> None:
    """Aggregates of end scores in each start regime, and the number of games at each level."""
    percents = {
        protocol: {
            name: studies.percent(scores, protocol)
            for name, scores in agents.items()
            if studies.percent(scores, protocol)
        }
        for protocol, agents in ends.items()
    }
    percents = {protocol: agents for protocol, agents in percents.items() if agents}
    if not percents:
        return
    page.chapter("End of training")
    estimates: dict[str, dict[str, Estimate]] = {}
    rows: list[list[Cell]] = []
    levels: list[list[Cell]] = []
    for protocol, agents in percents.items():
        look = styles(agents)
        rng = np.random.default_rng(0)
        title = protocol_title(protocol)
        estimates[title] = {}
        for name in look:
            matrix = score_matrix(agents[name].values())
            estimate = Estimate(aggregate(matrix), bootstrap(matrix, rng=rng))
            estimates[title][name] = estimate
            label, values = look[name].label, estimate.values
            intervals = estimate.intervals or (None, None, None)
            rows.append(
                [
                    label,
                    title,
                    float(values.median),
                    _interval(intervals[0]),
                    float(values.iqm),
                    _interval(intervals[1]),
                    float(values.mean),
                    _interval(intervals[2]),
                    matrix.shape[1],
                    seeds_text([len(v) for v in agents[name].values()]).split(" seed")[0],
                    " and ".join(sorted(ends[protocol][name].sources)),
                    protocol,
                ]
            )
            means = np.nanmean(matrix, axis=0)
            levels.append(
                [
                    label,
                    title,
                    *(int(games_at_least(means, level)) for level in THRESHOLDS),
                    matrix.shape[1],
                ]
            )
    _both_regimes(page, percents)
    seeds = [
        len(values)
        for agents in percents.values()
        for of in agents.values()
        for values in of.values()
    ]
    games = {len(of) for agents in percents.values() for of in agents.values()}
    page.figure(
        figures.aggregates(
            estimates,
            styles({name for agents in estimates.values() for name in agents}),
            note=f"{_games(*games)}, {seeds_text(seeds)} each · bars: 95 % stratified bootstrap "
            "intervals, where there are two seeds or more",
        ),
        "aggregates",
        "Aggregates of the end scores. The interquartile mean drops the lowest and the highest "
        "quarter of all runs, so a few games do not decide it.",
    )
    page.table(
        Table(
            "aggregates",
            "Aggregates of end scores in percent of human: 95 % intervals in brackets.",
            [
                "agent",
                "starts",
                "median",
                "interval",
                "interquartile mean",
                "interval",
                "mean",
                "interval",
                "games",
                "seeds",
                "scores from",
                "protocol",
            ],
            rows,
        )
    )
    page.table(
        Table(
            "thresholds",
            "Number of games at each level of human performance: at the end of training.",
            ["agent", "starts", *(f"{level} %" for level in THRESHOLDS), "games"],
            levels,
        )
    )
    sources = {source for agents in ends.values() for s in agents.values() for source in s.sources}
    if studies.BEST in sources:
        page.text(
            f"Scores from “{studies.BEST}” are the best evaluation of each run, the largest of "
            "many and so a little too good; `python -m rainbow_tf.evaluate` plays 200 new games "
            "with the best snapshot, as the paper does."
        )
    others = [p for p in percents if p.split("/")[-1] in ("policy", "random")]
    if others:
        page.text(
            f"{', '.join(others)}: these starts were not recorded by people, and only for want of "
            "better they are compared with the references of human starts.",
            "warning",
        )


def _both_regimes(page: Page, percents: Mapping[str, Mapping[str, dict]]) -> None:
    """The paper's table: an agent's median in each start regime."""
    look = styles({name for agents in percents.values() for name in agents})
    rows: list[list[Cell]] = []
    for name, style in look.items():
        cells: list[Cell] = [style.label]
        for agents in percents.values():
            matrix = score_matrix(agents.get(name, {}).values())
            cells.append(float(aggregate(matrix).median) if matrix.size else None)
            cells.append(matrix.shape[1] if matrix.size else None)
        rows.append(cells)
    header = ["agent"]
    for protocol in percents:
        header += [protocol_title(protocol), "games"]
    page.table(
        Table("end_of_training", "Median score in percent of human at the end.", header, rows)
    )


def per_game(page: Page, ends: Ends, runs: list[Run]) -> None:
    """Tables and curves of every game, raw (appendix of the paper)."""
    page.chapter("Every game")
    for protocol, agents in ends.items():
        games = sorted(
            {w for scores in agents.values() for w in scores.by_world if studies.has_reference(w)}
        )
        if not games:
            continue
        look = styles(name for name in agents if set(agents[name].by_world) & set(games))
        references = normalise.references(studies.regime(protocol))
        raw: list[list[Cell]] = []
        normalised: list[list[Cell]] = []
        for game in games:
            means = [_mean(agents[name].by_world.get(game)) for name in look]
            raw.append([game, *means])
            normalised.append(
                [game, *(None if m is None else references[game].percent(m) for m in means)]
            )
        header = ["game", *(style.label for style in look.values())]
        title = protocol_title(protocol)
        stem = protocol.replace("/", "_")
        page.table(
            Table(
                f"games_{stem}",
                f"Scores, {title}: points of the game, mean over seeds.",
                header,
                raw,
                bold_best=True,
            ),
            is_folded=len(games) > _FOLD_ROWS,
        )
        page.table(
            Table(
                f"games_{stem}_normalised",
                f"Normalised scores, {title}: in percent of human.",
                header,
                normalised,
                bold_best=True,
            ),
            is_folded=len(games) > _FOLD_ROWS,
        )
    _draw_games(page, runs, "games")


def other_worlds(page: Page, runs: list[Run]) -> None:
    """Worlds without a human reference, in raw scores."""
    page.chapter("Worlds without a human reference")
    page.text("There is no human score to compare with, so these are raw scores.")
    look = styles({run.agent for run in runs})
    rows: list[list[Cell]] = []
    for world, of_world in studies.by_world(runs).items():
        agents = studies.by_agent(studies.counted(of_world))
        for name in (name for name in look if name in agents):
            for protocol, found in studies.end_scores(agents[name]).items():
                scores = found[name]
                values = np.array(scores.by_world[world])
                rows.append(
                    [
                        world,
                        look[name].label,
                        float(values.mean()),
                        float(values.min()),
                        float(values.max()),
                        len(values),
                        " and ".join(sorted(scores.sources)),
                        protocol,
                    ]
                )
    header = [
        "world",
        "agent",
        "score",
        "lowest seed",
        "highest seed",
        "seeds",
        "scores from",
        "protocol",
    ]
    page.table(Table("worlds", "End scores in points: mean over seeds.", header, rows))
    _draw_games(page, runs, "worlds")


def values(page: Page, runs: list[Run]) -> None:
    """Predicted values against obtained returns."""
    pairs = [(run, e) for run in runs for e in run.evaluations if len(e.values)]
    if not pairs:
        return
    look = styles({run.agent for run, _ in pairs})
    count = sum(len(e.values) for _, e in pairs)
    is_by_run = count > 3000
    shown = list({run.folder: run for run, _ in pairs}.values())  # one may have two evaluations
    points = {}
    rows: list[list[Cell]] = []
    for name, style in look.items():
        found = [e for run, e in pairs if run.agent == name]
        if is_by_run:
            points[name] = Points(
                np.array([e.values.mean() for e in found]),
                np.array([e.returns.mean() for e in found]),
            )
        else:
            points[name] = Points(
                np.concatenate([e.values for e in found]),
                np.concatenate([e.returns for e in found]),
            )
        value = np.concatenate([e.values for e in found])
        gained = np.concatenate([e.returns for e in found])
        outside = np.concatenate([e.outside_support for e in found])
        outside = outside[~np.isnan(outside)]
        rows.append(
            [
                style.label,
                float(value.mean()),
                float(gained.mean()),
                float((value - gained).mean()),
                float(100 * outside.mean()) if len(outside) else None,
                len(value),
            ]
        )
    supports = {(run.config.v_min, run.config.v_max) for run, _ in pairs}
    support = next(iter(supports)) if len(supports) == 1 else (-np.inf, np.inf)
    page.chapter("Predicted values against returns")
    kind = "a point per run" if is_by_run else "a point per episode"
    page.figure(
        figures.value_check(
            points,
            look,
            support=support,
            note=f"{_games(len({run.world for run, _ in pairs}))}, "
            f"{seeds_text(_seed_counts(shown))} each · {count:,} episodes, "
            f"{kind} · {', '.join(sorted({e.protocol for _, e in pairs}))}",
        ),
        "values",
        "Above the line a policy promises more than it gets, below it less. Returns in the shaded "
        "areas are outside the support of the distribution, which cannot predict them.",
    )
    page.table(
        Table(
            "values",
            "Predicted value and obtained return: means over episodes, of discounted clipped "
            "rewards.",
            [
                "agent",
                "value",
                "return",
                "value minus return",
                "returns outside the support (%)",
                "episodes",
            ],
            rows,
            digits=2,
        )
    )


def missing(page: Page, runs: list[Run]) -> None:
    """Runs that the grid of games, agents and seeds lacks."""
    found = studies.missing_runs(runs)
    page.chapter("Missing runs")
    if not found:
        page.text("None: every agent has every game with every seed, to the end.")
        return
    page.text(
        f"{len(found):,} runs of the grid of games, agents and seeds are not there or not "
        "finished. Nothing was filled in for them. An unfinished run counts only while its agent "
        "has no finished one; in the curves of a game, while its agent has no finished run there."
    )
    look = styles({item.agent for item in found})
    rows: list[list[Cell]] = [
        [item.world, look[item.agent].label, item.seed, item.found] for item in found
    ]
    table = Table(
        "missing", "Missing runs: by game.", ["game", "agent", "seed", "what was found"], rows
    )
    page.table(table, is_folded=len(rows) > _FOLD_ROWS)


def paper(page: Page) -> None:
    """The paper's own tables, and why their medians are not those of its text."""
    page.chapter("The paper's tables")
    medians: dict[str, dict[str, tuple[float, float | None]]] = {}
    look = styles(normalise.PRINTED_MEDIANS)
    cells: dict[str, list[Cell]] = {name: [style.label] for name, style in look.items()}
    lows, highs = {}, {}
    for i, regime in enumerate(normalise.REGIMES):
        ends = with_published({}, None)[f"paper/{regime}"]
        of_regime = {}
        for name in look:
            printed = normalise.PRINTED_MEDIANS[name][i]
            if name not in ends:
                cells[name] += [None, None, printed]
                continue
            percent = studies.percent(ends[name], f"paper/{regime}")
            scores = sorted(score for (score,) in percent.values())
            median = float(np.median(scores))
            # The median of 57 is the 29th: three more games, all below or all above the others,
            # make it the 26th or the 29th of these 54.
            low, high = scores[25], scores[28]
            lows[name, regime], highs[name, regime] = low, high
            of_regime[name] = (median, printed)
            cells[name] += [median, f"{low:.1f} to {high:.1f}", printed]
        medians[_STARTS[regime].capitalize()] = of_regime
    page.figure(
        figures.published_medians(
            medians, look, note="bars: 54 games · diamonds: 57 games · 1 score per game and agent"
        ),
        "paper_medians",
        "Medians of the paper's per-game tables, and those that it prints.",
    )
    header = ["agent"]
    for starts in ("no-op", "human starts"):
        header += [f"{starts}, 54 games", f"{starts}, possible for 57", f"{starts}, printed"]
    page.table(
        Table(
            "paper_medians",
            "Median score in percent of human: from the 54 games of the paper's tables, what three "
            "more games could make of it, and what the paper prints for 57.",
            header,
            list(cells.values()),
        )
    )
    noop, human = medians["No-op starts"]["rainbow"][0], medians["Human starts"]["rainbow"][0]
    key = ("rainbow", "noop"), ("rainbow", "human")
    page.text(
        f"From the tables Rainbow's medians are {noop:.1f} % (no-op starts) and {human:.1f} % "
        "(human starts); the paper's text says 223 % and 153 %. Both can be right. The text is "
        "about 57 games, the tables list 54: jamesbond, riverraid and up_n_down are not in them. "
        "Whatever Rainbow scored there, the median of all 57 lies between "
        f"{lows[key[0]]:.1f} and {highs[key[0]]:.1f} % (no-op starts) and between "
        f"{lows[key[1]]:.1f} and {highs[key[1]]:.1f} % (human starts), and so do the printed ones."
    )


def method(page: Page) -> None:
    """How the numbers were made."""
    page.chapter("How to read this")
    page.text(
        "A human-normalised score is 100 × (score − random) / |human − random|: 0 % plays as a "  # noqa: RUF001
        "random player does, 100 % as a human tester. No-op and human starts have references of "
        "their own. Scores are means of whole games with unclipped rewards."
    )
    page.text(
        "Medians and means are over games, of each game's mean over seeds. The interquartile mean "
        "is over all runs. Intervals draw seeds anew within every game, 2,000 times. An agent's "
        "curve over games ends where its shortest counted run ends. Frames are emulator frames; "
        "elsewhere than on Atari a frame is one step."
    )


def _draw_games(page: Page, runs: list[Run], stem: str) -> None:
    drawn = [run for run in runs if len(run.curve.frames)]
    if not drawn:
        return
    look = styles({run.agent for run in drawn})
    window = _window(_SMOOTH_GAME, int(np.median([len(run.curve.frames) for run in drawn])))
    references = normalise.references("noop")
    for title, names in groups(look).items():
        worlds: dict[str, dict[str, Line]] = {}
        chosen = [run for run in drawn if run.agent in names]
        for world, of_world in studies.by_world(chosen).items():
            lines = {
                name: _game_line(of_agent, window)
                for name, of_agent in studies.by_agent(of_world).items()
            }
            worlds[world] = {name: line for name in names if (line := lines.get(name)) is not None}
        is_any_dotted = any(line.is_dotted for lines in worlds.values() for line in lines.values())
        parts = [f"{_games(len(worlds))}, {seeds_text(_seed_counts(chosen))} each", _smooth(window)]
        if any(len(lines) <= 4 for lines in worlds.values()) and max(_seed_counts(chosen)) > 1:
            parts.append("bands: lowest to highest seed")
        if is_any_dotted:
            parts.append("dotted: training returns")
        name = "ablations" if "ablations" in title else "agents"
        page.figure(
            figures.game_curves(
                worlds,
                look,
                humans={w: references[w].human for w in worlds if w in references},
                note=" · ".join([*parts, _protocols(chosen)]),
            ),
            f"{stem}_{name}",
            f"{title}: mean score over seeds in each game.",
        )


def _game_line(runs: list[Run], window: int) -> Line | None:
    """The mean and range of the seeds as far as all go; None if they share no frames."""
    evaluated = [run for run in runs if not run.curve.is_training] or runs
    finished = [run for run in evaluated if run.is_finished] or evaluated
    frames = studies.common_frames(finished)
    if not len(frames):
        return None
    window = min(window, len(frames))
    curves = np.array([np.interp(frames, run.curve.frames, run.curve.scores) for run in finished])
    curves = moving_average(curves, window)
    is_spread = len(finished) > 1
    return Line(
        frames[window - 1 :],
        curves.mean(axis=0),
        curves.min(axis=0) if is_spread else None,
        curves.max(axis=0) if is_spread else None,
        finished[0].curve.is_training,
    )


def _milestones(medians: Mapping[str, Line], look: Mapping[str, Style]) -> list[str]:
    """When Rainbow reaches DQN and the best of the others, as the paper tells it."""
    if "rainbow" not in medians or len(medians) < 2:
        return []
    rainbow = medians["rainbow"]
    best = {name: line.values.max() for name, line in medians.items() if name != "rainbow"}
    highest = max(best, key=lambda name: best[name])
    text = f"Rainbow ends at a median of {rainbow.values[-1]:.0f} % of human."
    for name in dict.fromkeys(name for name in ("dqn", highest) if name in best):
        whose = f"{look[name].label} at its best ({best[name]:.0f} %)"
        if name == highest and len(best) > 1:
            whose = f"the best of all others, {look[name].label} ({best[name]:.0f} %),"
        above = np.flatnonzero(rainbow.values >= best[name])
        if len(above):
            millions = rainbow.frames[above[0]] / 1e6
            text += f" It reaches {whose} after {millions:.4g} million frames."
        else:
            text += f" It does not reach {whose.rstrip(',')}."
    return [text]


def _curve_table(name: str, lines: Mapping[str, Line]) -> Table:
    look = styles(lines)
    rows: list[list[Cell]] = [
        [look[agent].label, frame / 1e6, float(value)]
        for agent in look
        for frame, value in zip(lines[agent].frames, lines[agent].values, strict=True)
    ]
    header = ["agent", "million frames", "median (% of human)"]
    return Table(name, "The numbers of this figure.", header, rows, digits=3)


def _window(points: int, length: int) -> int:
    """A window that leaves short curves their shape."""
    return max(1, min(points, length // 10))


def _smooth(window: int) -> str:
    return f"moving average over {window} points" if window > 1 else "not smoothed"


def _games(*counts: int) -> str:
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"{number} game{'s' if high != 1 else ''}"


def _seed_counts(runs: list[Run]) -> list[int]:
    return [
        len(of_world)
        for of in studies.by_agent(runs).values()
        for of_world in studies.by_world(of).values()
    ]


def _protocols(runs: list[Run]) -> str:
    kinds = {
        run.curve.protocol + (" in training" if run.curve.is_training else "")
        for run in runs
        if len(run.curve.frames)
    }
    return ", ".join(sorted(kinds))


def _note(grids, window: int, runs: list[Run]) -> str:
    games = _games(*(len(grid.worlds) for grid in grids))
    seeds = seeds_text([count for grid in grids for count in grid.seeds])
    return f"{games}, {seeds} each · {_smooth(window)} · {_protocols(runs)}"


def _mean(scores: list[float] | None) -> float | None:
    return float(np.mean(scores)) if scores else None


def _interval(interval: Interval | None) -> str | None:
    return None if interval is None else f"[{interval.low:,.1f}, {interval.high:,.1f}]"
