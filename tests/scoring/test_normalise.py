import csv
from importlib import resources

import numpy as np
import pytest

from rainbow_tf.games import GAMES
from rainbow_tf.scoring.normalise import (
    PRINTED_MEDIANS,
    REGIMES,
    dopamine_curves,
    published,
    references,
)


@pytest.mark.parametrize(
    ("game", "score", "regime", "percent"),
    [
        # pong, no-op: random -20.7, human 14.6.
        ("pong", -20.7, "noop", 0.0),
        ("pong", 14.6, "noop", 100.0),
        ("pong", 20.9, "noop", 100 * 41.6 / 35.3),
        # pong, human starts: random -18.0, human 15.5.
        ("pong", 19.0, "human", 100 * 37.0 / 33.5),
        # video_pinball, human starts: random 20452.0, human 15641.1, which is below.
        ("video_pinball", 20452.0 + 4810.9, "human", 100.0),
        ("video_pinball", 15641.1, "human", -100.0),
    ],
)
def test_worked_out_by_hand(game, score, regime, percent):
    assert references(regime)[game].percent(score) == pytest.approx(percent, abs=1e-9)


@pytest.mark.parametrize("regime", REGIMES)
def test_every_game_has_a_reference(regime):
    assert set(references(regime)) == set(GAMES)
    assert all(reference.random != reference.human for reference in references(regime).values())


def test_arrays_are_normalised_alike():
    reference = references("noop")["breakout"]
    np.testing.assert_allclose(reference.percent(np.array([1.7, 30.5])), [0, 100], atol=1e-9)


@pytest.mark.parametrize(
    ("agent", "noop", "human"), [("rainbow", 227.0, 149.7), ("dqn", 78.7, 66.5)]
)
def test_medians_of_the_papers_tables(agent, noop, human):
    for regime, median in (("noop", noop), ("human", human)):
        scores = published("paper", regime)[agent]
        assert len(scores) == 54
        percents = [references(regime)[game].percent(score) for game, score in scores.items()]
        assert round(float(np.median(percents)), 1) == median


def test_the_paper_has_no_noop_scores_of_a3c():
    assert set(published("paper", "human")) == set(PRINTED_MEDIANS)
    assert set(published("paper", "human")) - set(published("paper", "noop")) == {"a3c"}


def test_data_name_their_sources():
    folder = resources.files("rainbow_tf.scoring") / "data"
    readme = (folder / "README.md").read_text()
    for path in folder.iterdir():
        if path.name.endswith(".csv"):
            assert f"`{path.name}`" in readme
            lines = path.read_text().splitlines()
            widths = {len(row) for row in csv.reader(lines)}
            assert len(widths) == 1, path


def test_atari100k_scores_are_of_no_op_starts_and_26_games():
    scores = published("atari100k", "noop")
    agents = ("n20_data_efficient", "simple", "drq_eps_n10", "spr", "iris", "efficient_zero", "bbf")
    assert {agent: len(games) for agent, games in scores.items()} == dict.fromkeys(agents, 26)
    assert scores["n20_data_efficient"]["qbert"] == 1152.9
    assert scores["simple"]["pong"] == 12.8
    assert scores["spr"]["bank_heist"] == 345.4
    assert scores["bbf"]["up_n_down"] == 11768.5
    assert published("atari100k", "human") == {}
    assert published("dopamine", "noop") == {}


@pytest.mark.parametrize(
    ("agent", "median", "mean"),
    # As the papers print them: van Hasselt et al. 2019, IRIS and what it reprints.
    [
        ("n20_data_efficient", 16.1, 28.5),
        ("spr", 39.6, 61.6),
        ("iris", 28.9, 104.6),
        ("efficient_zero", 109.0, 194.3),
    ],
)
def test_aggregates_of_atari100k_are_those_that_the_papers_print(agent, median, mean):
    scores = published("atari100k", "noop")[agent]
    percents = [references("noop")[game].percent(score) for game, score in scores.items()]
    assert np.median(percents) == pytest.approx(median, abs=0.6)
    assert np.mean(percents) == pytest.approx(mean, abs=1.5)


def test_dopamine_has_curves_of_six_games():
    rainbow = dopamine_curves("pong")["rainbow"]
    means = {point.frames: point.mean for point in rainbow}
    assert (means[3e6], means[5e6], means[10e6]) == (-19.0, -14.2, 12.4)
    assert {point.seeds for point in rainbow} == {5}
    assert set(dopamine_curves("space_invaders")) == {"rainbow", "dqn", "distributional_dqn"}
    assert dopamine_curves("alien") == {}
