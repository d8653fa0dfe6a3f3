"""Tables and curves of every environment, in raw scores (appendix of the paper)."""

import numpy as np

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import panels, styles
from rainbow_tf.reporting.chapters.end_scores import Ends
from rainbow_tf.reporting.chapters.over_time import window
from rainbow_tf.reporting.figures import Line
from rainbow_tf.reporting.page import Page
from rainbow_tf.reporting.tables import Row
from rainbow_tf.reporting.wording import made_of, protocol_title, seed_counts, short, sources
from rainbow_tf.scoring import normalise, study
from rainbow_tf.scoring.aggregate import moving_average
from rainbow_tf.scoring.runs import Run

_SMOOTH = 10  # points, as in the paper
_TRAINING_POINTS = 200
_DOPAMINE = "Dopamine"

Lines = dict[str, dict[str, Line]]  # by environment and agent


def write(page: Page, ends: Ends, runs: list[Run], *, with_dopamine: bool) -> None:
    """Writes the games that have a human reference."""
    page.chapter("Every game")
    for protocol, agents in ends.items():
        look = styles(agents)
        blank: Row = dict.fromkeys(style.label for style in look.values())
        references = normalise.references(study.regime(protocol))
        raw: list[Row] = []
        percent: list[Row] = []
        for game in sorted({game for of in agents.values() for game in of}):
            reference = references[game]
            means = {
                look[name].label: float(np.mean([end.score for end in agents[name][game]]))
                for name in look
                if game in agents[name]
            }
            raw.append({"game": game, **reference._asdict(), **blank, **means})
            means = {label: reference.percent(mean) for label, mean in means.items()}
            percent.append({"game": game, **blank, **means})
        title, stem = protocol_title(protocol), protocol.replace("/", "_")
        page.table(f"games_{stem}", f"Scores, {title}: in points.", raw, bold_best=blank)
        caption = f"Normalised scores, {title}: in percent of human."
        page.table(f"games_{stem}_normalised", caption, percent, bold_best=blank)
    _draw(page, runs, "games", _dopamine(page, runs) if with_dopamine else {})


def write_environments(page: Page, runs: list[Run]) -> None:
    """Writes the environments that have no human reference."""
    page.chapter("Scores by environment")
    look = styles({run.agent for run in runs})
    rows: list[Row] = []
    for environment, group in study.by_environment(runs).items():
        for protocol, agents in study.end_scores(study.counted(group)).items():
            for name in (name for name in look if name in agents):
                scores = [end.score for end in agents[name][environment]]  # in ascending order
                row: Row = {"environment": environment, "agent": look[name].label}
                row["score"] = float(np.mean(scores))
                row["lowest seed"] = scores[0] if len(scores) > 1 else None
                row["highest seed"] = scores[-1] if len(scores) > 1 else None
                row |= {"seeds": str(len(scores)), "scores from": sources(agents[name])}
                rows.append({**row, "protocol": protocol})
    over = ": mean over seeds" if max(seed_counts(runs)) > 1 else ""
    page.table("environments", f"End scores in points{over}.", rows)
    _draw(page, runs, "environments", {})


def _draw(page: Page, runs: list[Run], stem: str, published: Lines) -> None:
    drawn = [run for run in runs if len(run.curve.frames)]
    if not drawn:
        return
    size = window(_SMOOTH, int(np.median([len(run.curve.frames) for run in drawn])))
    lines: Lines = {}
    for environment, group in study.by_environment(drawn).items():
        found = {name: _line(of_agent, size) for name, of_agent in study.by_agent(group).items()}
        of = {name: line for name, line in found.items() if line is not None}
        of |= published.get(environment, {})
        if any(len(line.frames) > 1 or line.training is not None for line in of.values()):
            lines[environment] = of
        elif of:
            listed = "; ".join(
                f"{style.label} {of[name].values[0]:,.1f} after {short(of[name].frames[0])} frames"
                for name, style in styles(of).items()
            )
            page.text(f"{environment} has one score per agent, so no curve: {listed}.")
    look = styles({run.agent for run in drawn}.union(*published.values()))
    humans = {name: ref.human for name, ref in normalise.references("noop").items()}
    for title, names in panels(look).items():
        shown = {
            environment: {name: of[name] for name in names if name in of}
            for environment, of in lines.items()
            if set(names) & set(of)
        }
        if not shown:
            continue
        chosen = [run for run in drawn if run.agent in names and run.environment in shown]
        has_seeds = max(seed_counts(chosen)) > 1
        page.figure(
            f"{stem}_{'ablations' if 'ablations' in title else 'agents'}",
            ("Scores" if title == "Agents" else f"{title}: scores")
            + (" over training, mean over seeds." if has_seeds else " over training."),
            figures.game_curves(shown, look, humans=humans),
            note=made_of(chosen, *_legend_notes(shown, has_seeds), window=size),
        )


def _legend_notes(panels: Lines, has_seeds: bool) -> list[str]:
    """What lines and bands of a figure mean."""
    lines = [line for of in panels.values() for line in of.values()]
    notes = []
    if has_seeds and any(len(of) <= figures.BAND_AGENTS for of in panels.values()):
        notes.append("bands: lowest to highest seed")
    if any(line.training is not None for line in lines):
        notes.append("thin lines: training returns, mean of the last 100 episodes")
    if any(line.is_dotted for line in lines):
        notes.append("dotted: training returns")
    if any(name.endswith(f"({_DOPAMINE})") for of in panels.values() for name in of):
        notes.append(f"{_DOPAMINE}: training returns with sticky actions, 5 seeds")
    return notes


def _line(runs: list[Run], size: int) -> Line | None:
    """The mean and range of the seeds as far as all go; None if they share no frames."""
    finished = study.counted(runs)
    frames, curves = study.on_common_frames([run.curve for run in finished])
    if not len(frames):
        return None
    size = min(size, len(frames))
    curves = moving_average(curves, size)
    is_training = finished[0].curve.is_training
    line = Line(frames[size - 1 :], curves.mean(axis=0), is_dotted=is_training)
    if len(finished) > 1:
        line = line._replace(band=(curves.min(axis=0), curves.max(axis=0)))
    trained = [run.training for run in finished if len(run.training.frames)]
    if trained and not is_training:
        points, returns = study.on_common_frames(trained)
        step = max(1, len(points) // _TRAINING_POINTS)
        if len(points) > 1:
            line = line._replace(training=(points[::step], returns.mean(axis=0)[::step]))
    return line


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
                row: Row = {"game": game, "agent": styles([agent])[agent].label}
                row |= {"million frames": int(point.frames / 1e6), "ours": None}
                if curve is not None and curve.frames[0] <= point.frames:
                    row["ours"] = float(np.interp(point.frames, curve.frames, curve.values))
                row |= {"Dopamine": point.mean, "standard deviation": point.deviation}
                rows.append({**row, "Dopamine's seeds": point.seeds})
    if not rows:
        page.text(
            "Dopamine's curves, in six games from 1M frames on, have no point for these runs."
        )
    caption = (
        "Dopamine's scores at the same frames: training returns with sticky actions, and its "
        "Rainbow has three of the six components, so this is no exact comparison."
    )
    page.table("dopamine", caption, rows)
    return found
