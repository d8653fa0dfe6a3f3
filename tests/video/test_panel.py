"""The panel: positions of bars and marks, and stable axes."""

import itertools

import numpy as np
import pytest

from rainbow_tf.config import Config
from rainbow_tf.types import Decision, EnvironmentSpec
from rainbow_tf.video.panel import _BAR, _CHOSEN, _TEXT, Panel, Scene, _Axis, _short

SUPPORT = np.linspace(-10, 10, 51)
_SIDES = ("UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT")
NAMES = ["NOOP", "FIRE", *_SIDES, *(f"{side}FIRE" for side in _SIDES)]


def panel(actions, *, height=420, **settings):
    config = Config(game="qbert", **settings)
    spec = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, len(actions), tuple(actions))
    return Panel(config, spec, frames=200_000_000, height=height)


def scene(decision, *, step=0, score=0.0, screen=(1, 1)):
    screen = np.full((*screen, 3), 200, np.uint8)
    return Scene(screen, decision, 0, step, 4 * step, score, False)


def decide(action, values, value=0.0, probs=None):
    """A decision in one lane."""
    probs = None if probs is None else probs[None]
    return Decision(np.array([action]), np.array([values]), np.array([value]), probs)


def sure(*atoms, action=0, value=0.0):
    """A decision whose actions have certain returns on these atoms."""
    probs = np.eye(51)[list(atoms)]
    return decide(action, probs @ SUPPORT, value, probs)


def has_colour(picture, colour):
    return (picture == colour).all(axis=-1)


def inside(box):
    return slice(box.top, box.bottom + 1), slice(box.left, box.right + 1)


def cells(drawn, picture):
    return [picture[inside(cell)] for cell in drawn._cells]


def charts(drawn, picture):
    return [picture[inside(chart)] for chart in drawn._charts]


def test_bars_are_at_their_returns():
    drawn = panel(["A", "B", "C"], height=630)
    picture = drawn.draw(scene(sure(25, 0, 50)))
    for chart, share in zip(charts(drawn, picture), (0.5, 0.5 / 51, 50.5 / 51), strict=True):
        columns = np.flatnonzero((has_colour(chart, _BAR) | has_colour(chart, _CHOSEN)).any(axis=0))
        assert columns.mean() / chart.shape[1] == pytest.approx(share, abs=0.01)
        assert len(columns) <= np.ceil(chart.shape[1] / 51)


def test_heights_are_square_roots_of_probabilities():
    drawn = panel(["A", "B"])
    probs = np.zeros((2, 51))
    probs[0, [10, 40]] = 0.25, 0.75
    probs[1] = 1 / 51
    chart, even = charts(drawn, drawn.draw(scene(decide(1, probs @ SUPPORT, probs=probs))))
    heights = has_colour(chart, _BAR).sum(axis=0)
    tall, wide, _ = chart.shape
    assert heights[int(10.5 / 51 * wide)] / tall == pytest.approx(0.5, abs=0.02)
    assert heights[int(40.5 / 51 * wide)] / tall == pytest.approx(0.75**0.5, abs=0.02)
    flat = has_colour(even, _CHOSEN).sum(axis=0)
    assert flat[flat > 0].max() / tall == pytest.approx((1 / 51) ** 0.5, abs=0.02)


def test_the_mean_is_marked():
    drawn = panel(["A", "B"])
    thought = sure(25, 25)._replace(values=np.array([[5.0, -5.0]]))
    for chart, share in zip(
        charts(drawn, drawn.draw(scene(thought))),
        (0.5 + 0.25 * 50 / 51, 0.5 - 0.25 * 50 / 51),
        strict=True,
    ):
        (column,) = np.flatnonzero(has_colour(chart, _TEXT).all(axis=0))
        assert column / chart.shape[1] == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("action", [0, 1, 2])
def test_only_the_chosen_action_is_highlighted(action):
    drawn = panel(NAMES[:3])
    picture = drawn.draw(scene(sure(25, 25, 25, action=action)))
    marked = [has_colour(cell, _CHOSEN).any() for cell in cells(drawn, picture)]
    assert marked == [i == action for i in range(3)]


def test_static_parts_do_not_move():
    drawn = panel(NAMES[:6])
    first = drawn.draw(scene(sure(*range(6))))
    np.testing.assert_array_equal(drawn.draw(scene(sure(*range(6)))), first)
    wider = drawn.draw(scene(sure(*range(44, 50)), step=1, score=100.0))
    # The axis under the charts has not moved.
    last = drawn._cells[-1]
    axis = slice(last.bottom + 1, last.bottom + drawn._small.size), slice(None)
    np.testing.assert_array_equal(wider[axis], first[axis])


@pytest.mark.parametrize("height", [420, 630])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 9, 10, 18, 40])
def test_cells_fit_and_do_not_overlap(count, height):
    drawn = panel((NAMES * 3)[:count], height=height)
    used = np.zeros((drawn.height, drawn.width), int)
    for cell, chart in zip(drawn._cells, drawn._charts, strict=True):
        used[inside(cell)] += 1
        assert chart.right - chart.left + 1 >= 51
        assert cell.left < chart.left < chart.right <= cell.right < drawn.width - drawn._pad
        assert drawn._name_font.getlength("DOWNRIGHTFIRE"[: 13 if count > 16 else 4]) <= (
            chart.left - cell.left
        )
    used[inside(drawn._strip)] += 1
    assert used.max() == 1
    assert len(drawn._cells) == min(count, 18)
    assert (drawn.height % 2, drawn.width % 2) == (0, 0)
    assert drawn._name_font.size >= 9
    probs = np.full((count, 51), 1 / 51)
    drawn.draw(scene(decide(count - 1, probs @ SUPPORT, probs=probs)))


def test_scores_without_a_support_are_bars():
    drawn = panel(["A", "B", "C"], distributional=False)
    picture = drawn.draw(scene(decide(0, [10.0, 5.0, -10.0], 10.0)))
    wide = charts(drawn, picture)[0].shape[1]
    colours = (_CHOSEN, _BAR, _BAR)
    lengths = [
        has_colour(chart, colour).any(axis=0).sum() / wide
        for chart, colour in zip(charts(drawn, picture), colours, strict=True)
    ]
    # From -10 to 10.
    assert lengths == pytest.approx([0.5, 0.25, 0.5], abs=0.02)


def test_probabilities_have_an_axis_from_0_to_1():
    drawn = panel(["A", "B"], algorithm="a3c")
    picture = drawn.draw(scene(decide(1, [0.25, 0.75], -3.0)))
    chart = charts(drawn, picture)[1]
    share = has_colour(chart, _CHOSEN).any(axis=0).sum() / chart.shape[1]
    assert share == pytest.approx(0.75, abs=0.02)


def test_value_curve_restarts_with_every_episode():
    drawn = panel(["A", "B"])
    lengths = []
    for step in (0, 1, 2, 3, 0, 1):
        picture = drawn.draw(scene(sure(25, 25, value=float(step)), step=step))
        strip = picture[inside(drawn._strip)]
        lengths.append(has_colour(strip, _BAR).any(axis=0).sum())
    assert lengths == [1, 2, 3, 4, 1, 2]


def test_value_curve_of_a_long_game_scrolls():
    drawn = panel(["A", "B"])
    wide = drawn._strip.right - drawn._strip.left + 1
    for step in range(wide + 50):
        picture = drawn.draw(scene(sure(25, 25, value=float(step >= wide)), step=step))
    strip = has_colour(picture[inside(drawn._strip)], _BAR)
    top = strip.argmax(axis=0)
    assert len(set(top[:-50])) == len(set(top[-50:])) == 1
    assert top[-1] < top[0]


@pytest.mark.parametrize(
    ("shape", "height", "width"),
    [((210, 160), 630, 480), ((9, 5), 630, 350), ((420, 600), 630, 900), ((300, 1200), 284, 1134)],
)
def test_screen_and_panel_are_side_by_side(shape, height, width):
    picture = panel(["A", "B"], height=630).picture(scene(sure(25, 25), screen=shape))
    assert picture.shape == (630, width + 566, 3)
    lit = (picture[:, :width] == 200).all(axis=2)
    rows, columns = np.flatnonzero(lit.any(axis=1)), np.flatnonzero(lit.any(axis=0))
    assert len(columns) == width
    assert len(rows) == height
    assert rows[0] == pytest.approx(629 - rows[-1], abs=1), "centred"


def test_ranges_are_round_and_only_grow():
    scale = _Axis()
    ends = []
    for value in (3.2, 3.9, 0.4, 3.3, -7.0):
        scale.include(value)
        ends.append(scale.ends)
    assert ends[1] == pytest.approx((3.0, 4.0))
    assert ends[2] == ends[3] == pytest.approx((0.0, 4.0))
    assert ends[4] == pytest.approx((-10.0, 10.0))
    for (low, high), (next_low, next_high) in itertools.pairwise(ends):
        assert next_low <= low
        assert next_high >= high


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.001, "0.00"), (3.456, "3.46"), (-123.45, "-123.5"), (1234567.0, "1.23e+06")],
)
def test_numbers_stay_short(value, text):
    assert _short(value) == text
