import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import write_evaluation, write_run

from rainbow_tf.config import ConfigError
from rainbow_tf.reporting.agents import ABLATIONS
from rainbow_tf.scoring import study
from rainbow_tf.scoring.normalise import references
from rainbow_tf.scoring.runs import EVALUATED, read_runs


@pytest.fixture
def make(tmp_path):
    """A function that makes runs of (agent, game, seed, scores) and reads them."""

    def write(*runs, **settings):
        for agent, game, seed, scores in runs:
            folder = tmp_path / f"{game}_{agent}_{seed}"
            write_run(folder, scores, agent=agent, seed=seed, game=game, **settings)
        return read_runs(tmp_path)

    return write


# No-op references: random and human are -20.7 and 14.6 in pong, 163.9 and 13455.0 in qbert.
def percent(game, scores):
    return references("noop")[game].percent(np.array(scores))


def test_curves_are_means_over_seeds(make):
    runs = make(
        ("rainbow", "pong", 1, [0.0, 10.0]),
        ("rainbow", "pong", 2, [2.0, 20.0]),
        ("rainbow", "qbert", 1, [100.0, 300.0]),
    )
    grid = study.percent_grid(runs)
    assert grid.games == ("pong", "qbert")
    np.testing.assert_array_equal(grid.frames, [1e6, 2e6])
    np.testing.assert_allclose(
        grid.scores, [percent("pong", [1, 15]), percent("qbert", [100, 300])]
    )


def test_curves_in_percent(make):
    grid = study.percent_grid(make(("rainbow", "pong", 1, [-20.7, 14.6])))
    np.testing.assert_allclose(grid.scores, [[0, 100]], atol=1e-9)


def test_a_curve_ends_where_its_shortest_run_ends(make):
    runs = make(("rainbow", "pong", 1, [1.0, 2.0, 3.0]), ("rainbow", "qbert", 1, [5.0, 6.0]))
    grid = study.percent_grid(runs)
    np.testing.assert_array_equal(grid.frames, [1e6, 2e6])
    np.testing.assert_allclose(grid.scores, [percent("pong", [1, 2]), percent("qbert", [5, 6])])


def test_a_point_that_is_some_frames_late_is_the_same_point(make, tmp_path):
    make(("rainbow", "pong", 1, [1.0, 2.0]), ("rainbow", "qbert", 1, [5.0, 6.0]))
    path = tmp_path / "pong_rainbow_1/eval.csv"
    path.write_text(path.read_text().replace("000000,", "000012,"))
    grid = study.percent_grid(read_runs(tmp_path))
    assert len(grid.frames) == 2
    np.testing.assert_allclose(
        grid.scores, [percent("pong", [1, 2]), percent("qbert", [5, 6])], atol=1e-4
    )


def test_the_effect_of_an_ablation_by_hand(make):
    # Flat curves: areas 10, 2 and 4. (4 - 10) / (10 - 2) = -75 %; qbert's dqn is above rainbow.
    runs = make(
        *((agent, "pong", 1, [level] * 3) for agent, level in
          (("rainbow", 10.0), ("dqn", 2.0), ("no_noisy", 4.0), ("no_double", 12.0))),
        *((agent, "qbert", 1, [level] * 3) for agent, level in
          (("rainbow", 10.0), ("dqn", 11.0), ("no_noisy", 4.0))),
        ("rainbow", "boxing", 1, [5.0] * 3),
        *((agent, "alien", 1, [level] * 3) for agent, level in
          (("rainbow", 200.0), ("dqn", 100.0), ("no_noisy", 50.0))),
    )  # fmt: skip
    drops = study.ablation_drops(runs, ABLATIONS)
    assert drops.agents == ("no_double", "no_noisy")
    assert drops.environments == ("alien", "pong")
    np.testing.assert_allclose(drops.change, [[np.nan, 25], [-150, -75]])
    assert drops.omitted == ("qbert",)


def test_areas_are_taken_over_the_same_frames(make):
    # Within the first 2M frames, all that no_noisy has: rainbow 1, dqn 0, no_noisy 1.
    runs = make(
        ("rainbow", "pong", 1, [1.0, 1.0, 99.0, 99.0]),
        ("dqn", "pong", 1, [0.0, 0.0, 0.0, 0.0]),
        ("no_noisy", "pong", 1, [1.0, 1.0]),
    )
    np.testing.assert_allclose(study.ablation_drops(runs, ABLATIONS).change, [[0]], atol=1e-9)


def test_no_area_without_common_frames(make, tmp_path):
    make(*((agent, "pong", 1, [1.0, 2.0]) for agent in ("rainbow", "dqn", "no_noisy")))
    path = tmp_path / "pong_dqn_1/eval.csv"
    path.write_text(path.read_text().replace("000000,", "0000000000,"))
    drops = study.ablation_drops(read_runs(tmp_path), ABLATIONS)
    assert drops.agents == drops.omitted == ()


def test_medians_of_ablations_have_intervals_over_seeds(make):
    # Areas: rainbow 10, dqn 0, no_noisy 4 or 8, so a resampled change is between -60 and -20 %.
    runs = make(
        ("rainbow", "pong", 1, [10.0, 10.0]),
        ("dqn", "pong", 1, [0.0, 0.0]),
        *(("no_noisy", "pong", seed, [level] * 2) for seed, level in ((1, 4.0), (2, 8.0))),
    )
    drops = study.ablation_drops(runs, ABLATIONS)
    np.testing.assert_allclose(drops.change, [[-40]])
    np.testing.assert_allclose(drops.intervals, [[-60, -20]])
    one_seed = [run for run in runs if run.config.seed == 1]
    assert study.ablation_drops(one_seed, ABLATIONS).intervals is None


def test_no_waterfall_without_dqn(make):
    runs = make(("rainbow", "pong", 1, [1.0]), ("no_noisy", "pong", 1, [0.0]))
    drops = study.ablation_drops(runs, ABLATIONS)
    assert drops.agents == drops.omitted == ()


def test_end_scores_prefer_the_evaluated_snapshot(make, tmp_path):
    make(("rainbow", "pong", 1, [1.0, 9.0, 3.0]), ("rainbow", "pong", 2, [1.0, 5.0, 2.0]))
    write_evaluation(tmp_path / "pong_rainbow_1", 8.0)
    write_evaluation(tmp_path / "pong_rainbow_1", 6.0, protocol="paper/human")
    ends = study.end_scores(read_runs(tmp_path))
    assert list(ends) == ["paper/noop", "paper/human"]
    found = [(end.score, end.source) for end in ends["paper/noop"]["rainbow"]["pong"]]
    assert found == [(5.0, study.BEST), (8.0, EVALUATED)]
    assert [end.score for end in ends["paper/human"]["rainbow"]["pong"]] == [6.0]


def test_human_starts_have_their_own_reference(make, tmp_path):
    # pong, human starts: random -18.0, human 15.5.
    make(("rainbow", "pong", 1, [1.0]))
    write_evaluation(tmp_path / "pong_rainbow_1", 15.5, protocol="paper/human")
    ends = study.end_scores(read_runs(tmp_path))
    found = study.estimate(ends["paper/human"]["rainbow"], "paper/human")
    assert found.percents["pong"] == [pytest.approx(100)]


def test_a_game_may_have_fewer_seeds(make, tmp_path):
    # pong, no-op: random -20.7, human 14.6; qbert: 163.9 and 13455.0.
    make(("rainbow", "pong", 1, [14.6]), ("rainbow", "pong", 2, [-20.7]))
    make(("rainbow", "qbert", 1, [13455.0]))
    (ends,) = study.end_scores(read_runs(tmp_path)).values()
    found = study.estimate(ends["rainbow"], "paper/noop")
    assert found.percents == {"pong": pytest.approx([0, 100]), "qbert": pytest.approx([100])}
    # Games' means: 50 and 100.
    assert found.values == pytest.approx([75, 200 / 3, 75])


def test_intervals_are_over_seeds_or_over_the_episodes_of_one(make, tmp_path):
    def estimate():
        (ends,) = study.end_scores(read_runs(tmp_path)).values()
        return study.estimate(ends["rainbow"], "paper/noop")

    make(("rainbow", "pong", 1, [14.6]))
    assert estimate().intervals is None
    write_evaluation(tmp_path / "pong_rainbow_1", [-20.7, 14.6] * 10)
    found = estimate()
    assert found.over == "episodes"
    assert found.values[0] == pytest.approx(50)
    # A mean of 20 draws of 0 or 100 %: 50 plus or minus 1.96 * 50 / sqrt(20).
    np.testing.assert_allclose(found.intervals[0], [50 - 21.9, 50 + 21.9], atol=4)
    make(("rainbow", "pong", 2, [14.6]))
    assert estimate().over == "seeds"


def test_end_scores_say_how_they_were_evaluated(make, tmp_path):
    make(("rainbow", "pong", 1, [1.0]))
    write_evaluation(tmp_path / "pong_rainbow_1", 5.0, snapshot="latest", eval_epsilon=0.001)
    (ends,) = study.end_scores(read_runs(tmp_path)).values()
    (end,) = ends["rainbow"]["pong"]
    assert end.conditions == "20 episodes, latest weights, epsilon 0.001"


def unfinished(runs, **which):
    """The runs, with one of them cut short of its frames."""
    return [
        dataclasses.replace(run, config=dataclasses.replace(run.config, frames=10_000_000))
        if (run.agent, run.config.seed) == (which["agent"], which["seed"])
        else run
        for run in runs
    ]


def test_unfinished_runs_count_only_alone(make):
    runs = unfinished(
        make(*((agent, "pong", seed, [1.0, 2.0]) for agent in ("rainbow", "dqn")
               for seed in (1, 2))),
        agent="rainbow", seed=2,
    )  # fmt: skip
    found = {(run.agent, run.config.seed) for run in study.counted(runs)}
    assert found == {("rainbow", 1), ("dqn", 1), ("dqn", 2)}
    alone = [run for run in runs if not run.is_finished]
    assert study.counted(alone) == alone


def test_missing_runs_of_the_grid(make):
    runs = unfinished(
        make(
            ("rainbow", "pong", 1, [1.0, 2.0]),
            ("rainbow", "pong", 2, [1.0, 2.0]),
            ("dqn", "pong", 1, []),
            ("dqn", "qbert", 2, [1.0]),
        ),
        agent="rainbow",
        seed=2,
    )
    found = {tuple(key): problem for *key, problem in study.missing_runs(runs)}
    assert found == {
        ("pong", "rainbow", 2): "unfinished: 2 of 10 million frames",
        ("pong", "dqn", 1): "no score yet",
        ("pong", "dqn", 2): "missing",
        ("qbert", "dqn", 1): "missing",
        ("qbert", "rainbow", 1): "missing",
        ("qbert", "rainbow", 2): "missing",
    }


def test_environments_without_a_human_are_not_in_the_grid_of_games(make, tmp_path):
    make(("rainbow", "pong", 1, [1.0]), ("dqn", "pong", 1, [1.0]))
    write_run(tmp_path / "cart", [9.0], protocol="gymnasium", environment="CartPole-v1", seed=7)
    assert study.missing_runs(read_runs(tmp_path)) == []


def test_different_settings_are_reported(make):
    runs = make(("rainbow", "pong", 1, [1.0]))
    other = dataclasses.replace(runs[0].config, seed=2, learning_rate=0.1, batch_size=32)
    sentences = study.differing_settings([*runs, dataclasses.replace(runs[0], config=other)])
    assert sentences == ["rainbow on Atari: runs differ in --learning_rate (0.1, 6.25e-05)."]
    assert study.differing_settings(runs) == []


def test_different_lengths_are_reported(make):
    runs = make(("rainbow", "pong", 1, [1.0]), ("dqn", "pong", 1, [1.0, 2.0]))
    (sentence,) = study.differing_settings(runs)
    assert "(1, 2 million frames)" in sentence


def protocols(tmp_path, *names):
    """Runs whose curves have these protocols."""
    for i, name in enumerate(names):
        write_run(tmp_path / str(i), [1.0], protocol=name, seed=i)
    return read_runs(tmp_path)


def checked(runs, *, mixed=False, with_paper=False):
    return study.checked_protocols(runs, mixed=mixed, with_paper=with_paper)


@pytest.mark.parametrize("other", ["sticky/noop", "paper/human"])
def test_curves_of_different_protocols_are_refused(tmp_path, other):
    runs = protocols(tmp_path, "paper/noop", other)
    with pytest.raises(ConfigError, match="--mixed") as error:
        checked(runs)
    assert f"paper/noop in {tmp_path / '0'}" in str(error.value)
    assert f"{other} in {tmp_path / '1'}" in str(error.value)


def test_mixed_curves_are_labelled(tmp_path):
    runs = checked(protocols(tmp_path, "paper/noop", "sticky/noop"), mixed=True)
    assert [run.agent for run in runs] == ["rainbow [paper/noop]", "rainbow [sticky/noop]"]


def test_sticky_runs_are_not_compared_with_the_paper(tmp_path):
    runs = protocols(tmp_path, "sticky/noop")
    assert checked(runs) == runs
    with pytest.raises(ConfigError, match="the paper"):
        checked(runs, with_paper=True)
    assert checked(runs, with_paper=True, mixed=True) == runs


@pytest.mark.parametrize("starts", ["policy", "random"])
def test_starts_of_a_policy_are_not_compared_with_human_starts(tmp_path, starts):
    protocols(tmp_path, "paper/noop", "paper/noop")
    write_evaluation(tmp_path / "0", 1.0, protocol=f"paper/{starts}")
    assert len(checked(read_runs(tmp_path))) == 2
    with pytest.raises(ConfigError, match=f"paper/{starts}"):
        checked(read_runs(tmp_path), with_paper=True)
    write_evaluation(tmp_path / "1", 1.0, protocol="paper/human")
    with pytest.raises(ConfigError, match=f"paper/{starts}"):
        checked(read_runs(tmp_path))


def test_both_start_regimes_stand_side_by_side(tmp_path):
    protocols(tmp_path, "paper/noop")
    write_evaluation(tmp_path / "0", 1.0, protocol="paper/human")
    assert len(checked(read_runs(tmp_path), with_paper=True)) == 1


def test_other_environments_conflict_with_nothing(tmp_path):
    write_run(tmp_path / "cart", [9.0], protocol="gymnasium", environment="CartPole-v1")
    protocols(tmp_path, "paper/noop")
    assert {Path(run.folder).name for run in checked(read_runs(tmp_path))} == {"cart", "0"}
