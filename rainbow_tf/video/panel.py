"""Draws a policy's view of a state: the estimate for every action and the one it takes."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

BACKGROUND = (18, 21, 27)
_CELL = (27, 31, 40)
_CHOSEN_CELL = (58, 46, 22)
_GRID = (66, 74, 90)
_TEXT = (232, 235, 240)
_QUIET = (152, 161, 176)
_BAR = (84, 138, 214)
_CHOSEN = (250, 176, 44)

# Fractions of the height.
_WIDTH, _WIDTH_OF_COLUMNS = 0.9, 1.2
_PAD = 0.03
_CELLS_TOP, _CELLS_BOTTOM = 0.185, 0.775
_TALLEST_CELL = 0.2
_STRIP_TOP, _STRIP_BOTTOM = 0.875, 0.97
_SMALLEST_FONT = 11  # pixels, where there is room
_CELLS_IN_A_COLUMN = 9
_MOST_CELLS = 2 * _CELLS_IN_A_COLUMN


class Thought(NamedTuple):
    """A policy's estimates for one state, whatever the algorithm."""

    action: int  # the one taken
    scores: np.ndarray  # [A] mean returns, or the probabilities of a stochastic policy
    value: float  # of the state
    probs: np.ndarray | None = None  # [A, N] return distributions on the panel's support


class Scene(NamedTuple):
    """One moment of a game with the policy's estimates."""

    screen: np.ndarray  # [H, W, 3] uint8
    thought: Thought
    episode: int
    step: int
    frame: int
    score: float
    is_last: bool  # the episode is over


class _Box(NamedTuple):
    left: int
    top: int
    right: int
    bottom: int

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)


class Panel:
    """A picture of fixed size with fixed axes.

    With a support it draws return distributions, without one a bar per score. `symbol` is the
    label of a score: Q for mean returns, p for probabilities.
    """

    def __init__(
        self,
        *,
        title: str,
        subtitle: str,
        actions: Sequence[str],
        symbol: str,
        support: np.ndarray | None,
        height: int,
    ):
        share = _WIDTH if len(actions) <= _CELLS_IN_A_COLUMN else _WIDTH_OF_COLUMNS
        self.height, self.width = height, round(share * height) // 2 * 2
        self._pad = round(_PAD * height)
        self._title, self._subtitle = title, subtitle
        self._actions = list(actions)
        self._symbol = symbol
        self._support = support
        self._cells = self._place_cells()
        self._inset = inset = round(0.008 * height)
        names = self._actions[: len(self._cells)]
        left, top, right, bottom = self._cells[0]
        # A cell has the name above the score on the left and the chart on the right.
        room = (0.45 * (right - left), 0.42 * (bottom - top))
        self._name_font = _fitting_font("DejaVuSans-Bold", names, room, 0.027 * height)
        self._font = _font("DejaVuSans", min(self._name_font.size, 0.024 * height))
        texts = max(self._name_font.getlength(name) for name in names)
        scores = self._font.getlength(f"{symbol} -00.00")
        names_end = 3 * inset + round(max(texts, scores))
        self._charts = [
            _Box(cell.left + names_end, cell.top + inset, cell.right - inset, cell.bottom)
            for cell in self._cells
        ]
        self._bold = _font("DejaVuSans-Bold", 0.034 * height)
        self._plain = _font("DejaVuSans", 0.026 * height)
        self._small = _font("DejaVuSans", 0.022 * height)
        right = self.width - self._pad - round(0.09 * height)
        top, bottom = round(_STRIP_TOP * height), round(_STRIP_BOTTOM * height)
        self._strip = _Box(self._pad, top, right, bottom)
        self._score_range = _Range(0.0, 1.0 if symbol == "p" else 0.0)
        self._value_range = _Range()
        self._values: list[float] = []
        self._blank = self._draw_blank(_CELL, _QUIET)
        self._blank_chosen = self._draw_blank(_CHOSEN_CELL, _CHOSEN)

    def draw(self, scene: Scene) -> np.ndarray:
        """The panel [H, W, 3] of this scene; scenes must come in order."""
        thought = scene.thought
        if scene.step == 0:
            self._values.clear()
        self._values.append(thought.value)
        self._value_range.include(thought.value)
        self._score_range.include(*thought.scores)
        picture = self._blank.copy()
        if thought.action < len(self._cells):
            chosen = self._cells[thought.action].slices
            picture[chosen] = self._blank_chosen[chosen]
        for i, chart in enumerate(self._charts):
            colour = _CHOSEN if i == thought.action else _BAR
            if thought.probs is None:
                self._draw_bar(picture[chart.slices], thought.scores[i], colour)
            else:
                self._draw_returns(picture[chart.slices], thought.probs[i], colour)
                self._draw_line(picture[chart.slices], thought.scores[i], _TEXT)
        self._draw_values(picture[self._strip.slices])
        image = Image.fromarray(picture)
        self._write(ImageDraw.Draw(image), scene)
        return np.asarray(image)

    def _place_cells(self) -> list[_Box]:
        count = min(len(self._actions), _MOST_CELLS)
        columns = -(-count // _CELLS_IN_A_COLUMN)
        rows = -(-count // columns)
        top = round(_CELLS_TOP * self.height)
        tall = min(_TALLEST_CELL, (_CELLS_BOTTOM - _CELLS_TOP) / rows) * self.height
        wide = (self.width - self._pad) / columns
        gap = max(2, round(0.008 * self.height))
        return [
            _Box(
                self._pad + round(column * wide),
                top + round(row * tall),
                round((column + 1) * wide),
                top + round(row * tall) + int(tall) - gap,
            )
            for column, row in itertools.islice(
                itertools.product(range(columns), range(rows)), count
            )
        ]

    def _draw_blank(self, cell_colour: tuple, name_colour: tuple) -> np.ndarray:
        """The parts that never change, with all cells in these colours."""
        image = Image.new("RGB", (self.width, self.height), BACKGROUND)
        draw = ImageDraw.Draw(image)
        room: float = self.width - 2 * self._pad
        title = _fitting_font(
            "DejaVuSans-Bold", [self._title], (0.72 * room, 0.05 * self.height), self._bold.size
        )
        draw.text((self._pad, self._pad), self._title, _TEXT, title)
        longest = max(self._plain.getlength(f"action {name}") for name in self._actions)
        room -= longest + 4 * self._inset
        subtitle = _fitting_font("DejaVuSans", [self._subtitle], (room, 50), self._small.size)
        right = self.width - self._pad
        draw.text((right, self._line(2) + self._inset), self._subtitle, _QUIET, subtitle, "ra")
        for name, cell, chart in zip(self._actions, self._cells, self._charts, strict=False):
            draw.rectangle((cell.left, cell.top, cell.right - 1, cell.bottom - 1), cell_colour)
            at = (cell.left + self._inset, (cell.top + cell.bottom) // 2)
            draw.text(at, name, name_colour, self._name_font, "ls")
            draw.line((chart.left, chart.bottom - 1, chart.right - 1, chart.bottom - 1), _GRID)
        draw.rectangle(
            (self._strip.left, self._strip.top, self._strip.right - 1, self._strip.bottom - 1),
            _CELL,
        )
        at = (self._strip.left, self._strip.top - self._inset)
        draw.text(at, "value of the state", _QUIET, self._small, "ls")
        if len(self._actions) > len(self._cells):
            more = f"and {len(self._actions) - len(self._cells)} more actions"
            draw.text((self.width // 2, self._axis_height()), more, _QUIET, self._small, "ma")
        picture = np.array(image)
        for chart in self._charts:
            self._draw_line(picture[chart.slices], 0.0, _GRID)
        return picture

    def _draw_returns(self, chart: np.ndarray, probs: np.ndarray, colour: tuple) -> None:
        tall, wide, _ = chart.shape
        atoms = np.arange(wide) * len(probs) // wide
        # Square roots, so that both uniform and certain distributions are readable.
        heights = np.ceil(np.sqrt(probs[atoms]) * tall - 0.5)
        if wide >= 4 * len(probs):
            heights[np.flatnonzero(np.diff(atoms))] = 0  # gaps between bars
        chart[np.arange(tall)[:, None] >= tall - heights] = colour

    def _draw_bar(self, chart: np.ndarray, score: float, colour: tuple) -> None:
        tall, wide, _ = chart.shape
        ends = sorted(self._column(x, wide) for x in (0.0, score))
        chart[tall // 4 : tall - tall // 4, ends[0] : ends[1] + 1] = colour
        self._draw_line(chart, 0.0, _GRID)

    def _draw_line(self, chart: np.ndarray, x: float, colour: tuple) -> None:
        low, high = self._axis()
        if low <= x <= high:
            thick = 2 if self.height >= 600 and colour == _TEXT else 1
            column = self._column(x, chart.shape[1])
            chart[:, column : column + thick] = colour

    def _axis(self) -> tuple[float, float]:
        if self._support is None:
            return self._score_range.ends
        return float(self._support[0]), float(self._support[-1])

    def _column(self, x: float, wide: int) -> int:
        """Pixel column of a return on an axis `wide` pixels long; bars are centred on atoms."""
        low, high = self._axis()
        margin = 0.5 / len(self._support) if self._support is not None else 0.0
        share = margin + (1 - 2 * margin) * (x - low) / max(high - low, 1e-9)
        return int(np.clip(share * wide, 0, wide - 1))

    def _draw_values(self, strip: np.ndarray) -> None:
        tall, wide, _ = strip.shape
        low, high = self._value_range.ends
        newest = np.array(self._values[-wide:])
        heights = 1 + (newest - low) / max(high - low, 1e-9) * (tall - 3)
        from_top = np.arange(tall)[:, None] - (tall - heights)
        area = strip[:, : len(newest)]
        area[from_top >= 0] = (52, 74, 108)
        area[(from_top >= 0) & (from_top < max(2, self.height // 300))] = _BAR

    def _write(self, draw: ImageDraw.ImageDraw, scene: Scene) -> None:
        thought = scene.thought
        left, right = self._pad, self.width - self._pad
        episode = f"episode {scene.episode + 1}"
        draw.text((right, self._line(0) + self._inset), episode, _QUIET, self._small, "ra")
        draw.text((left, self._line(1)), f"score {_number(scene.score)}", _TEXT, self._bold)
        where = f"step {scene.step:,}   frame {scene.frame:,}"
        draw.text((right, self._line(1) + self._inset), where, _QUIET, self._small, "ra")
        does = "game over" if scene.is_last else f"action {self._actions[thought.action]}"
        colour = _QUIET if scene.is_last else _CHOSEN
        draw.text((left, self._line(2)), does, colour, self._plain)
        for i, cell in enumerate(self._cells):
            at = (cell.left + self._inset, (cell.top + cell.bottom) // 2 + self._inset // 2)
            text = f"{self._symbol} {_short(thought.scores[i])}"
            draw.text(at, text, _TEXT, self._font, "la")
        self._write_axes(draw)
        at = (self._strip.right, self._strip.top - self._inset)
        draw.text(at, _short(thought.value), _TEXT, self._small, "rs")

    def _write_axes(self, draw: ImageDraw.ImageDraw) -> None:
        low, high = self._axis()
        columns = {(chart.left, chart.right) for chart in self._charts}
        for left, right in columns:
            draw.text((left, self._axis_height()), f"{low:g}", _QUIET, self._small, "la")
            draw.text((right, self._axis_height()), f"{high:g}", _QUIET, self._small, "ra")
            if low < 0 < high:
                at = (left + self._column(0.0, right - left), self._axis_height())
                draw.text(at, "0", _QUIET, self._small, "ma")
        low, high = self._value_range.ends
        left = self._strip.right + self._inset
        draw.text((left, self._strip.top), f"{high:g}", _QUIET, self._small, "la")
        draw.text((left, self._strip.bottom), f"{low:g}", _QUIET, self._small, "ld")

    def _line(self, number: int) -> int:
        return self._pad + round(0.05 * number * self.height)

    def _axis_height(self) -> int:
        return max(cell.bottom for cell in self._cells) + self._inset // 2


class _Range:
    """An axis with round ends that only grows, so that the drawing does not jump."""

    def __init__(self, *values: float):
        self._low, self._high = math.inf, -math.inf
        self.ends = (0.0, 1.0)
        if values:
            self.include(*values)

    def include(self, *values: float) -> None:
        """Extends the axis to these values."""
        self._low, self._high = min(self._low, *values), max(self._high, *values)
        span = max(self._high - self._low, 0.01 * max(abs(self._low), abs(self._high)), 1e-6)
        power = 10.0 ** math.floor(math.log10(span))
        step = next(power * size for size in (1, 2, 5, 10) if power * size >= span / 2)
        low, high = math.floor(self._low / step) * step, math.ceil(self._high / step) * step
        self.ends = (low, high if high > low else low + step)


def _number(score: float) -> str:
    return f"{score:,.0f}" if float(score).is_integer() else f"{score:,.2f}"


def _short(value: float) -> str:
    size = abs(value)
    text = f"{value:.2f}" if size < 100 else f"{value:.1f}" if size < 10_000 else f"{value:.3g}"
    return "0.00" if text == "-0.00" else text


def _font(name: str, size: float) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    return ImageFont.truetype(path, max(_SMALLEST_FONT, round(size)))


def _fitting_font(
    name: str, texts: Sequence[str], room: tuple[float, float], size: float
) -> ImageFont.FreeTypeFont:
    """The largest font up to `size` in which every text fits."""
    path = _font(name, size).path
    for smaller in range(round(min(size, room[1])), 6, -1):
        font = ImageFont.truetype(path, smaller)
        if max(font.getlength(text) for text in texts) <= room[0]:
            break
    return font
