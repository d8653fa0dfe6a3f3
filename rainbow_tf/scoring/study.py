"""What a set of runs says together: protocols, curves, end scores, missing runs."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.scoring import normalise
from rainbow_tf.scoring.aggregate import (
    Aggregate,
    Interval,
    aggregate,
    area_under_curve,
    bootstrap,
    bootstrap_episodes,
    score_matrix,
)
from rainbow_tf.scoring.runs import Curve, Evaluation, Run

SNAPSHOT = "evaluate"
BEST = "best in training"
TRAINING = "training returns"
_REPETITIONS = 1000


class Grid(NamedTuple):
    """Curves of one agent on common frames: a row of scores for each environment."""

    frames: np.ndarray  # [T]
    environments: tuple[str, ...]  # G
    scores: np.ndarray  # [G, T], mean over seeds
    seeds: tuple[int, ...]  # seeds per environment


class EndScores(NamedTuple):
    """The end scores of one agent by environment, and where they come from."""

    by_environment: dict[str, list[float]]  # a score per seed
    sources: frozenset[str]
    conditions: frozenset[str] = frozenset()  # of the evaluate command
    episodes: Mapping[str, np.ndarray] = {}  # scores per episode, of environments with one seed


class Estimate(NamedTuple):
    """Aggregates of an agent, and their intervals over its seeds or, with one seed, episodes."""

    values: Aggregate
    intervals: tuple[Interval, Interval, Interval] | None
    over: str | None


class Missing(NamedTuple):
    """A run of the grid that is missing or unfinished."""

    environment: str
    agent: str
    seed: int
    found: str


def has_reference(environment: str) -> bool:
    """Whether there is a human score to normalise with."""
    return environment in normalise.references("noop")


def regime(protocol: str) -> str:
    """The references that scores of a protocol are compared with."""
    return "noop" if protocol.endswith("/noop") else "human"


def conflicting_protocols(runs: list[Run], *, with_paper: bool) -> dict[str, str]:
    """Protocols whose scores must not be compared, each with a place where it occurs.

    No-op and recorded starts have separate columns, so both may occur. Refused are curves of two
    protocols, sticky beside non-sticky scores, and starts recorded by different kinds of player.
    """
    curves = _curve_protocols(runs)
    scores = dict(curves)
    for run in runs:
        if run.config.game is not None:
            for evaluation in run.evaluations:
                scores.setdefault(evaluation.protocol, str(run.folder))
    if with_paper:
        scores = {"paper/noop": "the paper", "paper/human": "the paper"} | scores
    rules = {protocol: protocol.split("/")[0] for protocol in scores}
    starts = {protocol: protocol.split("/")[-1] for protocol in scores}
    recorded = {protocol: start for protocol, start in starts.items() if start != "noop"}
    for found in (curves, _one_each(scores, rules), _one_each(scores, recorded)):
        if len(found) > 1:
            return found
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
    if len(_curve_protocols(runs)) < 2:
        return runs
    return [
        dataclasses.replace(run, agent=f"{run.agent} [{run.curve.protocol}]")
        if run.config.game is not None
        else run
        for run in runs
    ]


def _curve_protocols(runs: list[Run]) -> dict[str, str]:
    found: dict[str, str] = {}
    for run in runs:
        if run.config.game is not None and len(run.curve.frames):
            found.setdefault(run.curve.protocol, str(run.folder))
    return found


def _one_each(places: dict[str, str], kinds: dict[str, str]) -> dict[str, str]:
    """One protocol of each kind, with its place."""
    first = {kind: protocol for protocol, kind in reversed(list(kinds.items()))}
    return {protocol: places[protocol] for protocol in first.values()}


def counted(runs: Iterable[Run]) -> list[Run]:
    """The runs that enter curves over games and end scores.

    Training returns are not mixed with evaluations, and an agent's unfinished runs count only
    if it has no finished one.
    """
    known = [run for run in runs if len(run.curve.frames)]
    evaluated = [run for run in known if not run.curve.is_training] or known
    found = []
    for of_agent in by_agent(evaluated).values():
        found += [run for run in of_agent if run.is_finished] or of_agent
    return found


def by_agent(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by agent."""
    found = defaultdict(list)
    for run in runs:
        found[run.agent].append(run)
    return dict(found)


def by_environment(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by environment, in alphabetical order."""
    found = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.environment):
        found[run.environment].append(run)
    return dict(found)


def common_frames(curves: Sequence[Curve]) -> np.ndarray:
    """The frames of the densest curve, cut to the range that all curves cover."""
    densest = max((curve.frames for curve in curves), key=len)
    # Lanes step together, so points may be some frames late: half a period is the same point.
    slack = np.median(np.diff(densest)) / 2 if len(densest) > 1 else 0
    start = max(curve.frames[0] for curve in curves) - slack
    end = min(curve.frames[-1] for curve in curves) + slack
    return densest[(densest >= start) & (densest <= end)]


def resampled(curves: Iterable[Curve], frames: np.ndarray) -> np.ndarray:
    """Scores at the given frames, a row per curve."""
    return np.array([np.interp(frames, curve.frames, curve.scores) for curve in curves])


def grid(runs: list[Run]) -> Grid:
    """The curves of one agent's runs, as far as all of them go."""
    frames = common_frames([run.curve for run in runs])
    environments = by_environment(runs)
    scores = np.array(
        [
            resampled((run.curve for run in group), frames).mean(axis=0)
            for group in environments.values()
        ]
    )
    return Grid(frames, tuple(environments), scores, tuple(map(len, environments.values())))


def percent_grid(runs: list[Run]) -> Grid:
    """`grid` in percent of human."""
    curves = grid(runs)
    references = normalise.references(regime(runs[0].curve.protocol))
    percent = [
        references[environment].percent(scores)
        for environment, scores in zip(curves.environments, curves.scores, strict=True)
    ]
    return curves._replace(scores=np.array(percent))


def end_scores(runs: list[Run]) -> dict[str, dict[str, EndScores]]:
    """Raw end scores by protocol and agent.

    A score of the evaluate command is preferred to the best evaluation during training, which is
    biased upwards as the largest of many.
    """
    found: dict[str, dict[str, list[_EndScore]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for evaluation in run.evaluations:
            score = _EndScore(run.environment, evaluation.score, SNAPSHOT, evaluation)
            found[evaluation.protocol][run.agent].append(score)
        curve = run.curve
        evaluated = {evaluation.protocol for evaluation in run.evaluations}
        if curve.protocol not in evaluated and len(curve.scores):
            value = curve.scores[-1] if curve.is_training else curve.scores.max()
            source = TRAINING if curve.is_training else BEST
            score = _EndScore(run.environment, float(value), source)
            found[curve.protocol][run.agent].append(score)
    return {
        protocol: {agent: _gathered(scores) for agent, scores in found[protocol].items()}
        for protocol in sorted(found, key=lambda name: (regime(name) != "noop", name))
    }


class _EndScore(NamedTuple):
    environment: str
    score: float
    source: str
    evaluation: Evaluation | None = None


def _gathered(scores: list[_EndScore]) -> EndScores:
    by_environment = defaultdict(list)
    for score in sorted(scores, key=lambda score: score[:2]):
        by_environment[score.environment].append(score)
    return EndScores(
        {name: [score.score for score in group] for name, group in by_environment.items()},
        frozenset(score.source for score in scores),
        frozenset(score.evaluation.conditions for score in scores if score.evaluation),
        {
            name: group[0].evaluation.scores
            for name, group in by_environment.items()
            if len(group) == 1 and group[0].evaluation and len(group[0].evaluation.scores)
        },
    )


def percent(scores: EndScores, protocol: str) -> dict[str, list[float]]:
    """End scores in percent of human, of the environments that have a reference."""
    references = normalise.references(regime(protocol))
    return {
        environment: [references[environment].percent(score) for score in values]
        for environment, values in scores.by_environment.items()
        if environment in references
    }


def estimate(scores: EndScores, protocol: str) -> Estimate:
    """Aggregates in percent of human, of an agent with a score in a game that has a reference."""
    percents = percent(scores, protocol)
    matrix = score_matrix(percents.values())
    rng = np.random.default_rng(0)
    intervals, over = bootstrap(matrix, rng=rng), "seeds"
    if intervals is None and set(percents) <= set(scores.episodes):
        references = normalise.references(regime(protocol))
        episodes = [references[name].percent(scores.episodes[name]) for name in percents]
        intervals, over = bootstrap_episodes(episodes, rng=rng), "episodes"
    return Estimate(aggregate(matrix), intervals, over if intervals else None)


class Drops(NamedTuple):
    """Areas under the curves relative to Rainbow (0 %) and DQN (-100 %)."""

    agents: tuple[str, ...]
    environments: tuple[str, ...]
    change: np.ndarray  # [agents, environments], in percent; NaN where a run is missing
    omitted: tuple[str, ...]  # where DQN's area is not below Rainbow's
    intervals: np.ndarray | None = None  # [agents, 2], of the medians; None if all have one seed


def ablation_drops(runs: list[Run], ablations: Sequence[str]) -> Drops | None:
    """The effect of each ablation in each game; None without Rainbow, DQN and an ablation."""
    wanted = ("rainbow", "dqn", *ablations)
    areas: dict[str, dict[str, np.ndarray]] = {}  # by game and agent, an area per seed
    for name, group in by_environment(run for run in runs if run.agent in wanted).items():
        agents = by_agent(group)
        frames = common_frames([run.curve for run in group])
        if {"rainbow", "dqn"} < set(agents) and len(frames):
            areas[name] = {
                agent: np.array(
                    [
                        area_under_curve(frames, scores)
                        for scores in resampled((run.curve for run in of_agent), frames)
                    ]
                )
                for agent, of_agent in agents.items()
            }
    is_omitted = {name: a["rainbow"].mean() <= a["dqn"].mean() for name, a in areas.items()}
    kept = [a for name, a in areas.items() if not is_omitted[name]]
    omitted = tuple(name for name in areas if is_omitted[name])
    present = tuple(name for name in ablations if any(name in row for row in kept))
    if not present and not omitted:
        return None
    intervals = None
    if present and max(len(seeds) for row in kept for seeds in row.values()) > 1:
        rng = np.random.default_rng(0)
        draws = np.array(
            [
                _changes(kept, present, lambda a: rng.choice(a, len(a)).mean())
                for _ in range(_REPETITIONS)
            ]
        )  # [B, agents, games]
        draws = draws[~np.isnan(draws).all(axis=2).any(axis=1)]
        if len(draws):
            intervals = np.quantile(np.nanmedian(draws, axis=2), (0.025, 0.975), axis=0).T
    names = tuple(name for name in areas if not is_omitted[name])
    return Drops(present, names, _changes(kept, present, np.mean), omitted, intervals)


def _changes(
    games: list[dict[str, np.ndarray]], agents: Sequence[str], mean: Callable[[np.ndarray], float]
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


def missing_runs(runs: list[Run]) -> list[Missing]:
    """What the grid of environments, agents and seeds lacks.

    Games with a human reference form one grid, every other environment its own.
    """
    sets: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        sets["" if has_reference(run.environment) else run.environment].append(run)
    is_evaluated = any(not run.curve.is_training for run in runs if len(run.curve.frames))
    found = []
    for members in sets.values():
        there = {(run.environment, run.agent, run.config.seed): run for run in members}
        environments, agents, seeds = (
            sorted(values) for values in map(set, zip(*there, strict=True))
        )
        for key in itertools.product(environments, agents, seeds):
            problem = _problem(there.get(key), is_evaluated)
            if problem is not None:
                found.append(Missing(*key, problem))
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
    fields = [
        field.name
        for field in dataclasses.fields(Config)
        if not field.metadata["may_change"] and field.name not in ("game", "environment", "seed")
    ]
    sentences = []
    lengths = sorted({run.config.frames for run in runs if has_reference(run.environment)})
    if len(lengths) > 1:
        shown = ", ".join(f"{frames / 1e6:g}" for frames in lengths)
        sentences.append(
            f"Games were trained for different lengths ({shown} million frames), so end scores "
            "differ for that reason too."
        )
    for agent, of_agent in by_agent(runs).items():
        # Atari games share their settings; other environments may need their own.
        sets = defaultdict(list)
        for run in of_agent:
            sets["Atari" if run.config.game is not None else run.environment].append(run)
        for place, members in sets.items():
            for name in fields:
                values = {getattr(run.config, name) for run in members}
                if len(values) > 1:
                    shown = ", ".join(map(str, sorted(values, key=str)))
                    sentences.append(f"{agent} on {place}: runs differ in --{name} ({shown}).")
    return sentences
