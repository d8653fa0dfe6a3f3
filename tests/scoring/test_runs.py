import json

import numpy as np
import pytest
from made_up_runs import AGENTS, EVAL_HEADER, write_evaluation, write_run

from rainbow_tf.config import ConfigError
from rainbow_tf.scoring.runs import read_runs
from rainbow_tf.training.metrics import EVAL_COLUMNS, TRAIN_COLUMNS


def one_sentence(folder):
    with pytest.raises(ConfigError) as error:
        read_runs(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_made_up_runs_have_the_columns_of_real_ones():
    assert tuple(EVAL_HEADER.strip().split(",")) == EVAL_COLUMNS


def test_a_run_is_read(tmp_path):
    folder = write_run(tmp_path / "deep/er/run", [1.0, 2.0, 3.5], seed=4, game="qbert")
    write_evaluation(folder, 7.5, protocol="paper/human", episodes=3)
    (run,) = read_runs(tmp_path)
    assert (run.agent, run.environment, run.config.seed) == ("rainbow", "qbert", 4)
    np.testing.assert_array_equal(run.curve.frames, [1e6, 2e6, 3e6])
    np.testing.assert_array_equal(run.curve.scores, [1, 2, 3.5])
    assert run.curve.protocol == "paper/noop"
    assert run.is_finished
    (evaluation,) = run.evaluations
    assert (evaluation.score, evaluation.conditions) == (7.5, "3 episodes, best weights")
    np.testing.assert_array_equal(evaluation.scores, [7.5] * 3)
    assert len(evaluation.values) == 0


def test_a_runs_folder_may_be_a_run(tmp_path):
    assert len(read_runs(write_run(tmp_path / "run", [1.0]))) == 1


def test_columns_of_a_later_version_are_ignored(tmp_path):
    folder = write_run(tmp_path / "run", [1.0, 2.0])
    lines = (folder / "eval.csv").read_text().splitlines()
    wider = [lines[0] + ",new", *(line + ",5" for line in lines[1:])]
    (folder / "eval.csv").write_text("\n".join(wider) + "\n")
    np.testing.assert_array_equal(read_runs(tmp_path)[0].curve.scores, [1, 2])


def test_agents_have_the_names_of_the_paper(tmp_path):
    for agent in AGENTS:
        write_run(tmp_path / agent, [1.0], agent=agent)
    assert {run.agent for run in read_runs(tmp_path)} == set(AGENTS)


def write_training(folder, points):
    """A train.csv with these frames and mean returns."""
    row = dict.fromkeys(TRAIN_COLUMNS, "0")
    text = ",".join(TRAIN_COLUMNS) + "\n"
    for frames, value in points:
        text += ",".join((row | {"frames": str(frames), "return_mean_100": value}).values()) + "\n"
    (folder / "train.csv").write_text(text)


def test_training_returns_replace_missing_evaluations(tmp_path):
    write_training(write_run(tmp_path / "run", []), [(10, ""), (20, "5.5")])
    (run,) = read_runs(tmp_path)
    assert run.curve.is_training
    np.testing.assert_array_equal(run.curve.frames, [20])
    np.testing.assert_array_equal(run.curve.scores, [5.5])


@pytest.mark.parametrize(("evaluations", "expected"), [(2, [5.5, 6]), (50, [])])
def test_training_returns_are_read_beside_few_evaluations(tmp_path, evaluations, expected):
    write_training(write_run(tmp_path / "run", [1.0] * evaluations), [(20, "5.5"), (30, "6")])
    (run,) = read_runs(tmp_path)
    assert not run.curve.is_training
    assert len(run.curve.frames) == evaluations
    np.testing.assert_array_equal(run.training.scores, expected)


def test_a_run_without_a_score_is_read(tmp_path):
    write_run(tmp_path / "run", [])
    (run,) = read_runs(tmp_path)
    assert len(run.curve.frames) == 0
    assert not run.is_finished


def test_a_run_that_a_restart_moved_aside_is_left_out(tmp_path):
    write_run(tmp_path / "seed_1", [1.0])
    write_run(tmp_path / "seed_1_20250101_120000", [9.0])
    assert [run.folder.name for run in read_runs(tmp_path)] == ["seed_1"]


def test_empty_folder(tmp_path):
    assert f"--runs={tmp_path}" in one_sentence(tmp_path)


def test_folder_that_is_not_there(tmp_path):
    assert "nowhere" in one_sentence(tmp_path / "nowhere")


@pytest.mark.parametrize("end", [1, 15, 30])
def test_truncated_csv_is_named(tmp_path, end):
    path = write_run(tmp_path / "run", [1.0, 2.0]) / "eval.csv"
    path.write_text(path.read_text()[:-end])
    message = one_sentence(tmp_path)
    assert str(path) in message
    assert "line 3" in message


def test_short_row_is_named(tmp_path):
    path = write_run(tmp_path / "run", [1.0]) / "eval.csv"
    path.write_text(path.read_text() + "2000000,10\n")
    assert f"{path} has 2 of 13 columns in line 3" in one_sentence(tmp_path)


def test_a_cell_that_is_no_number_is_named(tmp_path):
    path = write_run(tmp_path / "run", [1.0]) / "eval.csv"
    path.write_text(path.read_text().replace("1000000,10,1,", "1000000,10,one,"))
    assert "'one' for score_mean in line 2" in one_sentence(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1000000,10,1,", "1000000,10,inf,", "'inf' for score_mean in line 2"),
        ("1000000,10,1,", "1000000,10,1e308,", "'1e308' for score_mean in line 2"),
        ("1000000,10,1,", f"1{'0' * 5000},10,1,", "for frames in line 2"),
        ("1000000,10,1,", f"1{'0' * 30},10,1,", "for frames in line 2"),
        ("1000000,10,1,", "9000000,10,1,", "frames that do not rise"),
        ("paper/noop", "paper/\x1bnoop", "for protocol in line 2"),
        ("1000000,10,1,", f"{chr(0) * 200_000}\n", "field larger than field limit"),
    ],
)
def test_numbers_that_cannot_be_are_named(tmp_path, old, new, said):
    path = write_run(tmp_path / "run", [1.0, 2.0]) / "eval.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    message = one_sentence(tmp_path)
    assert said in message
    assert len(message) < 400


def test_a_bad_run_is_told_and_left_out(tmp_path, capsys):
    write_run(tmp_path / "good", [1.0])
    path = write_run(tmp_path / "bad", [2.0], seed=2) / "config.json"
    path.write_text("[" * 100_000)
    assert [run.folder.name for run in read_runs(tmp_path)] == ["good"]
    assert f"{path} cannot be used" in capsys.readouterr().out


def test_empty_csv_is_named(tmp_path):
    path = write_run(tmp_path / "run", [1.0]) / "eval.csv"
    path.write_text("")
    assert str(path) in one_sentence(tmp_path)


def test_unknown_game_is_named(tmp_path):
    path = write_run(tmp_path / "run", [1.0]) / "config.json"
    path.write_text(path.read_text().replace('"pong"', '"pongg"'))
    message = one_sentence(tmp_path)
    assert str(path) in message
    assert "pongg" in message


@pytest.mark.parametrize("text", ["{", "[]", '{"game": "pong", "unheard_of": 1}', ""])
def test_bad_config_is_named(tmp_path, text):
    path = write_run(tmp_path / "run", [1.0]) / "config.json"
    path.write_text(text)
    assert str(path) in one_sentence(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"protocol": "paper/noop"})])
def test_bad_summary_is_named(tmp_path, text):
    folder = write_run(tmp_path / "run", [1.0])
    write_evaluation(folder, 1.0)
    path = folder / "evaluations/paper_noop/summary.json"
    path.write_text(text)
    assert str(path) in one_sentence(tmp_path)


def test_starts_of_a_policy_that_are_called_human_are_refused(tmp_path):
    folder = write_run(tmp_path / "run", [1.0])
    write_evaluation(folder, 1.0, protocol="paper/human")
    path = folder / "evaluations/paper_human/summary.json"
    path.write_text(
        path.read_text().replace('"starts_origin": "human"', '"starts_origin": "policy"')
    )
    assert "recorded by policy" in one_sentence(tmp_path)


def test_a_file_of_two_protocols_is_refused(tmp_path):
    path = write_run(tmp_path / "run", [1.0, 2.0]) / "eval.csv"
    path.write_text(path.read_text().replace("paper/noop", "sticky/noop", 1))
    assert "paper/noop, sticky/noop" in one_sentence(tmp_path)


def test_the_same_seed_twice_is_refused(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, [1.0])
    message = one_sentence(tmp_path)
    assert str(tmp_path / "a") in message
    assert str(tmp_path / "b") in message
