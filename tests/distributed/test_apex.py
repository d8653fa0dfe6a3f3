"""Ape-X: initial priorities, the ratio of updates to steps, restarts and checkpoints.

Most tests use `FakeRay` and an agent without a network. One test starts Ray.
"""

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
from fake_ray import FakeRay, GetTimeoutError, ObjectLostError, Ref

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.losses import losses_and_errors, munchausen, q_values
from rainbow_tf.agent.networks import make_support
from rainbow_tf.benchmark import ATARI_SPEC
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed import cluster
from rainbow_tf.distributed.apex import learner as apex
from rainbow_tf.distributed.apex import player
from rainbow_tf.distributed.apex.player import InitialErrors, Player
from rainbow_tf.distributed.apex.replay import RemoteReplays
from rainbow_tf.distributed.apex.shard import ReplayShard, Rollout
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training.checkpoint import Checkpointer, restore, restore_replay
from rainbow_tf.types import Counters, Decision, EnvironmentSpec, UpdateResult


def small(**settings) -> Config:
    defaults = {
        "environment": "CartPole-v1",
        "v_min": 0.0,
        "v_max": 100.0,
        "num_envs": 2,
        "actors": 2,
        "rollout_steps": 5,
        "replay_capacity": 400,
        "batch_size": 8,
        "min_history_frames": 40,
        "frames": 400,
        "updates_per_step": 0.25,
        "target_period_frames": 100,
        "eval_period_frames": 0,
    }
    return Config(**(defaults | settings))


def stubbed(**settings) -> Config:
    """Settings for the stub agent, whose outputs are values without a distribution."""
    return small(**({"distributional": False} | settings))


class StubNetwork:
    """One weight: the number of updates."""

    def __init__(self):
        self.weight = tf.Variable(0.0)
        self.variables = self.trainable_variables = [self.weight]

    def count_params(self):
        return 1

    def noise_scales(self):
        return {}


class StubLearner:
    """Counts its updates; the errors are the rewards plus noise."""

    def __init__(self, seed):
        self.online, self.target = StubNetwork(), StubNetwork()
        self._rng = np.random.default_rng(seed)
        self.variables = {"online": self.online.variables, "target": self.target.variables}

    def update(self, batch):
        self.online.weight.assign_add(1)
        errors = (np.abs(batch.reward_t) + self._rng.random(len(batch.reward_t))).astype(np.float32)
        return UpdateResult(errors, float(errors.mean()), 0.0)

    def update_target(self):
        self.target.weight.assign(self.online.weight)


class StubActor(Actor):
    """Random actions and values."""

    def __init__(self, rng):
        self.rng = rng

    def act_and_outputs(self, observation, epsilon=0.0):
        outputs = self.rng.normal(size=(len(observation), 2, 1))
        return outputs[..., 0].argmax(axis=1).astype(np.int32), outputs.astype(np.float32)

    def act(self, observation, epsilon=0.0):
        return self.act_and_outputs(observation)[0]

    def decide(self, observation, epsilon=0.0):
        actions, outputs = self.act_and_outputs(observation)
        return Decision(actions, outputs[..., 0], outputs[..., 0].max(axis=1), None)


@pytest.fixture
def eager(monkeypatch):
    """Nothing is compiled."""
    monkeypatch.setattr(player, "load_tensorflow", lambda threads: None)
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def stub_agent(eager, monkeypatch):
    """Learner and players without networks."""

    def make_learner(config, spec, *, online_seed, target_seed):
        return StubLearner(online_seed)

    def make_policy(config, network, *, noise, rng):
        return StubActor(rng)

    monkeypatch.setattr(apex, "make_learner", make_learner)
    monkeypatch.setattr(apex, "make_policy", make_policy)
    monkeypatch.setattr(player, "make_policy", make_policy)
    monkeypatch.setattr(player, "make_network", lambda *arguments, **options: StubNetwork())


@pytest.fixture
def fake_ray(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(apex, "connect", lambda *arguments, **options: ray)
    return ray


@pytest.fixture
def fake(stub_agent, fake_ray):
    """Ray and the agent, both replaced."""
    return fake_ray


def weights_of(one: Player):
    return [variable.numpy() for variable in one._network.trainable_variables]


def play(one: Player, rollouts: int, epsilon: float = 0.5):
    return [one.play(weights_of(one), 0, epsilon, fresh=False) for _ in range(rollouts)]


@pytest.mark.parametrize(
    "settings",
    [
        {"n_step": 1},
        {"n_step": 3},
        {"n_step": 7},  # longer than a rollout of 5 steps
        {"n_step": 3, "priority": "ce"},
        {"n_step": 3, "priority": "td"},
        {"n_step": 3, "distributional": False},
        {"n_step": 3, "returns": "quantile"},
        {"n_step": 3, "munchausen": True},
    ],
)
def test_initial_priorities_equal_the_learners_errors(eager, settings):
    """Recomputed for every transition from what the replay returns for it."""
    config = small(actors=1, noisy=False, batch_size=64, **settings)
    one = Player(config=config, number=0, start_steps=0)
    shard = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    for number, (rollout, played) in enumerate(play(one, rollouts=20)):
        shard.add(0, number, rollout, played.begins)
    support = make_support(config)
    seen = set()
    for _ in range(20):
        ids, batch = shard.sample(0.4)
        outputs_tm1 = one._network(batch.observation_tm1)
        outputs_t = one._network(batch.observation_t)
        values_tm1, values_t = (q_values(support, outputs) for outputs in (outputs_tm1, outputs_t))
        reward_t, action_t = batch.reward_t, tf.argmax(values_t, axis=1, output_type=tf.int32)
        if config.munchausen:
            reward_t, action_t = munchausen(values_tm1, batch.action_tm1, reward_t, values_t)
        _, errors = losses_and_errors(
            support,
            config.priority_measure,
            outputs_tm1,
            batch.action_tm1,
            reward_t,
            batch.discount_t,
            outputs_t,
            action_t,
        )
        expected = (np.maximum(errors, 0) + 1e-6) ** config.priority_exponent
        np.testing.assert_allclose(shard.priorities(ids), expected, rtol=2e-3, atol=2e-4)
        seen.update(ids.tolist())
    assert len(seen) > 100
    assert len(np.unique(np.round(shard.priorities(np.array(sorted(seen))), 6))) > 20


@pytest.mark.parametrize("n_step", [1, 3, 7])
def test_initial_errors_at_lost_lives_and_truncated_episodes(eager, n_step):
    """A window ends where a life is lost within an episode, and at a truncation."""
    config = small(actors=1, n_step=n_step, distributional=False, noisy=False, batch_size=32)
    spec = EnvironmentSpec((), np.dtype(np.int32), 1, 3, ())
    rng = np.random.default_rng(n_step)
    steps, lanes = 100, 2
    over = rng.random((steps, lanes)) < 0.1
    lost = rng.random((steps, lanes)) < 0.2
    is_first = np.vstack([np.ones((1, lanes), bool), over[:-1]])
    over &= ~is_first
    is_first = np.vstack([np.ones((1, lanes), bool), over[:-1]])
    outputs = rng.normal(size=(steps * lanes, 3, 1)).astype(np.float32)
    columns = {
        "frame": np.arange(steps * lanes, dtype=np.int32).reshape(steps, lanes),
        "action_tm1": rng.integers(3, size=(steps, lanes)).astype(np.int32),
        "reward_t": rng.normal(size=(steps, lanes)).astype(np.float32),
        "discount_t": np.where(lost & ~is_first, 0.0, 0.9),
        "episode_over": over,
        "is_first": is_first,
    }
    initial_errors = InitialErrors(config)
    shard = ReplayShard(config=config, spec=spec, actors=[0], seed=0)
    for number, start in enumerate(range(0, steps, 5)):
        rollout = {name: column[start : start + 5] for name, column in columns.items()}
        errors = initial_errors(rollout, outputs[rollout["frame"]])
        shard.add(0, number, Rollout(**rollout, errors=errors), number == 0)
    for _ in range(20):
        ids, batch = shard.sample(0.4)
        q_tm1 = outputs[batch.observation_tm1[:, 0], batch.action_tm1, 0]
        q_t = outputs[batch.observation_t[:, 0], :, 0].max(axis=1)
        expected = np.abs(batch.reward_t + batch.discount_t * q_t - q_tm1)
        found = shard.priorities(ids) ** (1 / config.priority_exponent)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert 0 < np.count_nonzero(batch.discount_t == 0) < 32


def test_rollouts_are_contiguous(stub_agent):
    one = Player(config=stubbed(), number=0, start_steps=0)
    rollouts, played = zip(*play(one, rollouts=12), strict=True)
    assert [p.begins for p in played] == [True] + [False] * 11
    assert rollouts[0].is_first[0].all()
    frames = np.concatenate([r.frame for r in rollouts])
    over = np.concatenate([r.episode_over for r in rollouts])
    first = np.concatenate([r.is_first for r in rollouts])
    assert len(frames) == 60
    np.testing.assert_array_equal(first[1:], over[:-1])  # also across rollouts
    assert sum(p.steps for p in played) == np.count_nonzero(~first)
    assert len([e for p in played for e in p.episodes]) == np.count_nonzero(over)
    # Within an episode the observation changes little from step to step.
    moved = np.abs(np.diff(frames, axis=0)).max(axis=-1)
    assert moved[~first[1:]].max() < 1
    assert all(episode.score == episode.length for p in played for episode in p.episodes)


def test_a_player_loads_weights_when_their_version_changes(eager):
    one = Player(config=small(noisy=False), number=0, start_steps=0)
    other = [w + 1 for w in weights_of(one)]
    one.play(weights_of(one), 0, 0.0, fresh=False)
    one.play(other, 1, 0.0, fresh=False)
    np.testing.assert_array_equal(weights_of(one)[0], other[0])
    one.play([w + 5 for w in other], 1, 0.0, fresh=False)  # same version: ignored
    np.testing.assert_array_equal(weights_of(one)[0], other[0])


def test_players_and_resumed_runs_play_different_episodes(stub_agent):
    first = [
        Player(config=stubbed(), number=number, start_steps=steps)
        for number, steps in [(0, 0), (1, 0), (0, 400), (0, 0)]
    ]
    starts = [play(one, 1)[0][0].frame[0].tobytes() for one in first]
    assert len(set(starts[:3])) == 3
    assert starts[3] == starts[0]


def test_a_shard_rejects_rollouts_after_a_gap(stub_agent):
    config = stubbed(actors=1)
    one = Player(config=config, number=0, start_steps=0)
    shard = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    (a, _), (b, _), (c, _) = play(one, 3)
    assert shard.add(0, 0, a, True).fill == pytest.approx(10 / 400)
    assert shard.add(0, 1, b, False).fill == pytest.approx(20 / 400)
    assert shard.add(0, 3, c, False) is None
    assert shard.status().fill == pytest.approx(20 / 400)
    d, played = one.play(weights_of(one), 0, 0.0, fresh=True)
    assert played.begins
    assert shard.add(0, 4, d, True).fill == pytest.approx(30 / 400)
    other = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    assert other.add(0, 1, b, False) is None  # the shard was restarted


def test_epsilon_ladder_by_hand():
    config = small(actors=8, noisy=False, epsilon_ladder=0.4, replay_capacity=4000)
    rungs = [apex.actor_exploration(config, actor, steps=0) for actor in range(8)]
    assert rungs[0] == pytest.approx(0.4)
    assert rungs[1] == pytest.approx(0.16)  # 0.4 ** (1 + 7 / 7)
    assert rungs[7] == pytest.approx(0.00065536)  # 0.4 ** 8
    alone = dataclasses.replace(config, actors=1)
    assert apex.actor_exploration(alone, 0, 0) == pytest.approx(0.4)
    noisy = dataclasses.replace(config, noisy=True)
    assert apex.actor_exploration(noisy, 0, 0) == 0
    schedule = dataclasses.replace(config, epsilon_ladder=None)
    assert apex.actor_exploration(schedule, 3, 0) == 1


def shard_of(fleet, number=0):
    return fleet.replay._shards[number]


@pytest.mark.parametrize("ratio", [0.25, 1.0])
def test_the_ratio_of_updates_to_steps_is_kept(fake, tmp_path, ratio):
    config = stubbed(run_dir=str(tmp_path), min_history_frames=120, updates_per_step=ratio)
    ticks = list(apex.train(config, apex.build_fleet(config)))
    lead = 2 * 5 * 2
    for tick in ticks:
        steps, updates = tick.counters
        assert updates <= max(0, (steps - 120) * ratio)
        # Above the limit there is only the rollout that was requested below it.
        assert steps <= 120 + (updates + 1) / ratio + lead + 10
    assert ticks[-1].frames >= 400
    assert ticks[-1].counters.updates >= (400 - 120 - lead - 10) * ratio
    assert all(np.isfinite(result.loss) for tick in ticks for result in tick.results)
    assert sum(len(tick.episodes) for tick in ticks) > 5


def test_the_learner_waits_for_slow_actors(fake, tmp_path, monkeypatch):
    config = stubbed(run_dir=str(tmp_path), min_history_frames=120)
    wait, calls = fake.wait, itertools.count()

    def slow(refs, num_returns=None, timeout=None):  # only rollouts are waited for by a number
        if num_returns == 1 and next(calls) % 20:
            return [], refs
        return wait(refs, num_returns or 1, timeout)

    fleet = apex.build_fleet(config)
    monkeypatch.setattr(fake, "wait", slow)  # after the players have started
    ticks = list(apex.train(config, fleet))
    assert ticks[-1].frames >= 400
    assert any(not tick.results for tick in ticks[-100:])
    for tick in ticks:
        assert tick.counters.updates <= max(0, (tick.counters.steps - 120) * 0.25)


def test_a_tick_reports_the_mean_epsilon_of_all_actors(fake, tmp_path):
    config = stubbed(run_dir=str(tmp_path), noisy=False, epsilon_ladder=0.5)
    tick = next(apex.train(config, apex.build_fleet(config)))
    assert tick.epsilon == pytest.approx((0.5 + 0.5**8) / 2)


def test_updates_rarer_than_rollouts_are_made(fake, tmp_path):
    config = stubbed(run_dir=str(tmp_path), updates_per_step=0.01)  # one in 100 steps
    ticks = list(itertools.islice(apex.train(config, apex.build_fleet(config)), 1_000))
    assert ticks[-1].frames >= 400
    assert ticks[-1].counters.updates == 3


def test_weights_and_target_are_copied_in_their_periods(fake, tmp_path):
    config = stubbed(run_dir=str(tmp_path), broadcast_period_updates=10)
    fleet = apex.build_fleet(config)
    copied = []
    update_target = fleet.learner.update_target
    fleet.learner.update_target = lambda: (update_target(), copied.append(1))
    *_, last = apex.train(config, fleet)
    updates = last.counters.updates
    assert fake.puts == 1 + updates // 10
    assert len(copied) == 4
    # The weight is the number of updates: every actor has the latest or second latest broadcast.
    players = [h.instance for h in fake.handles if isinstance(h.instance, Player)]
    received = [int(weights_of(one)[0]) for one in players]
    assert len(received) == 2
    assert set(received) <= {updates // 10 * 10, updates // 10 * 10 - 10}
    assert min(received) > 0


def test_a_killed_actor_restarts_with_new_episodes(fake, tmp_path, capsys):
    config = stubbed(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    for _ in range(20):
        next(ticks)
    fleet.players[1].kill()
    *_, last = ticks
    assert last.frames >= 400
    assert "Actor 1 or its replay shard was restarted" in capsys.readouterr().err
    assert shard_of(fleet).status.num_sampleable > 100


def test_silent_actors_are_reported(fake, tmp_path, capsys, monkeypatch):
    config = stubbed(run_dir=str(tmp_path))
    ticks = apex.train(config, apex.build_fleet(config))
    monkeypatch.setattr(apex, "_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(fake, "wait", lambda refs, num_returns=1, timeout=None: ([], refs))
    assert next(ticks).counters.steps == 0
    assert "No actor has answered" in capsys.readouterr().err


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_killed_shard_is_restored_from_the_last_checkpoint(
    fake, tmp_path, capsys, has_checkpoint
):
    config = stubbed(run_dir=str(tmp_path), replay_shards=2)
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 200)
    saved = None
    if has_checkpoint:
        saved = shard_of(fleet, 1).status
        checkpointer(config, fleet).save(tick.counters)
    tick = next(t for t in ticks if t.counters.steps > 250)
    shard_of(fleet, 1).handle.kill()
    said = ""
    while "died" not in said:
        next(ticks)
        said += capsys.readouterr().err
    assert "Replay shard 1 died; restarting it." in said
    assert ("was restored to" in said) == has_checkpoint
    assert ("no checkpoint yet; replay shard 1 starts empty" in said) != has_checkpoint
    now = shard_of(fleet, 1).status
    if saved is not None:
        assert now.num_sampleable >= saved.num_sampleable - 10
    else:
        assert now.fill < 0.2
    *_, last = ticks
    assert last.frames >= 400
    assert shard_of(fleet, 1).status.num_sampleable > 20


def test_a_shard_that_cannot_start_again_ends_the_run(fake, tmp_path, monkeypatch):
    config = stubbed(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    next(t for t in ticks if t.counters.steps > 100)
    shard_of(fleet).handle.kill()
    get = fake.get

    def without_room(ref, timeout=None):
        if timeout is not None:
            raise GetTimeoutError
        return get(ref)

    monkeypatch.setattr(fake, "get", without_room)
    with pytest.raises(ConfigError, match="shard 0 died, and no other process could be started"):
        list(ticks)


def test_a_lost_rollout_only_makes_its_actor_start_new_episodes(fake, tmp_path, monkeypatch):
    config = stubbed(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    next(t for t in ticks if t.counters.steps > 100)
    shard = shard_of(fleet)
    shard.adds[Ref(error=ObjectLostError("node"))] = 1
    fleet.replay.settle()
    assert fleet.replay.broken_off == {1}
    *_, last = ticks
    assert last.frames >= 400
    assert fleet.replay.broken_off == set()


class NoState:
    """Metrics and an evaluator without a state."""

    def state(self):
        return {}

    def restore(self, state):
        pass


def checkpointer(config, fleet):
    return Checkpointer(
        config=config,
        store=CheckpointStore(config.folder / CHECKPOINTS),
        parts=fleet,
        metrics=NoState(),
        evaluator=NoState(),
    )


def test_a_checkpoint_restores_the_agent_and_all_shards(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    config = stubbed(run_dir=str(tmp_path), actors=3, replay_shards=2, replay_capacity=600)
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    saving = checkpointer(config, fleet)
    saving.save(tick.counters)
    tick = next(t for t in ticks if t.counters.steps > 300)
    saving.save(tick.counters)  # reuses files of the first
    store = CheckpointStore(config.folder / CHECKPOINTS)
    checkpoint = store.open(2)
    assert any(file.path.startswith("000001") for file in checkpoint.files.values())
    other = apex.build_fleet(config, start_steps=tick.counters.steps)
    restore(other, store, checkpoint)
    assert other.replay.num_sampleable == fleet.replay.num_sampleable > 100
    assert other.replay.fill == fleet.replay.fill
    for name, array in fleet.replay.state().items():
        np.testing.assert_array_equal(other.replay.state()[name], array)
    shards = [h.instance for h in fake.handles if isinstance(h.instance, ReplayShard)]
    kept = [shard._replays for shard in shards]  # two shards of each fleet
    for old, new in ((kept[0], kept[2]), (kept[1], kept[3])):
        assert old.keys() == new.keys()
        for actor, replay in old.items():
            for number in replay.written_chunks():
                for name, array in replay.chunk(number).items():
                    np.testing.assert_array_equal(new[actor].chunk(number)[name], array)
    assert other.replay.changed_chunks() == []
    np.testing.assert_array_equal(
        other.learner.online.trainable_variables[0], fleet.learner.online.trainable_variables[0]
    )
    *_, last = apex.train(config, other, Counters(*checkpoint.state["counters"]))
    assert last.frames >= 400


def test_a_shard_that_dies_while_saving_costs_the_checkpoint_and_not_the_run(
    fake, tmp_path, capsys
):
    config = stubbed(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    shard_of(fleet).handle.kill()
    checkpointer(config, fleet).save(tick.counters)
    assert "replay shard 0 died during the checkpoint" in capsys.readouterr().err
    assert CheckpointStore(config.folder / CHECKPOINTS).numbers() == []
    *_, last = ticks
    assert last.frames >= 400


def test_a_restored_shard_is_saved_in_full(fake, tmp_path):
    config = stubbed(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    checkpointer(config, fleet).save(tick.counters)
    assert fleet.replay.changed_chunks() == []
    store = CheckpointStore(config.folder / CHECKPOINTS)
    replays = RemoteReplays(ray=fake, shards=[shard_of(fleet)], num_actors=2)
    restore_replay(replays, store, store.open(1))
    assert fleet.replay.changed_chunks() == fleet.replay.written_chunks()


def test_batches_are_prefetched_and_shards_drawn_by_total_priority(fake, tmp_path):
    config = stubbed(run_dir=str(tmp_path), replay_shards=2)
    fleet = apex.build_fleet(config)
    next(t for t in apex.train(config, fleet) if t.results)
    replay = fleet.replay
    assert len(replay._ahead) == 3
    masses = {0: 1.0, 1: 3.0}
    for number, mass in masses.items():
        shard_of(fleet, number).status = shard_of(fleet, number).status._replace(
            total_priority=mass
        )
    chosen = [replay._choose().number for _ in range(2_000)]
    assert np.mean(chosen) == pytest.approx(0.75, abs=0.03)


def test_the_object_store_holds_everything_in_flight():
    config = Config(game="pong", actors=3, batch_size=512)
    got = apex.object_store_bytes(config, ATARI_SPEC, 6_900_000)
    frame = 84 * 84
    least = (
        3 * 3 * 16 * 4 * frame  # of each actor, two rollouts requested and one being written
        + 4 * 2 * 512 * 4 * frame  # batches
        + 2 * 27_600_000  # weights, old and new
    )
    assert least < got < 4 * least
    cart_pole = ATARI_SPEC._replace(frame_shape=(4,))
    assert apex.object_store_bytes(small(), cart_pole, 1000) == 128 << 20


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"address": "auto", "actors": 0}, ["--address=auto", "--actors"]),
        ({"replay_shards": 2, "actors": 0}, ["--replay_shards=2", "--actors"]),
        ({"algorithm": "a3c"}, ["--actors=2", "--algorithm=a3c", "--num_envs"]),
        ({"replay_shards": 3}, ["--replay_shards=3", "--actors=2"]),
        ({"replay_capacity": 10}, ["--replay_capacity=10", "--actors=2", "16"]),
        ({"epsilon_ladder": 0.0}, ["--epsilon_ladder=0.0", "above 0"]),
    ],
)
def test_invalid_settings_are_rejected_by_name(settings, named):
    with pytest.raises(ConfigError) as refusal:
        small(**settings)
    for part in named:
        assert part in str(refusal.value)


def test_agent_names_of_runs_with_actors():
    assert small().agent == "apex"
    assert small(noisy=False).agent == "no_noisy_apex"


def test_the_preset_trains_on_pong(eager, fake_ray, preset, tmp_path):
    """With the real networks and learner; every weight changes."""
    config = preset(
        "apex",
        "--game=pong",
        "--actors=2",
        "--frames=1000",
        "--min_history_frames=400",
        "--replay_capacity=2000",
        "--updates_per_step=0.01",
        "--batch_size=16",
        f"--run_dir={tmp_path}",
    )
    fleet = apex.build_fleet(config)
    before = [variable.numpy() for variable in fleet.learner.online.trainable_variables]
    ticks = list(apex.train(config, fleet))
    assert ticks[-1].frames >= 1_000
    losses = [result.loss for tick in ticks for result in tick.results]
    assert len(losses) >= 1
    assert np.isfinite(losses).all()
    after = [variable.numpy() for variable in fleet.learner.online.trainable_variables]
    assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))


# The command.

FLAGS = [
    "--preset=cartpole",
    "--actors=2",
    "--frames=1500",
    "--min_history_frames=300",
    "--eval_period_frames=1500",
    "--eval_frames=500",
    "--checkpoint_period_frames=300",
    "--log_period_frames=100",
]


def test_without_ray_the_error_says_what_to_install(stub_agent, run_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = run_command("train", *FLAGS, f"--run_dir={tmp_path / 'run'}")
    assert ended.status == 1
    assert "--actors=2 needs packages that are not installed; pip install" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


def assert_finished(run):
    """One row per log period in order, one evaluation, and its weights."""
    rows = (run / "train.csv").read_text().splitlines()[1:]
    frames = [int(row.split(",")[0]) for row in rows]
    assert frames == sorted(set(frames))
    assert frames[-1] >= 1500
    assert len((run / "eval.csv").read_text().splitlines()) == 2
    assert (run / "best" / "online.npz").exists()


class LearnerDiedError(Exception):
    pass


def test_the_same_command_resumes_after_the_learner_died(fake, run_command, tmp_path, monkeypatch):
    run = tmp_path / "run"
    flags = [*FLAGS, "--nodistributional", f"--run_dir={run}"]
    update = StubLearner.update

    def dying(self, batch):
        if self.online.weight >= 100:
            raise LearnerDiedError
        return update(self, batch)

    monkeypatch.setattr(StubLearner, "update", dying)
    with pytest.raises(LearnerDiedError):
        run_command("train", *flags)
    saved, _ = CheckpointStore(run / CHECKPOINTS).newest_whole()
    monkeypatch.setattr(StubLearner, "update", update)
    ended = run_command("train", *flags)
    assert ended.status == 0, ended.stderr
    assert f"Resuming from checkpoint {saved.number} at {saved.frames:,} frames" in ended.stdout
    assert "Done after" in ended.stdout
    assert_finished(run)
    store = CheckpointStore(run / CHECKPOINTS)
    last, _ = store.newest_whole()
    assert store.read(last.files["agent"])["online/0"] == last.counters.updates  # none is lost


# Ray itself.


def processes(name: str) -> list[psutil.Process]:
    """The processes below this one in which Ray runs a class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith(f"ray::{name}"):
                found.append(process)
    return found


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.2)


@pytest.mark.xdist_group("ray")
def test_killed_processes_of_actor_and_shard_are_restarted(eager, tmp_path, capfd, monkeypatch):
    """One actor and one shard, each in a process of its own; the learner is in this one."""
    monkeypatch.setenv(cluster._LOOPBACK, "")  # restored after the test
    config = small(run_dir=str(tmp_path), actors=1, noisy=False, distributional=False)
    fleet = apex.build_fleet(config)
    try:
        ticks = apex.train(config, fleet)
        tick = next(t for t in ticks if t.counters.steps > 100)
        checkpointer(config, fleet).save(tick.counters)
        (shard,) = processes("ReplayShard")
        (actor,) = processes("Player")
        os.kill(shard.pid, signal.SIGKILL)
        os.kill(actor.pid, signal.SIGKILL)
        *_, last = ticks
        assert last.frames >= 400
        assert last.counters.updates > tick.counters.updates
        said = capfd.readouterr().err
        assert "Replay shard 0 was restored to" in said
        assert "Actor 0 or its replay shard was restarted" in said
        assert processes("ReplayShard")[0].pid != shard.pid
        assert processes("Player")[0].pid != actor.pid
    finally:
        fleet.close()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_run_with_actors_survives_kills_and_resumes(tmp_path):
    """An actor, the shard and then the learner are killed; the same command finishes the run."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "rainbow_tf.main", *FLAGS, f"--run_dir={run}"]
    log = tmp_path / "log"
    with log.open("w") as file:
        training = subprocess.Popen(command, stdout=file, stderr=file)
        wait_for(lambda: list(run.glob("checkpoints/*/manifest.json")))
        os.kill(processes("Player")[0].pid, signal.SIGKILL)
        os.kill(processes("ReplayShard")[0].pid, signal.SIGKILL)
        wait_for(lambda: "was restored to" in log.read_text())
        assert training.poll() is None
        training.kill()
        training.wait()
    wait_for(lambda: not processes("Player") and not processes("ReplayShard"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Resuming from checkpoint" in done.stdout
    assert "Done after" in done.stdout
    assert_finished(run)
