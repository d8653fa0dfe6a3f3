"""Draws a game and the policy's view of it: its estimate for every action and its choice."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rainbow_tf.agent.networks import make_support
from rainbow_tf.config import Config
from rainbow_tf.types import Decision, EnvironmentSpec
from rainbow_tf.video.encoder import enlarged

_BACKGROUND = (18, 21, 27)
_CELL = (27, 31, 40)
_CHOSEN_CELL = (58, 46, 22)
_GRID = (66, 74, 90)
_TEXT = (232, 235, 240)
_QUIET = (152, 161, 176)
_BAR = (84, 138, 214)
_AREA = (52, 74, 108)
_CHOSEN = (250, 176, 44)

# Fractions of the height.
_WIDEST = 1.8  # of a screen
_WIDTHS = (0.9, 1.2)  # with one and with two columns of cells
_CELLS_TOP, _CELLS_BOTTOM = 0.185, 0.775
_CELLS_IN_A_COLUMN = 9


class Scene(NamedTuple):
    """One moment of a game with the policy's estimates for it, all in the first lane."""

    screen: np.ndarray  # [H, W, 3] uint8
    decision: Decision
    episode: int
    step: int
    frame: int
    score: float
    is_last: bool  # the episode is over


class _Box(NamedTuple):
    """A rectangle in pixels; its edges belong to it, as in Pillow."""

    left: int
    top: int
    right: int
    bottom: int


class Panel:
    """Draws scenes as pictures of one shape: return distributions, or a bar per value.

    The axes are fixed. The policy was trained for `frames` frames.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, *, frames: int, height: int):
        self._actions = actions = spec.action_meanings
        self._title = title = config.game or str(config.environment)
        self._subtitle = subtitle = f"{config.agent} after {frames:,} frames"
        self._symbol = "p" if config.algorithm == "a3c" else "Q"
        count = min(len(actions), len(_WIDTHS) * _CELLS_IN_A_COLUMN)
        columns = math.ceil(count / _CELLS_IN_A_COLUMN)
        self.height, self.width = height, round(_WIDTHS[columns - 1] * height) // 2 * 2
        self._pad, self._inset = round(0.03 * height), round(0.008 * height)
        self._cells = self._place_cells(count, columns)
        self._bold = _font("DejaVuSans-Bold", 0.034 * height)
        self._plain = _font("DejaVuSans", 0.026 * height)
        self._small = _font("DejaVuSans", 0.022 * height)
        room = self.width - 2 * self._pad
        self._title_font = _font("DejaVuSans-Bold", 0.034 * height, [title], 0.72 * room)
        longest = max(self._plain.getlength(f"action {name}") for name in actions)
        room -= round(longest) + 4 * self._inset
        self._subtitle_font = _font("DejaVuSans", 0.022 * height, [subtitle], room)
        # A cell has the name above the value on the left and the chart on the right.
        names, cell = actions[:count], self._cells[0]
        size = min(0.027 * height, 0.42 * (cell.bottom - cell.top))
        self._name_font = _font("DejaVuSans-Bold", size, names, 0.45 * (cell.right - cell.left))
        self._font = _font("DejaVuSans", min(self._name_font.size, 0.024 * height))
        widths = [self._name_font.getlength(name) for name in names]
        widths.append(self._font.getlength(f"{self._symbol} -00.00"))
        start = 3 * self._inset + round(max(widths))
        self._charts = [
            _Box(cell.left + start, cell.top + self._inset, cell.right - self._inset, cell.bottom)
            for cell in self._cells
        ]
        right = self.width - self._pad - round(0.09 * height) - 1
        top, bottom = round(0.875 * height), round(0.97 * height) - 1
        self._strip = _Box(self._pad, top, right, bottom)
        self._axis = _Axis(0.0, 1.0 if self._symbol == "p" else 0.0)
        self._margin = 0.0  # at both ends of the axis: bars are centred on atoms
        if (support := make_support(config)) is not None:
            self._axis.ends = (float(support[0]), float(support[-1]))
            self._margin = 0.5 / len(support)
        self._value_axis = _Axis()
        self._values: list[float] = []  # of the episode's states

    def _place_cells(self, count: int, columns: int) -> list[_Box]:
        rows = math.ceil(count / columns)
        tall = (_CELLS_BOTTOM - _CELLS_TOP) / rows * self.height
        wide = (self.width - self._pad) / columns
        gap = max(2, self._inset)
        width, height = int(wide) - self._pad - 1, int(tall) - gap - 1
        lefts = [self._pad + round(column * wide) for column in range(columns)]
        tops = [round(_CELLS_TOP * self.height) + round(row * tall) for row in range(rows)]
        cells = [_Box(x, y, x + width, y + height) for x, y in itertools.product(lefts, tops)]
        return cells[:count]

    def picture(self, scene: Scene) -> np.ndarray:
        """The screen at the largest fitting size and the panel: [H, W, 3], H and W even."""
        screen = enlarged(scene.screen, height=self.height, width=int(_WIDEST * self.height))
        tall, wide, _ = screen.shape
        shape = (self.height, wide + wide % 2 + self.width, 3)
        picture = np.full(shape, _BACKGROUND, np.uint8)
        top = (self.height - tall) // 2
        picture[top : top + tall, :wide] = screen
        picture[:, -self.width :] = self.draw(scene)
        return picture

    def draw(self, scene: Scene) -> np.ndarray:
        """The panel alone, [H, W, 3]; scenes must come in order."""
        if scene.step == 0:
            self._values.clear()
        self._values.append(float(scene.decision.state_values[0]))
        self._value_axis.include(self._values[-1])
        if scene.decision.probs is None:
            self._axis.include(*scene.decision.values[0])
        image = Image.new("RGB", (self.width, self.height), _BACKGROUND)
        draw = ImageDraw.Draw(image)
        self._draw_header(draw, scene)
        for i in range(len(self._cells)):
            self._draw_cell(draw, i, scene.decision)
        self._draw_axis(draw)
        self._draw_values(draw)
        return np.asarray(image)

    def _draw_header(self, draw: ImageDraw.ImageDraw, scene: Scene) -> None:
        left, right = self._pad, self.width - self._pad
        tops = [self._pad + round(0.05 * line * self.height) for line in range(3)]
        action = f"action {self._actions[scene.decision.actions[0]]}"
        does, colour = ("game over", _QUIET) if scene.is_last else (action, _CHOSEN)
        draw.text((left, tops[0]), self._title, _TEXT, self._title_font)
        draw.text((left, tops[1]), f"score {round(scene.score, 2):,.12g}", _TEXT, self._bold)
        draw.text((left, tops[2]), does, colour, self._plain)
        first, second, third = (top + self._inset for top in tops)
        where = f"step {scene.step:,}   frame {scene.frame:,}"
        draw.text((right, first), f"episode {scene.episode + 1}", _QUIET, self._small, "ra")
        draw.text((right, second), where, _QUIET, self._small, "ra")
        draw.text((right, third), self._subtitle, _QUIET, self._subtitle_font, "ra")

    def _draw_cell(self, draw: ImageDraw.ImageDraw, i: int, decision: Decision) -> None:
        cell, chart, value = self._cells[i], self._charts[i], decision.values[0, i]
        is_chosen = i == decision.actions[0]
        draw.rectangle(cell, _CHOSEN_CELL if is_chosen else _CELL)
        name_colour, colour = (_CHOSEN, _CHOSEN) if is_chosen else (_QUIET, _BAR)
        left, middle = cell.left + self._inset, (cell.top + cell.bottom + 1) // 2
        draw.text((left, middle), self._actions[i], name_colour, self._name_font, "ls")
        text = f"{self._symbol} {_short(value)}"
        draw.text((left, middle + self._inset // 2), text, _TEXT, self._font, "la")
        draw.line((chart.left, chart.bottom, chart.right, chart.bottom), _GRID)
        zero, mean = self._column(chart, 0.0), self._column(chart, value)
        if self._axis.ends[0] <= 0 <= self._axis.ends[1]:
            draw.line((zero, chart.top, zero, chart.bottom), _GRID)
        if decision.probs is None:
            quarter = (chart.bottom - chart.top + 1) // 4
            ends = sorted((zero, mean))
            draw.rectangle((ends[0], chart.top + quarter, ends[1], chart.bottom - quarter), colour)
        else:
            self._draw_returns(draw, chart, decision.probs[0, i], colour)
            thick = 2 if self.height >= 600 else 1
            draw.rectangle((mean, chart.top, mean + thick - 1, chart.bottom), _TEXT)

    def _draw_returns(
        self, draw: ImageDraw.ImageDraw, chart: _Box, probs: np.ndarray, colour: tuple
    ) -> None:
        tall, wide = chart.bottom - chart.top + 1, chart.right - chart.left + 1
        edges = chart.left + np.ceil(np.arange(len(probs) + 1) * wide / len(probs)).astype(int)
        gap = 1 if wide >= 4 * len(probs) else 0
        # Square roots, so that both uniform and certain distributions are readable.
        heights = np.ceil(np.sqrt(probs) * tall - 0.5).astype(int)
        for (left, right), height in zip(itertools.pairwise(edges), heights, strict=True):
            if height > 0:
                box = (left, chart.bottom - height + 1, right - 1 - gap, chart.bottom)
                draw.rectangle(box, colour)

    def _column(self, chart: _Box, x: float) -> int:
        """Pixel column of a return."""
        low, high = self._axis.ends
        share = self._margin + (1 - 2 * self._margin) * (x - low) / max(high - low, 1e-9)
        wide = chart.right - chart.left + 1
        return chart.left + int(np.clip(share * wide, 0, wide - 1))

    def _draw_axis(self, draw: ImageDraw.ImageDraw) -> None:
        low, high = self._axis.ends
        top = max(cell.bottom for cell in self._cells) + 1 + self._inset // 2
        # One axis under each column of charts.
        for chart in {chart.left: chart for chart in self._charts}.values():
            draw.text((chart.left, top), f"{low:g}", _QUIET, self._small, "la")
            draw.text((chart.right + 1, top), f"{high:g}", _QUIET, self._small, "ra")
            if low < 0 < high:
                draw.text((self._column(chart, 0.0), top), "0", _QUIET, self._small, "ma")
        if len(self._actions) > len(self._cells):
            more = f"and {len(self._actions) - len(self._cells)} more actions"
            draw.text((self.width // 2, top), more, _QUIET, self._small, "ma")

    def _draw_values(self, draw: ImageDraw.ImageDraw) -> None:
        strip = self._strip
        draw.rectangle(strip, _CELL)
        low, high = self._value_axis.ends
        newest = np.array(self._values[-(strip.right - strip.left + 1) :])
        heights = 1 + (newest - low) / max(high - low, 1e-9) * (strip.bottom - strip.top - 2)
        tops = np.ceil(strip.bottom + 1 - heights).astype(int)
        for x, top in enumerate(tops, start=strip.left):
            draw.line((x, top, x, strip.bottom), _AREA)
            draw.line((x, top, x, min(top + 1, strip.bottom)), _BAR)
        above, right = strip.top - self._inset, strip.right + 1
        draw.text((strip.left, above), "value of the state", _QUIET, self._small, "ls")
        draw.text((right, above), _short(self._values[-1]), _TEXT, self._small, "rs")
        right += self._inset
        draw.text((right, strip.top), f"{high:g}", _QUIET, self._small, "la")
        draw.text((right, strip.bottom + 1), f"{low:g}", _QUIET, self._small, "ld")


class _Axis:
    """An axis with round ends that only grows, so that the drawing does not jump."""

    def __init__(self, *values: float):
        self._extremes = values
        self.ends = (0.0, 1.0)

    def include(self, *values: float) -> None:
        """Extends the axis to these values."""
        values = (*self._extremes, *values)
        self._extremes = low, high = min(values), max(values)
        span = max(high - low, 0.01 * max(abs(low), abs(high)), 1e-6)
        power = 10.0 ** math.floor(math.log10(span))
        step = next(power * size for size in (1, 2, 5, 10) if power * size >= span / 2)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        self.ends = (low, high if high > low else low + step)


def _short(value: float) -> str:
    if abs(value) < 100:
        return f"{value:z.2f}"
    return f"{value:.1f}" if abs(value) < 10_000 else f"{value:.3g}"


def _font(
    name: str, size: float, texts: Sequence[str] = (), width: float = math.inf
) -> ImageFont.FreeTypeFont:
    """The largest font up to `size`, or 11 pixels, in which every text fits in `width`."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    for pixels in range(max(11, round(size)), 6, -1):
        font = ImageFont.truetype(path, pixels)
        if all(font.getlength(text) <= width for text in texts):
            break
    return font
