"""Watching a run: the command, its video, and what it says when it cannot."""

import re
import signal
import sys

import cv2
import pytest

from rainbow_tf import watch
from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.runs.store import Best
from rainbow_tf.runs.weights import write_best
from rainbow_tf.video.panel import Panel


def make_run(folder, config):
    """A run whose best weights are those it began with."""
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    environment = make_environment(config, num_envs=1, seed=1)
    network = make_network(config, environment.spec, seed=2, name="online")
    environment.close()
    write_best(folder, network, Best(1234, 10.0, 1, "gymnasium"))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "cartpole", Config(environment="CartPole-v1"))
    make_run(folder / "minatar", Config(environment="MinAtar/Breakout-v1", distributional=False))
    make_run(folder / "qbert", Config(game="qbert"))
    return folder


def frames(path):
    capture = cv2.VideoCapture(str(path))
    found = []
    while (frame := capture.read()[1]) is not None:
        found.append(frame)
    return found


@pytest.mark.parametrize(
    ("name", "suffix", "shape"),
    [
        ("cartpole", "gif", (420, 630 + 378, 3)),
        pytest.param("minatar", "mp4", (630, 630 + 566, 3), marks=pytest.mark.slow),
        ("qbert", "mp4", (630, 480 + 566, 3)),
    ],
)
def test_environments_are_filmed(run_command, runs, tmp_path, name, suffix, shape):
    out = tmp_path / "new" / f"{name}.{suffix}"
    result = run_command(
        "watch", f"--run_dir={runs / name}", f"--out={out}", "--max_seconds=2", "--episodes=9"
    )
    assert result.status == 0, result.stderr
    pictures = frames(out)
    assert {picture.shape for picture in pictures} == {shape}
    assert len(pictures) == 30 if suffix == "mp4" else 20 < len(pictures) <= 30
    assert not (pictures[0] == pictures[-1]).all()
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    first, second = result.stdout.splitlines()
    assert re.fullmatch(rf"{out} shows 2\.0 s of play with a score of [\d and]+\.", first)
    assert second == "It was cut there; give a larger --max_seconds to see more."
    for line in result.stderr.replace("\r", "\n").splitlines():
        assert "frame" in line or not line.strip(), line


@pytest.mark.slow
def test_a_whole_game_is_not_cut(run_command, runs, tmp_path):
    out = tmp_path / "game.gif"
    result = run_command(
        "watch", f"--run_dir={runs / 'cartpole'}", f"--out={out}", "--fps=30", "--seed=4"
    )
    assert result.status == 0, result.stderr
    (line,) = result.stdout.splitlines()
    seconds, score = map(float, re.search(r"shows ([\d.]+) s .* of (\d+)\.", line).groups())
    assert seconds == pytest.approx((score + 1) / 30, abs=0.06)  # with the end


def test_an_interrupt_leaves_no_file(run_command, runs, tmp_path, monkeypatch):
    draw = Panel.picture

    def interrupted(panel, scene):
        if scene.step == 3:
            assert not (tmp_path / "game.mp4").exists()
            signal.raise_signal(signal.SIGINT)
        return draw(panel, scene)

    monkeypatch.setattr(Panel, "picture", interrupted)
    out = tmp_path / "game.mp4"
    result = run_command("watch", f"--run_dir={runs / 'cartpole'}", f"--out={out}")
    assert (result.status, result.stdout) == (130, "")
    assert result.stderr.endswith("\nrainbow_tf: interrupted; no video was written.\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["--run_dir", "--out"]),
        (["--run_dir={runs}/cartpole"], ["--out"]),
        (["--run_dir=nowhere", "--out=x.mp4"], ["--run_dir=nowhere is not a run folder"]),
        (["--run_dir={runs}/cartpole", "--out=x.avi"], ["x.avi must end in .mp4 or .gif."]),
        (
            ["--run_dir={runs}/cartpole", "--out={runs}/cartpole/config.json/x.mp4"],
            ["x.mp4 cannot be written", "config.json is a file"],
        ),
        (
            ["--run_dir={runs}/cartpole", "--out=x.gif", "--snapshot=best", "--checkpoint=1"],
            ["--checkpoint and --snapshot=best"],
        ),
        (["qbert"], ["'qbert' is not a flag"]),
    ],
)
def test_bad_input_is_one_sentence_before_tensorflow(
    run_command, runs, tmp_path, monkeypatch, arguments, named
):
    def loaded(threads):
        raise AssertionError("TensorFlow was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "load_tensorflow", loaded)
    result = run_command("watch", *(argument.format(runs=runs) for argument in arguments))
    assert result.status == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(run_command, runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    result = run_command("watch", f"--run_dir={runs / 'cartpole'}", f"--out={tmp_path}/x.mp4")
    assert result.status == 1
    assert 'pip install "rainbow_tf[video]"' in result.stderr
    assert len(result.stderr.splitlines()) == 1
