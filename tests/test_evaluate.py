"""The command that scores a run."""

import csv
import json
import subprocess

import numpy as np
import pytest
from absl import flags

from rainbow_tf import evaluate
from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.runs.weights import Best, write_best
from rainbow_tf.starts import file as starts


def parse(*arguments):
    values = flags.FlagValues()
    evaluate.COMMAND.define_flags(values)
    values(["evaluate", *arguments])
    return values


def results(folder):
    with (folder / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    return rows, json.loads((folder / "summary.json").read_text())


# CartPole, from a real run.


@pytest.fixture(scope="module")
def trained(cartpole, tmp_path_factory):
    return cartpole.copy(tmp_path_factory.mktemp("evaluated") / "run")


def test_a_run_is_scored_from_end_to_end(run_command, trained):
    arguments = [f"--run_dir={trained}", "--episodes=7", "--num_envs=3"]
    done = run_command("evaluate", *arguments, "--eval_epsilon=0.5")
    assert done.status == 0, done.stderr
    rows, summary = results(trained / "evaluations" / "gymnasium")
    assert list(rows[0]) == [
        *("episode", "score", "length", "start"),
        *("value_mean", "return_mean", "outside_support"),
    ]
    assert [row["episode"] for row in rows] == [str(n) for n in range(7)]
    assert {row["start"] for row in rows} == {"reset"}
    scores = np.array([float(row["score"]) for row in rows])
    lengths = np.array([int(row["length"]) for row in rows])
    assert len(set(scores)) > 1
    np.testing.assert_array_equal(scores, lengths)  # one point a step
    for length, row in zip(lengths, rows, strict=True):
        returns = [(1 - 0.99**n) / 0.01 for n in range(1, length + 1)]
        assert float(row["return_mean"]) == pytest.approx(np.mean(returns))
        outside = np.mean(np.array(returns) > 10)
        assert float(row["outside_support"]) == pytest.approx(outside)
    best = json.loads((trained / "best" / "score.json").read_text())
    expected = {
        "game": None,
        "environment": "CartPole-v1",
        "agent": "rainbow",
        "seed": 1,
        "frames": best["frames"],
        "snapshot": "best",
        "episodes": 7,
        "score_mean": pytest.approx(scores.mean()),
        "score_median": pytest.approx(np.median(scores)),
        "score_stderr": pytest.approx(scores.std(ddof=1) / 7**0.5),
        "human_normalised": None,
        "protocol": "gymnasium",
        "starts_origin": None,
        "eval_noise": False,
        "eval_epsilon": 0.5,
        "support": [-10.0, 10.0],
        "returns_end_at": "episode",
        "value_mean": pytest.approx(np.mean([float(row["value_mean"]) for row in rows])),
    }
    assert {name: summary[name] for name in expected} == expected
    for text in ("CartPole-v1", "gymnasium", f"mean {scores.mean():.1f}", "predicted"):
        assert text in done.stdout
    assert "7/7" in done.stderr


def test_many_runs_are_scored_and_those_that_are_done_are_skipped(
    run_command, cartpole, tmp_path, monkeypatch
):
    started = []

    def in_process(command, **kwargs):
        started.append(command[-1])
        evaluate.run(parse(*command[3:]))
        return subprocess.CompletedProcess(command, 0, "scored", "")

    monkeypatch.setattr(evaluate.subprocess, "run", in_process)
    monkeypatch.setattr(evaluate, "load_tensorflow", lambda threads: None)  # not in a thread
    for name in ("one", "two"):
        cartpole.copy(tmp_path / name)
    arguments = [f"--runs={tmp_path}", "--episodes=2", "--snapshot=latest", "--parallel=1"]
    done = run_command("evaluate", *arguments)
    assert done.status == 0, done.stderr
    assert "Runs: 2, already evaluated: 0." in done.stdout
    assert started == [f"--run_dir={tmp_path / name}" for name in ("one", "two")]
    _, summary = results(tmp_path / "two" / "evaluations" / "gymnasium")
    assert (summary["episodes"], summary["snapshot"]) == (2, "latest")
    # The same command has nothing to do; another epsilon is another evaluation.
    (tmp_path / "one" / "evaluations" / "gymnasium" / "summary.json").unlink()
    assert "Runs: 2, already evaluated: 1." in run_command("evaluate", *arguments).stdout
    assert len(started) == 3
    run_command("evaluate", *arguments, "--eval_epsilon=0.5")
    assert len(started) == 5


def test_a_run_that_fails_is_reported_and_the_others_are_scored(
    run_command, cartpole, tmp_path, monkeypatch
):
    def fails(command, **kwargs):
        is_bad = command[-1].endswith("one")
        return subprocess.CompletedProcess(command, int(is_bad), "scored", "rainbow_tf: damaged")

    monkeypatch.setattr(evaluate.subprocess, "run", fails)
    for name in ("one", "two"):
        cartpole.copy(tmp_path / name)
    done = run_command("evaluate", f"--runs={tmp_path}")
    assert done.status == 1
    assert f"{tmp_path / 'one'}\nrainbow_tf: damaged" in done.stdout
    assert f"{tmp_path / 'two'}\nscored" in done.stdout
    assert "1 of 2 runs failed" in done.stderr


def test_training_compares_values_with_returns_too(trained):
    with (trained / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        # A reward of 1 a step: the first state of an episode of n steps has the largest return.
        assert 0 < float(row["return_mean"]) < (1 - 0.99 ** float(row["score_max"])) / 0.01
        assert -10 < float(row["value_mean"]) < 10
        # Returns are above 10 where more than 10 steps follow: in no episode of at most 10 steps.
        assert 0 <= float(row["outside_support"]) < 1
        assert (float(row["outside_support"]) > 0) == (float(row["score_max"]) > 10)


def test_the_newest_checkpoint_can_be_scored(trained, monkeypatch):
    monkeypatch.setattr(evaluate, "load_tensorflow", lambda threads: None)  # it is loaded
    evaluate.run(parse(f"--run_dir={trained}", "--episodes=1", "--snapshot=latest"))
    _, summary = results(trained / "evaluations" / "gymnasium")
    assert summary["snapshot"] == "latest"
    assert summary["frames"] >= 500
    assert summary["num_envs"] == 1  # no more lanes than episodes
    assert summary["score_stderr"] is None


# Atari, from weights that were never trained.


@pytest.fixture(scope="module")
def breakout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = Config(
        game="breakout", network="data_efficient", run_dir=str(folder), max_episode_frames=400
    )
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    environment = make_environment(config, num_envs=1, seed=1)
    network = make_network(config, environment.spec, seed=1, name="online")
    write_best(folder, network, Best(1234, 0.0, 1, "paper/noop"))
    return folder


def start_file(path, origin, game="breakout"):
    settings = starts.recorder_settings(game, action_repeat=4, seed=1)
    recording = starts.Recording(settings)
    for t in range(60):
        recording.step((1, 3, 4)[t % 3])
    path.write_text(starts.text_of(settings, [recording.trajectory(origin)]))
    return path


def test_no_op_starts(breakout, capsys):
    evaluate.run(parse(f"--run_dir={breakout}", "--episodes=3", "--num_envs=2", "--eval_noise"))
    rows, summary = results(breakout / "evaluations" / "paper_noop")
    assert [row["start"] for row in rows] == ["noop"] * 3
    assert all(int(row["length"]) <= 100 for row in rows)  # cut at 400 frames
    mean = np.mean([float(row["score"]) for row in rows])
    assert summary["human_normalised"] == pytest.approx(100 * (mean - 1.7) / (30.5 - 1.7))
    assert summary["protocol"] == "paper/noop"
    assert summary["frames"] == 1234
    assert summary["eval_noise"] is True
    assert summary["returns_end_at"] == "life"
    assert summary["noop_max"] == 30
    assert summary["max_episode_frames"] == 400
    assert "of human" in capsys.readouterr().out


def test_a_seed_decides_the_games(breakout):
    def play(seed):
        evaluate.run(
            parse(f"--run_dir={breakout}", "--episodes=2", "--eval_epsilon=1", f"--seed={seed}")
        )
        return results(breakout / "evaluations" / "paper_noop")[0]

    first = play(1)
    assert play(1) == first
    assert play(2) != first


@pytest.mark.parametrize("origin", ["human", "policy", "random"])
def test_recorded_starts(breakout, tmp_path, origin):
    path = start_file(tmp_path / "starts.json", origin)
    arguments = [f"--run_dir={breakout}", "--starts=human", f"--start_file={path}"]
    evaluate.run(parse(*arguments, "--episodes=3", "--num_envs=2"))
    folder = breakout / "evaluations" / f"paper_{origin}"
    rows, summary = results(folder)
    points = starts.sample_points(starts.read(path), 3, seed=1)
    assert [row["start"] for row in rows] == [str(point) for point in points]
    assert all(int(row["length"]) <= 100 for row in rows)
    assert summary["protocol"] == f"paper/{origin}"
    assert summary["starts_origin"] == origin
    mean = np.mean([float(row["score"]) for row in rows])
    # Nothing that no person played is held against a person.
    expected = 100 * (mean - 1.6) / (27.9 - 1.6) if origin == "human" else None
    assert summary["human_normalised"] == pytest.approx(expected)
    if origin == "human":
        before = (folder / "scores.csv").read_text()
        evaluate.run(parse(*arguments, "--episodes=3", "--num_envs=2"))
        assert (folder / "scores.csv").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Give --run_dir"),
        (["--run_dir=nowhere"], "is not a run folder"),
        (["--run_dir=RUN", "--starts=human"], "needs --start_file"),
        (["--run_dir=RUN", "--start_file=starts.json"], "is for --starts=human"),
        (["--run_dir=RUN", "--starts=human", "--start_file=none.json"], "none.json cannot be used"),
        (["--run_dir=RUN", "--starts=human", "--start_file=PONG"], "is of pong"),
        (["--run_dir=RUN", "--checkpoint=1", "--snapshot=best"], "exclude each other"),
        (["--run_dir=RUN", "--snapshot=latest"], "no intact checkpoint"),
        (["--run_dir=RUN", "--checkpoint=99"], "Give another --checkpoint"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence(breakout, tmp_path, arguments, expected):
    pong = start_file(tmp_path / "pong.json", "human", "pong")
    given = [a.replace("RUN", str(breakout)).replace("PONG", str(pong)) for a in arguments]
    with pytest.raises(ConfigError, match=expected) as error:
        evaluate.run(parse(*given))
    assert "\n" not in str(error.value)


def test_no_noise_to_keep_and_no_room_to_write(breakout, tmp_path):
    settings = json.loads((breakout / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"noisy": False}))
    with pytest.raises(ConfigError, match="--eval_noise has nothing to keep"):
        evaluate.run(parse(f"--run_dir={tmp_path}", "--eval_noise"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        evaluate._write(tmp_path / "file" / "evaluations", "", {})


def test_the_command_ends_without_a_traceback(run_command, tmp_path):
    done = run_command("evaluate", f"--run_dir={tmp_path}")
    assert done.status == 1
    assert done.stderr.startswith("rainbow_tf: ")
    assert done.stderr.count("\n") == 1
