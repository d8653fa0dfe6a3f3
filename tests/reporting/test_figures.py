import numpy as np
import pytest

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.agents import styles
from rainbow_tf.reporting.figures import Line


def game_curves(values, humans, **line):
    lines = {"pong": {"rainbow": Line(np.array([1e5, 2e5]), np.array(values), **line)}}
    return figures.game_curves(lines, styles(["rainbow"]), humans=humans)


def labels(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("human", [14.6, -30.0])
def test_a_human_line_in_the_legend_is_inside_its_panel(human):
    figure = game_curves([-20.0, 5.0], {"pong": human})
    low, high = figure.axes[0].get_ylim()
    assert low < human < high
    assert labels(figure) == ["Rainbow", "human"]


@pytest.mark.parametrize(("human", "where"), [(7127.7, "above"), (-500.0, "below")])
def test_a_human_score_far_off_is_written_and_not_in_the_legend(human, where):
    figure = game_curves([0.0, 5.0], {"pong": human})
    assert figure.axes[0].get_ylim()[1] < 10
    (text,) = [text.get_text() for text in figure.axes[0].texts]
    assert text.startswith("human: ")
    assert where in text
    assert labels(figure) == ["Rainbow"]


def test_training_returns_are_thin_and_behind():
    training = (np.arange(50.0), np.arange(50.0))
    behind, evaluations = sorted(
        game_curves([0.0, 5.0], {}, training=training).axes[0].lines,
        key=lambda line: line.get_zorder(),
    )
    assert len(behind.get_xdata()) == 50
    assert behind.get_alpha() < 0.5
    assert behind.get_linewidth() < evaluations.get_linewidth()


def test_only_given_thresholds_have_a_panel():
    levels = {
        level: {"Agents": {"rainbow": Line(np.array([1e6, 2e6]), np.array(counts))}}
        for level, counts in ((20, [2, 2]), (100, [0, 1]))
    }
    figure = figures.threshold_curves(levels, styles(["rainbow"]), num_games=2)
    titles = {axis.get_title(): axis.lines[0].get_ydata().tolist() for axis in figure.axes}
    assert titles == {"at least 20 % of human": [2, 2], "at least 100 % of human": [0, 1]}
