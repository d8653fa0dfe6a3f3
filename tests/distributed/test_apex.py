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
from fake_ray import FakeRay, ObjectLostError, Ref

from rainbow_tf.agent.losses import losses_and_errors, q_values
from rainbow_tf.agent.networks import make_support
from rainbow_tf.benchmark import ATARI_SPEC
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed.apex import learner as apex
from rainbow_tf.distributed.apex import player
from rainbow_tf.distributed.apex.player import InitialErrors, Player
from rainbow_tf.distributed.apex.shard import NewShardError, ReplayShard, Rollout
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore
from rainbow_tf.training.checkpoint import Checkpointer, restore, restore_replay
from rainbow_tf.types import Counters, WorldSpec


@pytest.fixture(autouse=True)
def _tensorflow_is_loaded(monkeypatch):
    monkeypatch.setattr(player, "load_tensorflow", lambda threads: None)


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


def weights_of(one: Player):
    return [variable.numpy() for variable in one._network.trainable_variables]


def play(one: Player, rollouts: int, epsilon: float = 0.5, **options):
    return [one.play(weights_of(one), 0, epsilon, anew=False) for _ in range(rollouts)]


@pytest.mark.parametrize(
    "settings",
    [
        {"n_step": 1},
        {"n_step": 3},
        {"n_step": 7},  # longer than a rollout
        {"n_step": 3, "priority": "ce"},
        {"n_step": 3, "priority": "td"},
        {"n_step": 3, "distributional": False},
    ],
)
def test_priorities_of_an_actor_are_those_of_the_learners_formula(settings):
    """Of every transition in the replay, computed anew from what the replay gives for it."""
    config = small(actors=1, noisy=False, batch_size=64, **settings)
    one = Player(config=config, number=0, start_steps=0)
    shard = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    shard.begin()
    for number, (rollout, played) in enumerate(play(one, rollouts=20)):
        shard.add(0, number, rollout, played.begins)
    support = make_support(config)
    seen = set()
    for _ in range(20):
        ids, batch = shard.sample(0.4)
        outputs_tm1 = one._network(batch.observation_tm1)
        outputs_t = one._network(batch.observation_t)
        _, errors = losses_and_errors(
            support,
            config.priority_measure,
            outputs_tm1,
            batch.action_tm1,
            batch.reward_t,
            batch.discount_t,
            outputs_t,
            tf.argmax(q_values(support, outputs_t), axis=1, output_type=tf.int32),
        )
        expected = (np.maximum(errors, 0) + 1e-6) ** config.priority_exponent
        np.testing.assert_allclose(shard.priorities(ids), expected, rtol=2e-3, atol=2e-4)
        seen.update(ids.tolist())
    assert len(seen) > 100
    assert len(np.unique(np.round(shard.priorities(np.array(sorted(seen))), 6))) > 20


@pytest.mark.parametrize("n_step", [1, 3, 7])
def test_errors_know_lost_lives_and_cut_episodes(n_step):
    """Windows end where a life is lost, though the episode goes on, and where time is up."""
    config = small(actors=1, n_step=n_step, distributional=False, noisy=False, batch_size=32)
    spec = WorldSpec((), np.dtype(np.int32), 1, 3, ())
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
    judge = InitialErrors(config)
    shard = ReplayShard(config=config, spec=spec, actors=[0], seed=0)
    shard.begin()
    for number, start in enumerate(range(0, steps, 5)):
        rollout = {name: column[start : start + 5] for name, column in columns.items()}
        errors = judge(rollout, outputs[rollout["frame"]])
        shard.add(0, number, Rollout(**rollout, errors=errors), number == 0)
    for _ in range(20):
        ids, batch = shard.sample(0.4)
        q_tm1 = outputs[batch.observation_tm1[:, 0], batch.action_tm1, 0]
        q_t = outputs[batch.observation_t[:, 0], :, 0].max(axis=1)
        expected = np.abs(batch.reward_t + batch.discount_t * q_t - q_tm1)
        found = shard.priorities(ids) ** (1 / config.priority_exponent)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert 0 < np.count_nonzero(batch.discount_t == 0) < 32


def test_rollouts_follow_each_other():
    one = Player(config=small(), number=0, start_steps=0)
    rollouts, played = zip(*play(one, rollouts=12), strict=True)
    assert [p.begins for p in played] == [True] + [False] * 11
    assert rollouts[0].is_first[0].all()
    frames = np.concatenate([r.frame for r in rollouts])
    over = np.concatenate([r.episode_over for r in rollouts])
    first = np.concatenate([r.is_first for r in rollouts])
    assert len(frames) == 60
    np.testing.assert_array_equal(first[1:], over[:-1])  # also from rollout to rollout
    assert sum(p.steps for p in played) == np.count_nonzero(~first)
    assert len([e for p in played for e in p.episodes]) == np.count_nonzero(over)
    # Cart and pole move on by little, where no episode ends between.
    moved = np.abs(np.diff(frames, axis=0)).max(axis=-1)
    assert moved[~first[1:]].max() < 1
    assert all(episode.score == episode.length for p in played for episode in p.episodes)


def test_a_player_takes_new_weights_by_their_version():
    one = Player(config=small(noisy=False), number=0, start_steps=0)
    other = [w + 1 for w in weights_of(one)]
    one.play(weights_of(one), 0, 0.0, anew=False)
    one.play(other, 1, 0.0, anew=False)
    np.testing.assert_array_equal(weights_of(one)[0], other[0])
    one.play([w + 5 for w in other], 1, 0.0, anew=False)  # known already: not looked at
    np.testing.assert_array_equal(weights_of(one)[0], other[0])


def test_players_play_apart_and_a_resumed_run_plays_other_episodes():
    first = [
        Player(config=small(), number=number, start_steps=steps)
        for number, steps in [(0, 0), (1, 0), (0, 400), (0, 0)]
    ]
    starts = [play(one, 1)[0][0].frame[0].tobytes() for one in first]
    assert len(set(starts[:3])) == 3
    assert starts[3] == starts[0]


def test_a_shard_refuses_what_follows_a_gap():
    config = small(actors=1)
    one = Player(config=config, number=0, start_steps=0)
    shard = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    shard.begin()
    (a, _), (b, _), (c, _) = play(one, 3)
    assert shard.add(0, 0, a, True).fill == pytest.approx(10 / 400)
    assert shard.add(0, 1, b, False).fill == pytest.approx(20 / 400)
    assert shard.add(0, 3, c, False) is None
    assert shard.standing().fill == pytest.approx(20 / 400)
    d, played = one.play(weights_of(one), 0, 0.0, anew=True)
    assert played.begins
    assert shard.add(0, 4, d, True).fill == pytest.approx(30 / 400)
    other = ReplayShard(config=config, spec=one.spec, actors=[0], seed=0)
    with pytest.raises(NewShardError):
        other.add(0, 1, b, True)
    other.begin()
    assert other.add(0, 1, b, False) is None  # a shard that was started again


def test_the_ladder_of_exploration_by_hand():
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


@pytest.fixture
def fake(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(apex, "connect", lambda *arguments, **options: ray)
    return ray


def shard_of(fleet, number=0):
    return fleet.replay._shards[number]


def test_the_ratio_of_updates_to_steps_is_held(fake, tmp_path):
    config = small(run_dir=str(tmp_path), min_history_frames=120)
    ticks = list(apex.train(config, apex.build_fleet(config)))
    lead = 2 * 5 * 2
    for tick in ticks:
        steps, updates = tick.counters
        assert updates <= max(0, (steps - 120) * 0.25)
        # Beyond the lead only what was asked for before it was reached.
        assert steps <= 120 + (updates + 1) / 0.25 + lead + 10
    assert ticks[-1].frames >= 400
    assert ticks[-1].counters.updates >= (400 - 120 - lead - 10) * 0.25
    assert all(np.isfinite(result.loss) for tick in ticks for result in tick.results)
    assert sum(len(tick.episodes) for tick in ticks) > 5


def test_a_tick_tells_the_mean_exploration_of_actors(fake, tmp_path):
    config = small(run_dir=str(tmp_path), noisy=False, epsilon_ladder=0.5)
    tick = next(apex.train(config, apex.build_fleet(config)))
    assert tick.epsilon == pytest.approx((0.5 + 0.5**8) / 2)


def test_updates_rarer_than_rollouts_come_due(fake, tmp_path):
    config = small(run_dir=str(tmp_path), updates_per_step=0.01)  # of 100 steps, the lead is 20
    ticks = list(itertools.islice(apex.train(config, apex.build_fleet(config)), 1_000))
    assert ticks[-1].frames >= 400
    assert ticks[-1].counters.updates == 3


def test_replay_ratio_is_of_frames_and_zero_holds_nothing(fake, tmp_path):
    config = small(run_dir=str(tmp_path), replay_ratio=1.0)
    assert config.held_updates_per_step == 1
    assert Config(game="pong", actors=1, replay_ratio=0.25).held_updates_per_step == 1
    *_, last = apex.train(config, apex.build_fleet(config))
    assert last.counters.updates == pytest.approx(360, abs=30)
    free = small(run_dir=str(tmp_path), replay_ratio=0.0)
    assert free.held_updates_per_step is None
    *_, last = apex.train(free, apex.build_fleet(free))
    # Actors here answer at once: about one update for all that is under way.
    assert 5 < last.counters.updates < 60


def test_weights_and_target_are_copied_in_their_periods(fake, tmp_path):
    config = small(run_dir=str(tmp_path), broadcast_period_updates=10)
    fleet = apex.build_fleet(config)
    copies = []
    fleet.learner.update_target = lambda: copies.append(1)
    *_, last = apex.train(config, fleet)
    assert fake.puts == 1 + last.counters.updates // 10
    assert len(copies) == 4
    variables = fleet.learner.online.trainable_variables
    playing = [h.instance for h in fake.handles if isinstance(h.instance, Player)]
    assert all(one._version > 0 for one in playing)  # no actor is left out
    assert len(variables) == len(playing[0]._network.trainable_variables)


def test_a_killed_actor_plays_on_from_new_episodes(fake, tmp_path, capsys):
    config = small(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    for _ in range(20):
        next(ticks)
    fleet.players[1].kill()
    *_, last = ticks
    assert last.frames >= 400
    assert "Actor 1 plays from new episodes on" in capsys.readouterr().err
    assert shard_of(fleet).standing.num_sampleable > 100


def test_actors_that_do_not_answer_are_told_of(fake, tmp_path, capsys, monkeypatch):
    config = small(run_dir=str(tmp_path))
    ticks = apex.train(config, apex.build_fleet(config))
    monkeypatch.setattr(apex, "_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(fake, "wait", lambda refs, num_returns=1, timeout=None: ([], refs))
    assert next(ticks).counters.steps == 0
    assert "No actor has answered" in capsys.readouterr().err


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_killed_shard_comes_back(fake, tmp_path, capsys, has_checkpoint, is_seen):
    config = small(run_dir=str(tmp_path), replay_shards=2)
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 200)
    saved = None
    if has_checkpoint:
        saved = shard_of(fleet, 1).standing
        checkpointer(config, fleet).save(tick.counters)
    tick = next(t for t in ticks if t.counters.steps > 250)
    handle = shard_of(fleet, 1)._handle
    if is_seen:
        handle.kill()
    else:  # it died when nobody called it, as in an evaluation
        handle.restart()
    said = ""
    while "died" not in said:
        next(ticks)
        said += capsys.readouterr().err
    assert "Replay shard 1 died; starting it again." in said
    assert ("is as it was at" in said) == has_checkpoint
    assert ("there is no checkpoint yet, so replay shard 1 is empty" in said) != has_checkpoint
    now = shard_of(fleet, 1).standing
    if saved is not None:
        assert now.num_sampleable >= saved.num_sampleable - 10
    else:
        assert now.fill < 0.2
    *_, last = ticks
    assert last.frames >= 400
    assert shard_of(fleet, 1).standing.num_sampleable > 20


def test_a_rollout_that_is_lost_breaks_the_stream_and_nothing_else(fake, tmp_path, monkeypatch):
    config = small(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    next(t for t in ticks if t.counters.steps > 100)
    shard = shard_of(fleet)
    shard._adds.append((1, Ref(error=ObjectLostError("node"))))
    fleet.replay.settle()
    assert fleet.replay.broken_off == {1}
    *_, last = ticks
    assert last.frames >= 400
    assert fleet.replay.broken_off == set()


class Nothing:
    """Metrics and an evaluator that know nothing."""

    def state(self):
        return {}

    def restore(self, state):
        pass


def checkpointer(config, fleet):
    return Checkpointer(
        config=config,
        store=CheckpointStore(config.folder / CHECKPOINTS),
        parts=fleet,
        metrics=Nothing(),
        evaluator=Nothing(),
        say=print,
    )


def test_a_checkpoint_brings_back_agent_and_all_shards(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("rainbow_tf.replay.replay.CHUNK_SLOTS", 40)
    config = small(run_dir=str(tmp_path), actors=3, replay_shards=2, replay_capacity=600)
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    saving = checkpointer(config, fleet)
    saving.save(tick.counters)
    tick = next(t for t in ticks if t.counters.steps > 300)
    saving.save(tick.counters)  # now with files of the first one
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
    kept = [shard._union.replays for shard in shards]  # of both fleets, two shards each
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


def test_a_shard_that_dies_in_a_checkpoint_spoils_it_and_not_the_run(fake, tmp_path, capsys):
    config = small(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    shard_of(fleet)._handle.kill()
    checkpointer(config, fleet).save(tick.counters)
    assert "replay shard 0 died meanwhile" in capsys.readouterr().out
    assert CheckpointStore(config.folder / CHECKPOINTS).numbers() == []
    *_, last = ticks
    assert last.frames >= 400


def test_what_a_shard_was_filled_with_is_saved_whole_again(fake, tmp_path):
    config = small(run_dir=str(tmp_path))
    fleet = apex.build_fleet(config)
    ticks = apex.train(config, fleet)
    tick = next(t for t in ticks if t.counters.steps > 150)
    checkpointer(config, fleet).save(tick.counters)
    assert fleet.replay.changed_chunks() == []
    store = CheckpointStore(config.folder / CHECKPOINTS)
    restore_replay(shard_of(fleet), store, store.open(1))
    assert fleet.replay.changed_chunks() == fleet.replay.written_chunks()


def test_batches_are_drawn_ahead_and_shards_by_their_mass(fake, tmp_path):
    config = small(run_dir=str(tmp_path), replay_shards=2)
    fleet = apex.build_fleet(config)
    next(t for t in apex.train(config, fleet) if t.results)
    replay = fleet.replay
    assert len(replay._ahead) == 3
    masses = {0: 1.0, 1: 3.0}
    for number, mass in masses.items():
        shard_of(fleet, number).standing = shard_of(fleet, number).standing._replace(
            total_priority=mass
        )
    chosen = [replay._choose().number for _ in range(2_000)]
    assert np.mean(chosen) == pytest.approx(0.75, abs=0.03)


def test_the_object_store_holds_what_may_be_under_way():
    config = Config(game="pong", actors=3, batch_size=512)
    got = apex.object_store_bytes(config, ATARI_SPEC, 6_900_000)
    frame = 84 * 84
    least = (
        3 * 3 * 16 * 4 * frame  # two rollouts each under way, one being written
        + 4 * 2 * 512 * 4 * frame  # batches
        + 2 * 27_600_000  # weights, old and new
    )
    assert least < got < 4 * least
    cart_pole = ATARI_SPEC._replace(frame_shape=(4,))
    assert apex.object_store_bytes(small(), cart_pole, 1000) == 128 << 20


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"replay_ratio": 0.1, "actors": 0}, ["--replay_ratio=0.1", "--updates_per_step"]),
        ({"address": "auto", "actors": 0}, ["--address=auto", "--actors"]),
        ({"replay_shards": 2, "actors": 0}, ["--replay_shards=2", "--actors"]),
        ({"algorithm": "a3c"}, ["--actors=2", "--algorithm=a3c", "--num_envs"]),
        ({"pipeline": True}, ["--pipeline", "--actors=2"]),
        ({"replay_shards": 3}, ["--replay_shards=3", "--actors=2"]),
        ({"replay_capacity": 10}, ["--replay_capacity=10", "--actors=2", "16"]),
        ({"epsilon_ladder": 0.0}, ["--epsilon_ladder=0.0", "above 0"]),
    ],
)
def test_bad_settings_are_refused_by_name(settings, named):
    with pytest.raises(ConfigError) as refusal:
        small(**settings)
    for part in named:
        assert part in str(refusal.value)


def test_runs_with_actors_have_a_name_of_their_own():
    assert small().agent == "apex"
    assert small(noisy=False).agent == "no_noisy_apex"


def test_the_preset_trains_on_pong(fake, preset, tmp_path):
    config = preset(
        "apex",
        "--game=pong",
        "--actors=2",
        "--frames=2400",
        "--min_history_frames=1200",
        "--replay_capacity=2000",
        "--updates_per_step=0.01",
        "--batch_size=64",
        f"--run_dir={tmp_path}",
    )
    fleet = apex.build_fleet(config)
    before = [variable.numpy() for variable in fleet.learner.online.trainable_variables]
    ticks = list(apex.train(config, fleet))
    assert ticks[-1].frames >= 2_400
    losses = [result.loss for tick in ticks for result in tick.results]
    assert len(losses) >= 1
    assert np.isfinite(losses).all()
    after = [variable.numpy() for variable in fleet.learner.online.trainable_variables]
    assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))


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


def test_without_ray_actors_say_what_to_install(tmp_path):
    hidden = tmp_path / "ray.py"
    hidden.write_text("raise ImportError('hidden')\n")
    done = subprocess.run(
        [sys.executable, "-m", "rainbow_tf.main", *FLAGS, f"--run_dir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 1
    assert "rainbow_tf: --actors=2 needs Ray; install it with pip install" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def processes(name: str) -> list[psutil.Process]:
    """Those that Ray runs a class in, below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(f"ray::{name}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def test_a_run_with_actors_survives_kills_and_goes_on(tmp_path):
    """An actor, the shard and at last the learner are killed; the same command ends the run."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "rainbow_tf.main", *FLAGS, f"--run_dir={run}"]
    log = tmp_path / "log"
    with log.open("w") as file:
        training = subprocess.Popen(command, stdout=file, stderr=file)
        wait_for(lambda: list(run.glob("checkpoints/*/manifest.json")))
        os.kill(processes("Player")[0].pid, signal.SIGKILL)
        os.kill(processes("ReplayShard")[0].pid, signal.SIGKILL)
        wait_for(lambda: "is as it was at" in log.read_text())
        assert training.poll() is None
        training.kill()
        training.wait()
    wait_for(lambda: not processes("Player") and not processes("ReplayShard"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Going on from checkpoint" in done.stdout
    assert "Done after" in done.stdout
    rows = (run / "train.csv").read_text().splitlines()[1:]
    frames = [int(row.split(",")[0]) for row in rows]
    assert frames == sorted(set(frames))
    assert len((run / "eval.csv").read_text().splitlines()) == 2
    assert (run / "best" / "online.npz").exists()
