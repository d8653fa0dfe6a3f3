"""A set of runs as a study: protocols, curves over games and seeds, end scores, what is missing."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.scoring import normalise
from rainbow_tf.scoring.aggregate import area_under_curve
from rainbow_tf.scoring.runs import Run

SNAPSHOT = "evaluate"
BEST = "best in training"
TRAINING = "training returns"


class Grid(NamedTuple):
    """Curves of one agent on common frames: a row of scores for each world."""

    frames: np.ndarray  # [T]
    worlds: tuple[str, ...]  # G
    scores: np.ndarray  # [G, T], mean over seeds
    seeds: tuple[int, ...]  # seeds per world


class EndScores(NamedTuple):
    """The scores of one agent at the end, by world and seed, and where they come from."""

    by_world: dict[str, list[float]]
    sources: frozenset[str]


class Missing(NamedTuple):
    """A run of the grid that is not there, or not to its end."""

    world: str
    agent: str
    seed: int
    found: str


def has_reference(world: str) -> bool:
    """Whether a world's scores can be said in percent of human."""
    return world in normalise.references("noop")


def regime(protocol: str) -> str:
    """The references that scores of a protocol are compared with."""
    return "noop" if protocol.endswith("/noop") else "human"


def unlike_protocols(runs: list[Run], *, with_paper: bool) -> dict[str, str]:
    """Protocols whose scores must not be compared, each with a place it is in; often none.

    No-op and recorded starts stand in columns of their own, so both may be there. What may not:
    curves of two protocols, sticky beside non-sticky scores, starts recorded by different players.
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
    """Refuses unlike protocols; if they may mix, agents' names say which their curves follow."""
    unlike = unlike_protocols(runs, with_paper=with_paper)
    if unlike and not mixed:
        listed = ", ".join(f"{protocol} in {place}" for protocol, place in unlike.items())
        raise ConfigError(
            f"Scores of unlike protocols cannot be compared ({listed}); give --mixed to show them "
            "side by side, each with its label, or --runs with the runs of one."
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
    """A protocol of each kind, with its place."""
    first = {kind: protocol for protocol, kind in reversed(list(kinds.items()))}
    return {protocol: places[protocol] for protocol in first.values()}


def counted(runs: Iterable[Run]) -> list[Run]:
    """The runs that enter curves over games and end scores.

    Training returns do not stand beside evaluations, and an agent's unfinished runs count only
    while it has no finished one.
    """
    known = [run for run in runs if len(run.curve.frames)]
    evaluated = [run for run in known if not run.curve.is_training] or known
    found = []
    for of_agent in by_agent(evaluated).values():
        found += [run for run in of_agent if run.is_finished] or of_agent
    return found


def by_agent(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by the name of their agent."""
    found = defaultdict(list)
    for run in runs:
        found[run.agent].append(run)
    return dict(found)


def by_world(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by the name of their world, in alphabetical order."""
    found = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.world):
        found[run.world].append(run)
    return dict(found)


def common_frames(runs: Sequence[Run]) -> np.ndarray:
    """Frames that all curves cover: the points of the densest, cut to what the shortest reaches."""
    densest = max((run.curve.frames for run in runs), key=len)
    # Lanes step together, so a point comes some frames late: half a period is the same point.
    slack = np.median(np.diff(densest)) / 2 if len(densest) > 1 else 0
    start = max(run.curve.frames[0] for run in runs) - slack
    end = min(run.curve.frames[-1] for run in runs) + slack
    return densest[(densest >= start) & (densest <= end)]


def mean_curve(runs: Iterable[Run], frames: np.ndarray) -> np.ndarray:
    """Mean over seeds, at the given frames."""
    curves = [np.interp(frames, run.curve.frames, run.curve.scores) for run in runs]
    return np.mean(curves, axis=0)


def grid(runs: list[Run]) -> Grid:
    """The curves of one agent's runs, as far as all of them go."""
    frames = common_frames(runs)
    worlds = by_world(runs)
    scores = np.array([mean_curve(of_world, frames) for of_world in worlds.values()])
    return Grid(frames, tuple(worlds), scores, tuple(map(len, worlds.values())))


def percent_grid(runs: list[Run]) -> Grid:
    """`grid` in percent of human."""
    curves = grid(runs)
    references = normalise.references(regime(runs[0].curve.protocol))
    percent = [
        references[world].percent(scores)
        for world, scores in zip(curves.worlds, curves.scores, strict=True)
    ]
    return curves._replace(scores=np.array(percent))


def end_scores(runs: list[Run]) -> dict[str, dict[str, EndScores]]:
    """Raw end scores by protocol and agent.

    A snapshot that the evaluate command scored goes before the best evaluation during training,
    which is a little too good: it is the largest of many.
    """
    found: dict[str, dict[str, list[tuple[str, float, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        evaluated = {evaluation.protocol for evaluation in run.evaluations}
        for evaluation in run.evaluations:
            found[evaluation.protocol][run.agent].append((run.world, evaluation.score, SNAPSHOT))
        curve = run.curve
        if curve.protocol not in evaluated and len(curve.scores):
            score = curve.scores[-1] if curve.is_training else curve.scores.max()
            source = TRAINING if curve.is_training else BEST
            found[curve.protocol][run.agent].append((run.world, float(score), source))
    result: dict[str, dict[str, EndScores]] = {}
    for protocol in sorted(found, key=lambda name: (regime(name) != "noop", name)):
        result[protocol] = {}
        for agent, rows in found[protocol].items():
            worlds: dict[str, list[float]] = defaultdict(list)
            for world, score, _ in sorted(rows):
                worlds[world].append(score)
            sources = frozenset(source for _, _, source in rows)
            result[protocol][agent] = EndScores(dict(worlds), sources)
    return result


def percent(scores: EndScores, protocol: str) -> dict[str, list[float]]:
    """End scores in percent of human, of the worlds that have a reference."""
    references = normalise.references(regime(protocol))
    return {
        world: [references[world].percent(score) for score in values]
        for world, values in scores.by_world.items()
        if world in references
    }


class Drops(NamedTuple):
    """Areas under the curves relative to Rainbow (0 %) and DQN (-100 %)."""

    agents: tuple[str, ...]
    worlds: tuple[str, ...]
    change: np.ndarray  # [agents, worlds], in percent; NaN where a run is missing
    omitted: tuple[str, ...]  # where DQN's area is not below Rainbow's


def ablation_drops(runs: list[Run], ablations: Sequence[str]) -> Drops | None:
    """What each ablation costs in each game; None without Rainbow, DQN and an ablation."""
    wanted = {"rainbow", "dqn", *ablations}
    found = {}
    omitted = []
    for world, of_world in by_world(run for run in runs if run.agent in wanted).items():
        agents = by_agent(of_world)
        if not {"rainbow", "dqn"} < set(agents):
            continue
        frames = common_frames(of_world)
        if not len(frames):
            continue
        areas = {
            agent: area_under_curve(frames, mean_curve(of_agent, frames))
            for agent, of_agent in agents.items()
        }
        span = areas["rainbow"] - areas["dqn"]
        if span <= 0:
            omitted.append(world)
            continue
        found[world] = {
            agent: 100 * (area - areas["rainbow"]) / span for agent, area in areas.items()
        }
    present = tuple(name for name in ablations if any(name in row for row in found.values()))
    if not present and not omitted:
        return None
    change = np.array([[row.get(name, np.nan) for row in found.values()] for name in present])
    return Drops(present, tuple(found), change, tuple(omitted))


def missing_runs(runs: list[Run]) -> list[Missing]:
    """What a full grid of worlds, agents and seeds lacks; worlds without a human one by one."""
    sets: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        sets["" if has_reference(run.world) else run.world].append(run)
    is_evaluated = any(not run.curve.is_training for run in runs if len(run.curve.frames))
    found = []
    for members in sets.values():
        there = {(run.world, run.agent, run.config.seed): run for run in members}
        worlds, agents, seeds = (sorted(values) for values in map(set, zip(*there, strict=True)))
        for key in itertools.product(worlds, agents, seeds):
            problem = _problem(there.get(key), is_evaluated)
            if problem is not None:
                found.append(Missing(*key, problem))
    return found


def _problem(run: Run | None, is_evaluated: bool) -> str | None:
    if run is None:
        return "not there"
    if not len(run.curve.frames):
        return "no score yet"
    if run.curve.is_training and is_evaluated:
        return "no evaluation yet"
    if not run.is_finished:
        done, whole = run.last_frame / 1e6, run.config.frames / 1e6
        return f"unfinished: {done:g} of {whole:g} million frames"
    return None


def unlike_settings(runs: list[Run]) -> list[str]:
    """A sentence for each thing in which runs that are compared were not made alike."""
    fields = [
        field.name
        for field in dataclasses.fields(Config)
        if not field.metadata["may_change"] and field.name not in ("game", "environment", "seed")
    ]
    sentences = []
    lengths = sorted({run.config.frames for run in runs if has_reference(run.world)})
    if len(lengths) > 1:
        shown = ", ".join(f"{frames / 1e6:g}" for frames in lengths)
        sentences.append(
            f"Games were trained for unlike lengths ({shown} million frames), so end scores differ "
            "for that reason too."
        )
    for agent, of_agent in by_agent(runs).items():
        # A world of its own may need settings of its own; Atari games share theirs.
        sets = defaultdict(list)
        for run in of_agent:
            sets["Atari" if run.config.game is not None else run.world].append(run)
        for place, members in sets.items():
            for name in fields:
                values = {getattr(run.config, name) for run in members}
                if len(values) > 1:
                    shown = ", ".join(map(str, sorted(values, key=str)))
                    sentences.append(f"{agent} on {place}: runs differ in --{name} ({shown}).")
    return sentences
