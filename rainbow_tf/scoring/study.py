"""What a set of runs says together: protocols, curves, end scores, missing runs."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.scoring import aggregate, normalise
from rainbow_tf.scoring.runs import Curve, Evaluation, Run

BEST = "best in training"
_REPETITIONS = 1000

Value = TypeVar("Value")
EndScores = dict[str, list[Evaluation]]  # of one agent: by environment, in ascending order
Areas = dict[str, list[float]]  # of one game: by agent, an area per seed


class Grid(NamedTuple):
    """Curves of one agent on common frames, in percent of human."""

    frames: np.ndarray  # [T]
    games: tuple[str, ...]  # G
    scores: np.ndarray  # [G, T], mean over seeds


class Estimate(NamedTuple):
    """Aggregates of an agent, and their intervals over its seeds or, with one seed, episodes."""

    percents: dict[str, list[float]]  # by game, a score per seed
    values: np.ndarray  # [3]
    intervals: np.ndarray | None  # [3, 2]
    over: str | None


def regime(protocol: str) -> str:
    """The references that scores of a protocol are compared with."""
    return "noop" if protocol.endswith("/noop") else "human"


def grouped(pairs: Iterable[tuple[str, Value]]) -> dict[str, list[Value]]:
    """The values of each key, in the order in which they come."""
    found: dict[str, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_agent(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by agent."""
    return grouped((run.agent, run) for run in runs)


def by_environment(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by environment, in alphabetical order."""
    return dict(sorted(grouped((run.environment, run) for run in runs).items()))


def conflicting_protocols(runs: list[Run], *, with_paper: bool) -> dict[str, str]:
    """Protocols whose scores must not be compared, each with a place where it occurs.

    No-op and recorded starts have separate columns, so both may occur. Refused are curves of two
    protocols, sticky beside non-sticky scores, and starts recorded by different kinds of player.
    """
    atari = [run for run in runs if run.is_atari]
    curves = [(run.curve.protocol, str(run.folder)) for run in atari if len(run.curve.frames)]
    scores = [(e.protocol, str(run.folder)) for run in atari for e in run.evaluations]
    places = {protocol: found[0] for protocol, found in grouped(curves + scores).items()}
    if with_paper:
        places = {"paper/noop": "the paper", "paper/human": "the paper"} | places
    kinds_of_curve = grouped((protocol, protocol) for protocol, _ in curves)
    rules = grouped((protocol.split("/")[0], protocol) for protocol in places)
    starts = grouped((protocol.split("/")[-1], protocol) for protocol in places)
    starts.pop("noop", None)
    for kinds in (kinds_of_curve, rules, starts):
        if len(kinds) > 1:
            return {protocols[0]: places[protocols[0]] for protocols in kinds.values()}
    return {}


def checked_protocols(runs: list[Run], *, mixed: bool, with_paper: bool) -> list[Run]:
    """Refuses conflicting protocols; with `mixed`, agents' names say which their curves follow."""
    conflicts = conflicting_protocols(runs, with_paper=with_paper)
    if conflicts and not mixed:
        listed = ", ".join(f"{protocol} in {place}" for protocol, place in conflicts.items())
        raise ConfigError(
            f"Scores of different protocols cannot be compared ({listed}); give --mixed to show "
            "them side by side with labels, or --runs with the runs of one protocol."
        )
    atari = [run for run in runs if run.is_atari]
    if len({run.curve.protocol for run in atari if len(run.curve.frames)}) < 2:
        return runs
    return [
        dataclasses.replace(run, agent=f"{run.agent} [{run.curve.protocol}]")
        if run.is_atari
        else run
        for run in runs
    ]


def counted(runs: Iterable[Run]) -> list[Run]:
    """The runs that enter curves over games and end scores, agent by agent.

    Training returns are not mixed with evaluations, and an agent's unfinished runs count only
    if it has no finished one.
    """
    known = [run for run in runs if len(run.curve.frames)]
    evaluated = [run for run in known if not run.curve.is_training] or known
    found = []
    for of_agent in by_agent(evaluated).values():
        found += [run for run in of_agent if run.is_finished] or of_agent
    return found


def on_common_frames(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The frames [T] of the densest curve that all curves cover, and the scores there [N, T]."""
    densest = max((curve.frames for curve in curves), key=len)
    # Lanes step together, so points may be some frames late: half a period is the same point.
    slack = np.median(np.diff(densest)) / 2 if len(densest) > 1 else 0
    start = max(curve.frames[0] for curve in curves) - slack
    end = min(curve.frames[-1] for curve in curves) + slack
    frames = densest[(densest >= start) & (densest <= end)]
    return frames, np.array([np.interp(frames, curve.frames, curve.scores) for curve in curves])


def percent_grid(runs: list[Run]) -> Grid:
    """The curves of one agent's runs in percent of human, as far as all of them go."""
    frames, scores = on_common_frames([run.curve for run in runs])
    references = normalise.references(regime(runs[0].curve.protocol))
    rows = grouped(zip((run.environment for run in runs), scores, strict=True))
    games = sorted(rows)
    percent = [references[game].percent(np.mean(rows[game], axis=0)) for game in games]
    return Grid(frames, tuple(games), np.array(percent))


def end_scores(runs: list[Run]) -> dict[str, dict[str, EndScores]]:
    """Raw end scores by protocol and agent.

    A score of the evaluate command is preferred to the best evaluation during training, which is
    biased upwards as the largest of many.
    """
    found = grouped(
        (evaluation.protocol, (run.agent, (run.environment, evaluation)))
        for run in runs
        for evaluation in _ends(run)
    )
    return {
        protocol: {
            agent: grouped(sorted(ends, key=lambda end: (end[0], end[1].score)))
            for agent, ends in grouped(found[protocol]).items()
        }
        for protocol in sorted(found, key=lambda name: (regime(name) != "noop", name))
    }


def _ends(run: Run) -> tuple[Evaluation, ...]:
    """The evaluations of a run, and the end of its curve if its protocol has none."""
    curve = run.curve
    if not len(curve.scores) or curve.protocol in {e.protocol for e in run.evaluations}:
        return run.evaluations
    score, source = curve.scores.max(), BEST
    if curve.is_training:
        score, source = curve.scores[-1], "training returns"
    return (*run.evaluations, Evaluation(curve.protocol, float(score), source))


def estimate(scores: EndScores, protocol: str) -> Estimate:
    """Aggregates in percent of human, of scores in games that have a reference."""
    references = normalise.references(regime(protocol))
    percents = {
        name: [references[name].percent(end.score) for end in ends] for name, ends in scores.items()
    }
    # A column per game, as long as the longest: [S, G].
    matrix = np.array(list(itertools.zip_longest(*percents.values(), fillvalue=np.nan)))
    rng = np.random.default_rng(0)
    intervals, over = aggregate.bootstrap(matrix, rng=rng), "seeds"
    if intervals is None and all(len(ends[0].scores) for ends in scores.values()):
        episodes = [references[name].percent(ends[0].scores) for name, ends in scores.items()]
        intervals, over = aggregate.bootstrap_episodes(episodes, rng=rng), "episodes"
    values = aggregate.aggregate(matrix)
    return Estimate(percents, values, intervals, None if intervals is None else over)


class Drops(NamedTuple):
    """Areas under the curves relative to Rainbow (0 %) and DQN (-100 %)."""

    agents: tuple[str, ...]
    environments: tuple[str, ...]
    change: np.ndarray  # [agents, environments], in percent; NaN where a run is missing
    omitted: tuple[str, ...]  # where DQN's area is not below Rainbow's
    intervals: np.ndarray | None  # [agents, 2], of the medians; None if all have one seed


def ablation_drops(runs: list[Run], ablations: Sequence[str]) -> Drops:
    """The effect of each ablation in each game that has Rainbow, DQN and an ablation."""
    wanted = {"rainbow", "dqn", *ablations}
    areas: dict[str, Areas] = {}
    for name, group in by_environment(run for run in runs if run.agent in wanted).items():
        frames, curves = on_common_frames([run.curve for run in group])
        agents = [run.agent for run in group]
        if {"rainbow", "dqn"} < set(agents) and len(frames):
            seeds = [aggregate.area_under_curve(frames, scores) for scores in curves]
            areas[name] = grouped(zip(agents, seeds, strict=True))
    kept = {name: of for name, of in areas.items() if np.mean(of["rainbow"]) > np.mean(of["dqn"])}
    omitted = tuple(name for name in areas if name not in kept)
    games = list(kept.values())
    present = tuple(agent for agent in ablations if any(agent in of for of in games))
    has_seeds = present and any(len(seeds) > 1 for of in games for seeds in of.values())
    intervals = _drop_intervals(games, present) if has_seeds else None
    return Drops(present, tuple(kept), _changes(games, present, np.mean), omitted, intervals)


def _changes(
    games: list[Areas], agents: Sequence[str], mean: Callable[[list[float]], float]
) -> np.ndarray:
    """Changes of area in percent [agents, games], with a mean over seeds."""
    change = np.full((len(agents), len(games)), np.nan)
    for g, areas in enumerate(games):
        means = {agent: mean(seeds) for agent, seeds in areas.items()}
        span = means["rainbow"] - means["dqn"]
        for a, agent in enumerate(agents):
            if agent in means and span > 0:  # among resampled seeds, DQN may be ahead
                change[a, g] = 100 * (means[agent] - means["rainbow"]) / span
    return change


def _drop_intervals(games: list[Areas], agents: Sequence[str]) -> np.ndarray | None:
    """95 % intervals of the median changes [agents, 2], resampling seeds within each game."""
    rng = np.random.default_rng(0)
    draws = np.array(
        [
            _changes(games, agents, lambda seeds: rng.choice(seeds, len(seeds)).mean())
            for _ in range(_REPETITIONS)
        ]
    )  # [B, agents, games]
    draws = draws[~np.isnan(draws).all(axis=2).any(axis=1)]
    if not len(draws):
        return None
    return np.quantile(np.nanmedian(draws, axis=2), (0.025, 0.975), axis=0).T


def missing_runs(runs: list[Run]) -> list[tuple[str, str, int, str]]:
    """What the grid lacks: environment, agent, seed, and what is there instead.

    Games with a human reference form one grid, every other environment its own.
    """
    is_evaluated = any(not run.curve.is_training for run in runs if len(run.curve.frames))
    found = []
    grids = grouped(("" if run.is_atari else run.environment, run) for run in runs)
    for members in grids.values():
        there = {(run.environment, run.agent, run.config.seed): run for run in members}
        for key in itertools.product(*(sorted(set(values)) for values in zip(*there, strict=True))):
            problem = _problem(there.get(key), is_evaluated)
            if problem is not None:
                found.append((*key, problem))
    return found


def _problem(run: Run | None, is_evaluated: bool) -> str | None:
    if run is None:
        return "missing"
    if not len(run.curve.frames):
        return "no score yet"
    if run.curve.is_training and is_evaluated:
        return "no evaluation yet"
    if not run.is_finished:
        done, whole = run.last_frame / 1e6, run.config.frames / 1e6
        return f"unfinished: {done:g} of {whole:g} million frames"
    return None


def differing_settings(runs: list[Run]) -> list[str]:
    """A sentence for each setting in which compared runs differ."""
    sentences = []
    lengths = sorted({run.config.frames for run in runs if run.is_atari})
    if len(lengths) > 1:
        shown = ", ".join(f"{frames / 1e6:g}" for frames in lengths)
        sentences.append(
            f"Games were trained for different lengths ({shown} million frames), so end scores "
            "differ for that reason too."
        )
    for agent, of_agent in by_agent(runs).items():
        # Atari games share their settings; other environments may need their own.
        places = grouped(("Atari" if run.is_atari else run.environment, run) for run in of_agent)
        for place, field in itertools.product(places, dataclasses.fields(Config)):
            values = {getattr(run.config, field.name) for run in places[place]}
            is_own = field.metadata["may_change"] or field.name in ("game", "environment", "seed")
            if len(values) > 1 and not is_own:
                shown = ", ".join(map(str, sorted(values, key=str)))
                sentences.append(f"{agent} on {place}: runs differ in --{field.name} ({shown}).")
    return sentences
