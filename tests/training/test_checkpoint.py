"""A run that is restored is the run that was saved, to the last bit."""

import dataclasses
import errno
import itertools
import os
from typing import ClassVar

import numpy as np
import pytest

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.evaluation.evaluator import Evaluator
from rainbow_tf.runs.store import CHECKPOINTS, Best, CheckpointError, CheckpointStore
from rainbow_tf.runs.weights import load_network, restore_best, restore_online, write_best
from rainbow_tf.training.build import build_parts
from rainbow_tf.training.checkpoint import (
    Checkpointer,
    agent_variables,
    disk_bytes,
    restore,
)
from rainbow_tf.training.loop import learn, train
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.types import BEGINNING, EnvironmentSpec

ALL_OFF = {
    "double": False,
    "prioritized": False,
    "dueling": False,
    "distributional": False,
    "noisy": False,
    "n_step": 1,
}


def settings(folder, **changes):
    values = {
        "environment": "CartPole-v1",
        "frames": 10_000,
        "min_history_frames": 10_000,  # most tests need no update
        "replay_capacity": 1_000,
        "target_period_frames": 100,
        "run_dir": str(folder),
        "checkpoint_period_frames": 10_000,
    }
    return Config(**values | changes)


class Run:
    """A run without a command line."""

    opened: ClassVar[list] = []

    def __init__(self, config, start=BEGINNING):
        config.folder.mkdir(exist_ok=True)
        self.config = config
        self.parts = build_parts(config, start.steps)
        self.store = CheckpointStore(config.folder / CHECKPOINTS)
        self.metrics = Metrics(
            config=config,
            parts=self.parts,
            frames=start.steps * config.frames_per_step,
            evaluated=start.steps * config.frames_per_step,
        )
        self.evaluator = Evaluator(
            config=config,
            policy=self.parts.evaluation_actor,
            network=self.parts.learner.online,
            write=self.metrics.write_evaluation,
            is_stopping=lambda: False,
        )
        self.checkpointer = Checkpointer(
            config=config,
            store=self.store,
            parts=self.parts,
            metrics=self.metrics,
            evaluator=self.evaluator,
        )
        self.ticks = train(config, self.parts, start)
        self.opened.append(self)

    def play(self, ticks):
        for tick in itertools.islice(self.ticks, ticks):
            self.metrics.observe(tick)
        return tick

    @classmethod
    def resumed(cls, config):
        checkpoint, problems = CheckpointStore(config.folder / CHECKPOINTS).newest_whole()
        assert not problems
        run = cls(config, checkpoint.counters)
        restore(run.parts, run.store, checkpoint)
        run.checkpointer.resume(checkpoint)
        return run


pytestmark = pytest.mark.usefixtures("uncompiled")  # `end_to_end/` resumes compiled agents


@pytest.fixture(autouse=True)
def _runs_are_closed():
    yield
    while Run.opened:
        Run.opened.pop().metrics.close()


def assert_same_state(one, other):
    variables = agent_variables(other.parts)
    for name, variable in agent_variables(one.parts).items():
        np.testing.assert_array_equal(variable.numpy(), variables[name].numpy(), err_msg=name)
    replay, other_replay = one.parts.replay, other.parts.replay
    for name, value in replay.state().items():
        np.testing.assert_array_equal(value, other_replay.state()[name], err_msg=name)
    assert replay.num_sampleable == other_replay.num_sampleable
    for number in replay.written_chunks():
        for name, column in replay.chunk(number).items():
            np.testing.assert_array_equal(column, other_replay.chunk(number)[name], err_msg=name)
    assert one.metrics.state() == other.metrics.state()
    assert one.evaluator.state() == other.evaluator.state()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        ALL_OFF,
        {"replay_capacity": 200, "num_envs": 3, "n_step": 5},  # the ring goes round
        {
            "environment": "MinAtar/Breakout-v1",
            "frame_stack": 2,
            "replay_compression": "lz4",
            "num_envs": 2,
        },
    ],
    ids=["rainbow", "all_off", "full_ring", "minatar_lz4"],
)
def test_a_restored_run_continues_as_the_original_would(tmp_path, changes):
    run = Run(settings(tmp_path, min_history_frames=60, updates_per_step=0.05, **changes))
    tick = run.play(120)
    run.checkpointer.save(tick.counters)
    other = Run.resumed(run.config)
    assert_same_state(run, other)

    # The next batches and updates, and what the actors choose after them.
    observation = run.parts.environment.reset().observation
    for _ in range(5):
        results = [learn(one.parts.replay, one.parts.learner, 0.5) for one in (run, other)]
        np.testing.assert_array_equal(results[0].errors, results[1].errors)
        assert results[0][1:] == results[1][1:]
        for name in ("actor", "evaluation_actor"):
            actions = [
                getattr(one.parts, name).act(observation, epsilon=0.5) for one in (run, other)
            ]
            np.testing.assert_array_equal(*actions)
    assert_same_state(run, other)


def test_a_resumed_run_starts_new_episodes_and_counts_on(tmp_path):
    run = Run(settings(tmp_path, min_history_frames=60))
    tick = run.play(50)
    run.checkpointer.save(tick.counters)
    waiting = run.parts.replay.state()["open"].sum()
    assert waiting > 0
    drawable = run.parts.replay.num_sampleable
    other = Run.resumed(run.config)
    first = other.play(1)
    assert first.counters.steps == tick.counters.steps + run.config.num_envs
    # What waited for its window was let in, and one step of each new episode waits.
    assert other.parts.replay.num_sampleable == drawable + waiting
    last = other.play(20)
    assert last.counters.updates == int((last.counters.steps - 60) * 0.25)


def test_other_episodes_than_at_the_start(tmp_path):
    config = settings(tmp_path)
    first = build_parts(config).environment.reset().observation
    assert not np.array_equal(build_parts(config, 500).environment.reset().observation, first)
    np.testing.assert_array_equal(build_parts(config, 0).environment.reset().observation, first)


def test_compression_of_the_memory_may_change(tmp_path):
    run = Run(settings(tmp_path, replay_compression="lz4"))
    run.checkpointer.save(run.play(120).counters)
    other = Run.resumed(dataclasses.replace(run.config, replay_compression="none"))
    assert_same_state(run, other)


def test_only_what_is_new_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(100).counters)  # 101 steps of 4 lanes: chunks 0 to 10
    run.checkpointer.save(run.play(15).counters)  # steps 101 to 115: chunks 10 and 11
    folder = tmp_path / CHECKPOINTS / "000002"
    names = sorted(path.stem for path in folder.glob("*.lz4"))
    assert names == ["agent", "replay", "steps_00010", "steps_00011"]
    assert_same_state(run, Run.resumed(run.config))


def test_a_resumed_run_writes_only_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(100).counters)
    other = Run.resumed(run.config)
    other.checkpointer.save(other.play(5).counters)
    folder = tmp_path / CHECKPOINTS / "000002"
    # The step at which the episodes were cut is in chunk 10, like the new ones.
    assert sorted(path.stem for path in folder.glob("*.lz4")) == ["agent", "replay", "steps_00010"]
    assert_same_state(other, Run.resumed(run.config))


def test_a_chunk_that_vanished_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(100).counters)
    (tmp_path / CHECKPOINTS / "000001" / "steps_00003.lz4").unlink()
    run.checkpointer.save(run.play(5).counters)
    assert_same_state(run, Run.resumed(run.config))


def test_a_chunk_that_was_cut_off_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(100).counters)
    os.truncate(tmp_path / CHECKPOINTS / "000001" / "steps_00003.lz4", 50)
    run.checkpointer.save(run.play(5).counters)
    assert_same_state(run, Run.resumed(run.config))


def test_every_random_generator_is_restored(tmp_path):
    run = Run(settings(tmp_path))
    tick = run.play(5)
    names = ("replay", "actor", "evaluation_actor")
    for name in names:
        getattr(run.parts, name).rng.random(7)
    run.checkpointer.save(tick.counters)
    other = Run.resumed(run.config)
    for name in names:
        states = [getattr(one.parts, name).rng.bit_generator.state for one in (run, other)]
        assert states[0] == states[1], name


def test_a_full_disk_is_tried_again_after_a_period_only(tmp_path, monkeypatch, capsys):
    run = Run(settings(tmp_path, checkpoint_period_frames=40))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for tick in itertools.islice(run.ticks, 25):
        run.checkpointer.observe(tick)
        frames = tick.frames
    assert len(capsys.readouterr().err.splitlines()) == frames // 40


def test_a_resumed_run_does_not_save_at_once(tmp_path):
    run = Run(settings(tmp_path, checkpoint_period_frames=50))
    run.checkpointer.save(run.play(20).counters)
    other = Run.resumed(run.config)
    other.checkpointer.observe(other.play(1))
    assert other.store.numbers() == [1]


def test_no_more_checkpoints_than_asked_for(tmp_path):
    run = Run(settings(tmp_path, max_checkpoints=3))
    for _ in range(5):
        run.checkpointer.save(run.play(2).counters)
    assert run.store.numbers() == [3, 4, 5]


def test_a_period_is_counted_in_frames(tmp_path):
    run = Run(settings(tmp_path, checkpoint_period_frames=100, num_envs=1))
    saved = []
    run.checkpointer.save = lambda reached: (
        saved.append(reached.steps) or setattr(run.checkpointer, "_saved", reached)
    )
    for tick in itertools.islice(run.ticks, 250):
        run.checkpointer.observe(tick)
        last = tick.frames
    assert saved == list(range(100, last + 1, 100))


def test_a_full_disk_does_not_stop_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(30).counters)
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("os.fsync", full)
        run.checkpointer.save(run.play(30).counters)
    (said,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in said
    assert run.store.numbers() == [1]
    assert run.store.newest_whole()[1] == []
    # What could not be written is not forgotten.
    run.checkpointer.save(run.play(30).counters)
    assert_same_state(run, Run.resumed(run.config))


def test_the_best_score_is_kept(tmp_path):
    run = Run(settings(tmp_path))
    best = Best(frames=100, score_mean=12.5, episodes=3, protocol="gymnasium")
    run.evaluator.best = best
    run.evaluator._evaluated = 100
    run.checkpointer.save(run.play(5).counters)
    assert Run.resumed(run.config).evaluator.state() == {"best": best, "evaluated": 100}


def test_better_weights_than_an_older_checkpoint_knows_are_kept(tmp_path):
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(5).counters)
    best = Best(frames=900, score_mean=50.0, episodes=3, protocol="gymnasium")
    write_best(tmp_path, run.parts.learner.online, best)
    assert Run.resumed(run.config).evaluator.best == best


def test_best_weights_that_a_full_disk_does_not_take_are_not_the_best(
    tmp_path, monkeypatch, capsys
):
    run = Run(settings(tmp_path))
    first, second = (Best(frames, float(frames), 3, "gymnasium") for frames in (100, 200))
    run.evaluator.best = first
    run.evaluator.keep_best(100)
    run.evaluator.best = second

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        run.evaluator.keep_best(200)
    assert run.evaluator.best == first
    assert "No space left" in capsys.readouterr().err
    assert restore_best(tmp_path, run.parts.learner.online) == first


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    run = Run(settings(tmp_path))
    run.checkpointer.save(run.play(30).counters)
    checkpoint, _ = run.store.newest_whole()
    for changes, named in (({"num_atoms": 11}, "online/"), ({"num_envs": 2}, "over")):
        parts = build_parts(dataclasses.replace(run.config, **changes))
        with pytest.raises(CheckpointError, match=named):
            restore(parts, run.store, checkpoint)


def test_online_weights_alone(tmp_path):
    run = Run(settings(tmp_path))
    first = run.play(30)
    run.checkpointer.save(first.counters)
    run.checkpointer.save(run.play(30).counters)
    network = build_parts(run.config).learner.online
    assert restore_online(tmp_path, network) == run.store.open(2).state["frames"]
    for variable, other in zip(network.variables, run.parts.learner.online.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())
    assert restore_online(tmp_path, network, 1) == first.frames
    with pytest.raises(ConfigError, match=r"Checkpoint 7 .* found: 1, 2\."):
        restore_online(tmp_path, network, 7)
    with pytest.raises(ConfigError, match="--run_dir"):
        restore_online(tmp_path / "other", network)


def test_best_weights(tmp_path):
    config = settings(tmp_path)
    best = Best(frames=100, score_mean=12.5, episodes=3, protocol="gymnasium")
    source = build_parts(config).learner.online
    write_best(tmp_path, source, best)
    network = build_parts(dataclasses.replace(config, seed=2)).learner.online
    assert restore_best(tmp_path, network) == best
    for variable, other in zip(network.variables, source.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())
    with pytest.raises(ConfigError, match="--snapshot=latest"):
        restore_best(tmp_path / "other", network)
    path = tmp_path / "best" / "online.npz"
    data = path.read_bytes()
    for damaged in (data[:-50], b"", data[:5000] + bytes(5000) + data[10_000:]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"online\.npz cannot be used"):
            restore_best(tmp_path, network)


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    config = settings(tmp_path)
    source = build_parts(config).learner.online
    write_best(tmp_path, source, Best(100, 12.5, 3, "gymnasium"))
    assert load_network(config, "best")[1] == 100
    source.variables[0].assign(np.full(source.variables[0].shape, np.nan))
    write_best(tmp_path, source, Best(100, 12.5, 3, "gymnasium"))
    with pytest.raises(ConfigError, match="NaN or infinite"):
        load_network(config, "best")


def test_the_latest_weights_say_when_they_are_older(tmp_path, capsys):
    run = Run(settings(tmp_path))
    for steps in (5, 5):
        run.checkpointer.save(run.play(steps).counters)
    path = tmp_path / CHECKPOINTS / "000002" / "agent.lz4"
    path.write_bytes(path.read_bytes()[:-1])
    network = run.parts.learner.online
    assert restore_online(tmp_path, network) == run.store.open(1).frames
    said = capsys.readouterr().out
    assert "Checkpoint 2 is damaged" in said
    assert "using checkpoint 1 instead." in said


def test_disk_use_by_hand():
    config = Config(game="qbert", max_checkpoints=2, checkpoint_period_frames=400_000)
    spec = EnvironmentSpec((84, 84), np.dtype(np.uint8), 4, 6, ())
    # Twice 4 values per parameter and a priority per step; steps of the memory and of one
    # period, at a tenth of their size.
    expected = 2 * (16 * 1_000 + 8 * 1_000_000) + 1_100_000 * 0.1 * (84 * 84 + 23)
    assert disk_bytes(config, spec, 1_000) == pytest.approx(expected, rel=1e-6)


def test_nothing_is_saved_twice(tmp_path):
    run = Run(settings(tmp_path))
    tick = run.play(5)
    run.checkpointer.save(tick.counters)
    run.checkpointer.save(tick.counters)
    assert run.store.numbers() == [1]
    assert run.store.open(1).counters == tick.counters
