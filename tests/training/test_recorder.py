"""Films of a run under way: they are there, and training does not feel them."""

import contextlib
import csv
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rainbow_tf.config import Config
from rainbow_tf.runs.weights import values
from rainbow_tf.training import recorder as recorder_module
from rainbow_tf.training.build import build_parts
from rainbow_tf.training.checkpoint import agent_variables
from rainbow_tf.training.loop import train
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.training.recorder import Recorder

CONFIG = Config(
    environment="CartPole-v1",
    frames=160,
    min_history_frames=40,
    replay_capacity=400,
    updates_per_step=0.5,
    log_period_frames=40,
    eval_epsilon=0.3,
    eval_noise=True,  # the noise comes from where training's does
    record_period_frames=70,
)


def run(config):
    """What a run leaves: what it said, its parts, and every number of its agent."""
    config.folder.mkdir(parents=True)
    parts = build_parts(config)
    metrics = Metrics(config=config, parts=parts, frames=0, evaluated=0)
    recorder = Recorder(
        config=config,
        parts=parts,
        metrics=metrics,
        frames=0,
        is_stopping=lambda: False,
    )
    losses = []
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for tick in train(config, parts):
            metrics.observe(tick)
            recorder.observe(tick.frames)
            losses += [result.loss for result in tick.results]
    metrics.close()
    parts.environment.close()
    numbers = values(agent_variables(parts)) | {"losses": np.array(losses)}
    states = [rng.bit_generator.state for rng in (parts.actor.rng, parts.evaluation_actor.rng)]
    return said.getvalue().splitlines(), parts, numbers, states


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    config = dataclasses.replace(CONFIG, run_dir=str(tmp_path_factory.mktemp("runs") / "run"))
    return config, *run(config)


def test_a_film_every_period(recorded):
    config, said, *_ = recorded
    videos = sorted(config.folder.glob("videos/*"))
    # Four lanes at a time: a film may come up to three frames late.
    assert [int(path.stem) // 70 for path in videos] == [2, 1]  # by name: 140, 72
    assert {path.suffix for path in videos} == {".mp4"}
    assert len(said) == 2
    for line, path in zip(said, reversed(videos), strict=True):
        assert line.startswith(f"film at {int(path.stem):,} frames: score ")
        assert line.endswith(str(path))


def test_tensorboard_plays_the_film(recorded):
    config, *_ = recorded
    board = EventAccumulator(
        str(config.folder / "tensorboard"), size_guidance={"tensors": 0}
    ).Reload()
    events = board.Tensors("film")
    steps = sorted(int(path.stem) for path in config.folder.glob("videos/*"))
    assert [event.step for event in events] == steps
    assert board.SummaryMetadata("film").plugin_data.plugin_name == "images"
    width, height, gif = events[0].tensor_proto.string_val
    assert gif.startswith(b"GIF89a")
    with Image.open(io.BytesIO(gif)) as image:
        assert image.size == (int(width), int(height))
        assert image.n_frames > 1


def test_training_is_the_same_without_films(recorded, tmp_path):
    config, _, _, numbers, states = recorded
    plain = dataclasses.replace(CONFIG, record_period_frames=0, run_dir=str(tmp_path / "run"))
    said, _, expected, expected_states = run(plain)
    assert said == []
    assert not (plain.folder / "videos").exists()
    assert numbers.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(numbers[name], array, err_msg=name)
    assert states == expected_states
    one, other = (rows_less_speed(c.folder / "train.csv") for c in (config, plain))
    assert one == other
    assert len(one) == 1 + 160 // 40


def rows_less_speed(path):
    with path.open() as file:
        return [row[:-1] for row in csv.reader(file)]


class Silent:
    """Metrics that nobody reads."""

    def paused(self):
        return contextlib.nullcontext()


def test_a_failed_video_is_reported_and_restores_the_noise(recorded, monkeypatch, capsys):
    config, _, parts, *_ = recorded

    def full(*args, **kwargs):
        parts.learner.online(np.zeros((1, 1, 4), np.float32), training=True)  # draws noise
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder_module, "video", full)
    recorder = Recorder(
        config=config,
        parts=parts,
        metrics=Silent(),
        frames=160,
        is_stopping=lambda: False,
    )
    before = values(agent_variables(parts))
    for frames in (160, 164, 209, 210, 212):
        recorder.observe(frames)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("film at 210 frames: failed, training continues (")
    assert "No space left" in said
    for name, array in values(agent_variables(parts)).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
