"""Watching a run: the command, its video, and what it says when it cannot."""

import os
import re
import signal
import subprocess
import sys
import time

import cv2
import pytest

from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_world
from rainbow_tf.runs.store import Best
from rainbow_tf.runs.weights import write_best

# All warnings are errors but those that TensorFlow Probability and Keras raise in themselves.
COMMAND = [
    sys.executable,
    *("-W", "error"),
    *("-W", "ignore:distutils Version classes are deprecated"),
    *("-W", "ignore:__array__ implementation doesn't accept a copy keyword"),
    *("-m", "rainbow_tf.watch"),
]


def watch(*arguments, **kwargs):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=300, **kwargs
    )


def make_run(folder, config):
    """A run whose best weights are those it began with."""
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    world = make_world(config, num_envs=1, seed=1, training=False)
    network = make_network(config, world.spec, seed=2, name="online")
    world.close()
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
        ("cartpole", "gif", (420, 526 + 378, 3)),
        pytest.param("minatar", "mp4", (630, 630 + 566, 3), marks=pytest.mark.slow),
        ("qbert", "mp4", (630, 480 + 566, 3)),
    ],
)
def test_worlds_are_filmed(runs, tmp_path, name, suffix, shape):
    out = tmp_path / "new" / f"{name}.{suffix}"
    result = watch(f"--run_dir={runs / name}", f"--out={out}", "--max_seconds=2", "--episodes=9")
    assert result.returncode == 0, result.stderr
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
def test_a_whole_game_is_not_cut(runs, tmp_path):
    out = tmp_path / "game.gif"
    result = watch(f"--run_dir={runs / 'cartpole'}", f"--out={out}", "--fps=30", "--seed=4")
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    seconds, score = map(float, re.search(r"shows ([\d.]+) s .* of (\d+)\.", line).groups())
    assert seconds == pytest.approx((score + 1) / 30, abs=0.06)  # with the end


def test_an_interrupt_leaves_no_file(runs, tmp_path):
    out = tmp_path / "game.mp4"
    arguments = [f"--run_dir={runs / 'qbert'}", f"--out={out}", "--max_seconds=3000"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--episodes=100"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == [".game.part.mp4"]
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1] == "rainbow_tf: interrupted; no video was written."
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["--run_dir", "--out"]),
        (["--run_dir={runs}/cartpole"], ["--out"]),
        (["--run_dir=nowhere", "--out=x.mp4"], ["--run_dir=nowhere is not the folder of a run"]),
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
def test_bad_input_is_one_sentence_before_tensorflow(runs, tmp_path, arguments, named):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tensorflow.py").write_text("raise SystemExit('imported')")
    result = watch(
        *(argument.format(runs=runs) for argument in arguments),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "modules")},
    )
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["modules"]


def test_without_the_extra_it_is_named(runs, tmp_path):
    (tmp_path / "imageio_ffmpeg.py").write_text("raise ImportError")
    result = watch(
        f"--run_dir={runs / 'cartpole'}",
        "--out=x.mp4",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode != 0
    assert 'pip install "rainbow_tf[video]"' in result.stderr
    assert len(result.stderr.splitlines()) == 1
