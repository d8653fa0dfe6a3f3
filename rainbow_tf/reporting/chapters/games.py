"""Tables and curves of every environment, in raw scores (appendix of the paper)."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import groups, styles
from rainbow_tf.reporting.chapters.end_scores import Ends
from rainbow_tf.reporting.chapters.over_time import window
from rainbow_tf.reporting.figures import Line
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row, Table
from rainbow_tf.reporting.wording import made_of, protocol_title, seed_counts, short, smoothing
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.aggregate import moving_average
from rainbow_tf.scoring.runs import Curve, Run

_SMOOTH = 10  # points, as in the paper
_TRAINING_POINTS = 200
_DOPAMINE = "Dopamine"

# Lines by environment and agent.
Lines = dict[str, dict[str, Line]]


def write(page: Page, ends: Ends, runs: list[Run], *, with_dopamine: bool = False) -> None:
    """Writes the games that have a human reference."""
    page.chapter("Every game")
    for protocol, agents in ends.items():
        raw: list[Row] = []
        percent: list[Row] = []
        references = normalise.references(study.regime(protocol))
        look = styles(agents)
        labels = [style.label for style in look.values()]
        for game in sorted({g for scores in agents.values() for g in scores.by_environment}):
            if game not in references:
                continue
            reference = references[game]
            raw.append({"game": game, "random": reference.random, "human": reference.human})
            percent.append({"game": game})
            for name, label in zip(look, labels, strict=True):
                scores = agents[name].by_environment.get(game)
                mean = float(np.mean(scores)) if scores else None
                raw[-1][label] = mean
                percent[-1][label] = None if mean is None else reference.percent(mean)
        title, stem = protocol_title(protocol), protocol.replace("/", "_")
        page.table(Table(f"games_{stem}", f"Scores, {title}: in points.", raw, bold_best=labels))
        caption = f"Normalised scores, {title}: in percent of human."
        page.table(Table(f"games_{stem}_normalised", caption, percent, bold_best=labels))
    published = _dopamine(page, runs) if with_dopamine else {}
    _draw(page, runs, "games", published)


def write_environments(page: Page, runs: list[Run]) -> None:
    """Writes the environments that have no human reference."""
    page.chapter("Scores by environment")
    look = styles({run.agent for run in runs})
    rows: list[Row] = []
    for environment, group in study.by_environment(runs).items():
        for protocol, agents in study.end_scores(study.counted(group)).items():
            for name in (name for name in look if name in agents):
                scores = np.array(agents[name].by_environment[environment])
                has_range = len(scores) > 1
                rows.append(
                    {
                        "environment": environment,
                        "agent": look[name].label,
                        "score": float(scores.mean()),
                        "lowest seed": float(scores.min()) if has_range else None,
                        "highest seed": float(scores.max()) if has_range else None,
                        "seeds": str(len(scores)),
                        "scores from": " and ".join(sorted(agents[name].sources)),
                        "protocol": protocol,
                    }
                )
    over = ": mean over seeds" if max(seed_counts(runs)) > 1 else ""
    page.table(Table("environments", f"End scores in points{over}.", rows))
    _draw(page, runs, "environments", {})


def _draw(page: Page, runs: list[Run], stem: str, published: Lines) -> None:
    drawn = [run for run in runs if len(run.curve.frames)]
    if not drawn:
        return
    size = window(_SMOOTH, int(np.median([len(run.curve.frames) for run in drawn])))
    lines = {
        environment: {
            name: line
            for name, of_agent in study.by_agent(group).items()
            if (line := _line(of_agent, size)) is not None
        }
        | published.get(environment, {})
        for environment, group in study.by_environment(drawn).items()
    }
    _say_single_points(page, lines)
    look = styles({name for of in lines.values() for name in of})
    humans = {name: ref.human for name, ref in normalise.references("noop").items()}
    for title, names in groups(look).items():
        panels = {
            environment: {name: of[name] for name in names if name in of}
            for environment, of in lines.items()
            if not _is_single(of) and set(names) & set(of)
        }
        if not panels:
            continue
        chosen = [run for run in drawn if run.agent in names and run.environment in panels]
        has_seeds = max(seed_counts(chosen)) > 1
        kind = "ablations" if "ablations" in title else "agents"
        notes = [smoothing(size), *_legend_notes(panels, has_seeds)]
        page.figure(
            figures.game_curves(panels, look, humans=humans, note=made_of(chosen, *notes)),
            f"{stem}_{kind}",
            ("Scores" if title == "Agents" else f"{title}: scores")
            + (" over training, mean over seeds." if has_seeds else " over training."),
        )


def _legend_notes(panels: Lines, has_seeds: bool) -> list[str]:
    """What lines and bands of a figure mean."""
    lines = [line for of in panels.values() for line in of.values()]
    names = {name for of in panels.values() for name in of}
    notes = []
    if has_seeds and any(len(of) <= figures.BAND_AGENTS for of in panels.values()):
        notes.append("bands: lowest to highest seed")
    if any(line.training is not None for line in lines):
        notes.append("thin lines: training returns, mean of the last 100 episodes")
    if any(line.is_dotted for line in lines):
        notes.append("dotted: training returns")
    if any(name.endswith(f"({_DOPAMINE})") for name in names):
        notes.append(f"{_DOPAMINE}: training returns with sticky actions, 5 seeds")
    return notes


def _is_single(lines: dict[str, Line]) -> bool:
    """Whether there is nothing but one point for each agent."""
    return all(len(line.frames) < 2 and line.training is None for line in lines.values())


def _say_single_points(page: Page, lines: Lines) -> None:
    for environment, of in lines.items():
        if of and _is_single(of):
            look = styles(of)
            listed = "; ".join(
                f"{style.label} {of[name].values[0]:,.1f} after {short(of[name].frames[0])} frames"
                for name, style in look.items()
            )
            page.text(f"{environment} has one score per agent, so no curve: {listed}.")


def _line(runs: list[Run], size: int) -> Line | None:
    """The mean and range of the seeds as far as all go; None if they share no frames."""
    evaluated = [run for run in runs if not run.curve.is_training] or runs
    finished = [run for run in evaluated if run.is_finished] or evaluated
    frames, curves = _common([run.curve for run in finished])
    if not len(frames):
        return None
    size = min(size, len(frames))
    curves = moving_average(curves, size)
    is_training = finished[0].curve.is_training
    training = None
    if not is_training:
        points, returns = _common([run.training for run in finished])
        step = max(1, len(points) // _TRAINING_POINTS)
        if len(points) > 1:
            training = (points[::step], returns.mean(axis=0)[::step])
    low, high = (curves.min(axis=0), curves.max(axis=0)) if len(finished) > 1 else (None, None)
    return Line(frames[size - 1 :], curves.mean(axis=0), low, high, is_training, training)


def _common(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The frames that all curves share, and each curve's scores there."""
    known = [curve for curve in curves if len(curve.frames)]
    frames = study.common_frames(known) if known else np.array([])
    return frames, study.resampled(known, frames)


def _dopamine(page: Page, runs: list[Run]) -> Lines:
    """Dopamine's curves as far as our runs go; also as a table, beside our scores."""
    found: Lines = {}
    rows: list[Row] = []
    for game, group in study.by_environment(runs).items():
        ours = study.by_agent(run for run in group if len(run.curve.frames))
        last = max(run.last_frame for run in group)
        curves = normalise.dopamine_curves(game)
        for agent in sorted(set(curves) & set(ours)) or sorted({"rainbow"} & set(curves)):
            points = [point for point in curves[agent] if point.frames <= 1.05 * last]
            if not points:
                continue
            frames, means = np.array([point[:2] for point in points]).T
            found.setdefault(game, {})[f"{agent} ({_DOPAMINE})"] = Line(frames, means)
            curve = _line(ours[agent], 1) if agent in ours else None
            for point in points:
                rows.append({"game": game, "agent": styles([agent])[agent].label})
                rows[-1] |= {"million frames": int(point.frames / 1e6), "ours": None}
                if curve is not None and curve.frames[0] <= point.frames:
                    rows[-1]["ours"] = float(np.interp(point.frames, curve.frames, curve.values))
                rows[-1] |= {"Dopamine": point.mean, "standard deviation": point.deviation}
                rows[-1] |= {"Dopamine's seeds": point.seeds}
    caption = (
        "Dopamine's scores at the same frames: training returns with sticky actions, and its "
        "Rainbow has three of the six components, so this is no exact comparison."
    )
    page.table(Table("dopamine", caption, rows))
    if not rows:
        page.text(
            "Dopamine's curves, in six games from 1M frames on, have no point for these runs."
        )
    return found
