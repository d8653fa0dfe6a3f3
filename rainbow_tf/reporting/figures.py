"""The figures, drawn without a screen, in the colours of `agents.styles`; the page adds a note."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rainbow_tf.reporting.agents import Look, Style
from rainbow_tf.reporting.wording import short
from rainbow_tf.scoring.aggregate import AGGREGATES
from rainbow_tf.scoring.study import Drops, Estimate

_INK, _FAINT = "#222222", "#d9d9d9"
BAND_AGENTS = 4
_NOTE_LETTERS_PER_INCH = 15.5
_GAMES_PER_ROW = 19


class Line(NamedTuple):
    """A curve; `band` is the lowest and highest of its seeds, `training` is drawn behind it."""

    frames: np.ndarray
    values: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    is_dotted: bool = False
    training: tuple[np.ndarray, np.ndarray] | None = None


Panels = Mapping[str, Mapping[str, Line]]


def add_note(figure: Figure, note: str) -> None:
    """Adds a note at the foot of a figure that says what it was made of."""
    width, height = figure.get_size_inches()
    note = textwrap.fill(note, int(_NOTE_LETTERS_PER_INCH * width))
    if figure.get_layout_engine() is not None:
        figure.supxlabel(note, fontsize=8.5, color="#555555", x=0.01, ha="left")
    else:
        figure.text(0.01, 0.06 / height, note, fontsize=8.5, color="#555555")


def median_curves(panels: Panels, styles: Look) -> Figure:
    """A curve per agent; the legend lists agents in the order of their final scores."""
    figure = Figure(figsize=(1.2 + 6.4 * len(panels), 4.8), layout="constrained")
    axes = _framed(figure, 1, len(panels), sharey=True)[0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        _draw_lines(axis, lines, styles)
        if len(panels) > 1:
            axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axis.set_xlabel("Frames")
        order = sorted(lines, key=lambda name: -lines[name].values[-1])
        _legend_beside(axis, [styles[name] for name in order])
    axes[0].set_ylabel("Median score (% of human)")
    return figure


def threshold_curves(levels: Mapping[int, Panels], styles: Look, *, num_games: int) -> Figure:
    """Games at or above thresholds over time: a row per panel, a column per threshold."""
    rows = len(next(iter(levels.values())))
    figure = Figure(figsize=(4 + 2 * len(levels), 0.9 + 3.1 * rows), layout="constrained")
    axes = _framed(figure, rows, len(levels), sharex=True, sharey=True)
    for column, (level, panels) in zip(axes.T, levels.items(), strict=True):
        for axis, lines in zip(column, panels.values(), strict=True):
            _draw_lines(axis, lines, styles)
            axis.set_title(f"at least {level} % of human", fontsize=10)
            axis.set_ylim(0, num_games * 1.03)
            axis.yaxis.get_major_locator().set_params(integer=True)
        column[-1].set_xlabel("Frames")
    for row, (title, lines) in zip(axes, panels.items(), strict=True):
        row[0].set_ylabel(f"{title}\nNumber of games" if rows > 1 else "Number of games")
        _legend_beside(row[-1], [styles[name] for name in lines])
    return figure


def waterfall(drops: Drops, styles: Look) -> Figure:
    """A bar per game and ablation; the largest drop of a game is in full colour."""
    strongest = np.nanmin(drops.change, axis=0)
    order = np.argsort(strongest)
    rows = math.ceil(len(order) / _GAMES_PER_ROW)
    per_row = math.ceil(len(order) / rows)
    low = max(np.nanmin(drops.change), -200.0) * 1.08 - 2
    high = min(max(np.nanmax(drops.change), 5.0), 100.0) * 1.08 + 2
    width = max(6.5, 1.8 + 0.68 * per_row)
    figure = Figure(figsize=(width, 1.1 + 3.2 * rows), layout="constrained")
    axes = _framed(figure, rows, 1, sharey=True)[:, 0]
    thickness = 0.84 / len(drops.agents)
    for axis, places in zip(axes, np.array_split(order, rows), strict=True):
        for (i, x), change in np.ndenumerate(drops.change[:, places]):
            if np.isnan(change):
                continue
            middle = x + (i - (len(drops.agents) - 1) / 2) * thickness
            bar = {"alpha": 0.3, "edgecolor": "none", "color": styles[drops.agents[i]].colour}
            if change == strongest[places[x]] and change < 0:
                bar |= {"alpha": 1.0, "edgecolor": _INK, "linewidth": 0.7}
            axis.bar(middle, np.clip(change, low, high), thickness * 0.92, **bar)
            if not low <= change <= high:
                end, side = (low, "bottom") if change < low else (high, "top")
                label = {"rotation": 90, "fontsize": 6, "ha": "center", "va": side}
                axis.text(middle, end * 0.97, f"{change:+,.0f}", **label)
        axis.axhline(0, color=_INK, linewidth=1)
        axis.axhline(-100, color=_INK, linewidth=1, linestyle=":")
        names = [drops.environments[place].replace("_", " ") for place in places]
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
        axis.set(xlim=(-0.6, per_row - 0.4), ylim=(low, high))
        axis.set_ylabel("Change of area (%)\n0 Rainbow, −100 DQN", fontsize=9)  # noqa: RUF001
    handles = [Patch(color=styles[name].colour, label=styles[name].label) for name in drops.agents]
    columns = min(len(handles), int(width / 1.7))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def aggregates(rows: Mapping[str, Mapping[str, Estimate]], styles: Look) -> Figure:
    """Median, interquartile mean and mean of each agent; a row of panels per protocol."""
    heights = [len(estimates) + 3 for estimates in rows.values()]
    figure = Figure(figsize=(12, 0.4 + 0.29 * sum(heights)), layout="constrained")
    axes = _framed(figure, len(rows), 3, grid="x", sharey="row", height_ratios=heights)
    for panels, (title, estimates) in zip(axes, rows.items(), strict=True):
        labels = [styles[agent].label for agent in estimates]
        for i, (name, axis) in enumerate(zip(AGGREGATES, panels, strict=True)):
            for y, (agent, estimate) in enumerate(estimates.items()):
                if estimate.intervals is not None:
                    colour = styles[agent].colour
                    axis.plot(estimate.intervals[i], [y, y], color=colour, linewidth=5, alpha=0.4)
                axis.plot(estimate.values[i], y, "o", **_marker(styles[agent]))
            axis.set_xlabel(f"{name.capitalize()} score (% of human)")
        panels[0].set_yticks(range(len(labels)), labels, fontsize=8.5)
        panels[0].set_ylim(len(labels) - 0.4, -0.6)
        panels[0].set_title(title, loc="left", fontsize=10, fontweight="bold")
    return figure


def game_curves(environments: Panels, styles: Look, *, humans: Mapping[str, float]) -> Figure:
    """A panel per environment, with a line for the human score where the scale allows it."""
    columns = min(len(environments), 6 if len(environments) > 9 else 3)
    is_small = columns > 3
    rows = math.ceil(len(environments) / columns)
    size = 2.3 if is_small else 3.9
    width, height = max(columns * size * 1.15 + 0.6, 5.6), rows * size * 0.82 + 1.5
    # A constrained layout of 57 panels takes longer than everything else.
    figure = Figure(figsize=(width, height))
    axes = _framed(figure, rows, columns)
    font = 7 if is_small else 9
    is_human_drawn = False
    for axis, (name, lines) in zip(axes.flat, environments.items(), strict=False):
        _draw_lines(axis, lines, styles)
        axis.set_title(name.replace("_", " "), fontsize=font + 1.5, pad=4)
        axis.tick_params(labelsize=font)
        axis.yaxis.set_major_formatter(lambda value, _: short(value))
        axis.xaxis.get_major_locator().set_params(nbins=4)
        axis.yaxis.get_major_locator().set_params(nbins=5)
        if name in humans:
            is_human_drawn |= _draw_human(axis, humans[name], font)
    for axis in axes.flat[len(environments) :]:
        axis.set_visible(False)
    names = [name for name in styles if any(name in lines for lines in environments.values())]
    handles = [Line2D([], [], **_stroke(styles[name])) for name in names]
    if is_human_drawn:
        handles.append(Line2D([], [], color=_INK, linestyle=":", linewidth=1, label="human"))
    legend_rows = math.ceil(len(handles) / (8 if is_small else max(2, int(width / 2.1))))
    per_row = math.ceil(len(handles) / legend_rows)
    figure.legend(handles=handles, loc="upper center", ncols=per_row, frameon=False, fontsize=9)
    figure.supxlabel("Frames", fontsize=10, y=0.44 / height)
    figure.supylabel("Score (points)", fontsize=10, x=0.1 / width)
    figure.subplots_adjust(
        left=0.85 / width,
        right=1 - 0.2 / width,
        top=1 - (0.22 * legend_rows + 0.45) / height,
        bottom=0.85 / height,
        hspace=0.42 if is_small else 0.3,
        wspace=0.34 if is_small else 0.24,
    )
    return figure


def _draw_human(axis: Axes, human: float, font: float) -> bool:
    """Draws the human score as a line, or writes it down where a line would flatten the curves."""
    low, high = axis.get_ylim()
    bottom, top = min(low, human), max(high, human)
    if high - low < 0.3 * (top - bottom):
        where = "above" if human > high else "below"
        text = f"human: {short(human)}, {where} this scale"
        axis.text(0.03, 0.97, text, fontsize=font, color=_INK, va="top", transform=axis.transAxes)
        return False
    axis.axhline(human, color=_INK, linestyle=":", linewidth=1)
    pad = 0.05 * (top - bottom)
    axis.set_ylim(low if bottom == low else bottom - pad, high if top == high else top + pad)
    return True


def value_check(
    points: Mapping[str, np.ndarray], styles: Look, *, support: tuple[float, float]
) -> Figure:
    """Predicted values against the discounted clipped returns, the two rows of `points`."""
    figure = Figure(figsize=(7.8, 5.0), layout="constrained")
    axis = _framed(figure, 1, 1, grid="both")[0, 0]
    both = np.concatenate([found.ravel() for found in points.values()])
    size, alpha = (5, 0.75) if len(both) < 1000 else (4, 0.5)
    for name, (values, returns) in points.items():
        look = {**_marker(styles[name]), "markersize": size, "alpha": alpha}
        axis.plot(returns, values, "o", **look, label=styles[name].label)
    low, high = both.min(), both.max()
    pad = 0.06 * (high - low) + 0.1
    low, high = low - pad, high + pad
    axis.plot([low, high], [low, high], color=_INK, linewidth=1, label="prediction = return")
    for side, end in ((support[0], low), (support[1], high)):
        if low < side < high:
            axis.axvspan(side, end, color=_FAINT, alpha=0.5, linewidth=0, zorder=0)
    axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axis.set_xlabel("Obtained return (discounted, clipped rewards)")
    axis.set_ylabel("Predicted value (discounted, clipped rewards)")
    _legend_beside(axis)
    return figure


def published_medians(
    medians: Mapping[str, Mapping[str, tuple[float, float | None]]], styles: Look
) -> Figure:
    """Medians of the paper's tables and those it prints; a panel per start regime."""
    diamond: Any = {"marker": "D", "color": "white", "markeredgecolor": _INK, "linestyle": "none"}
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    axes = _framed(figure, 1, len(medians), grid="x")[0]
    for axis, (title, agents) in zip(axes, medians.items(), strict=True):
        for y, (name, (table, printed)) in enumerate(agents.items()):
            axis.barh(y, table, 0.62, color=styles[name].colour, alpha=0.85)
            axis.text(4, y, f"{table:.1f}", color="white", va="center", fontweight="bold")
            if printed is not None:
                axis.plot(printed, y, **diamond)
        axis.set_yticks(range(len(agents)), [styles[name].label for name in agents], fontsize=9)
        axis.set(ylim=(len(agents) - 0.4, -0.6), xlabel="Median score (% of human)")
        axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    handles = [
        Patch(color=_INK, label="from the per-game table"),
        Line2D([], [], **diamond, label="as the paper prints"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_lines(axis: Axes, lines: Mapping[str, Line], styles: Look) -> None:
    for name, line in lines.items():
        style = styles[name]._replace(line=":") if line.is_dotted else styles[name]
        if line.band is not None and len(lines) <= BAND_AGENTS:
            axis.fill_between(line.frames, *line.band, color=style.colour, alpha=0.15, linewidth=0)
        points: Any = {"marker": "o" if len(line.frames) < 10 else None, "markersize": 3.5}
        # A thick line under a thin one hides nothing.
        height = 2 + 1 / style.width
        axis.plot(line.frames, line.values, **_stroke(style), **points, zorder=height)
        if line.training is not None:
            axis.plot(*line.training, color=style.colour, linewidth=0.8, alpha=0.4, zorder=1.5)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(lambda value, _: short(value))


def _framed(
    figure: Figure, rows: int, columns: int, *, grid: str = "y", **settings: Any
) -> np.ndarray:
    """Panels [rows, columns] with lines left and below, and a grid."""
    axes = figure.subplots(rows, columns, squeeze=False, **settings)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#888888")
        axis.tick_params(color="#888888", labelsize=8.5)
        axis.grid(axis=grid, color=_FAINT, linewidth=0.7)
        axis.set_axisbelow(True)
    return axes


def _legend_beside(axis: Axes, styles: Iterable[Style] = ()) -> None:
    """A legend right of the panel: of the styles, or of what was drawn with a label."""
    handles = [Line2D([], [], **_stroke(style)) for style in styles] or None
    place: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axis.legend(handles=handles, fontsize=8.5, frameon=False, **place)


def _stroke(style: Style) -> dict[str, Any]:
    look = {"color": style.colour, "linestyle": style.line, "linewidth": style.width}
    return {**look, "label": style.label}


def _marker(style: Style) -> dict[str, Any]:
    """Hollow where the agent's line is not solid, so that a colour stands for one agent."""
    inside = style.colour if style.line == "-" else "white"
    return {"color": style.colour, "markerfacecolor": inside, "markeredgewidth": 1.3}
