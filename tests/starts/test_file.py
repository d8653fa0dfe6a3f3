"""Start files: recordings replay exactly, and files that would not are rejected."""

import json
import re

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.atari import AtariEnvironment
from rainbow_tf.environments.screens import shrink
from rainbow_tf.evaluation.episodes import EvaluationGames, play_episodes
from rainbow_tf.games import GAMES
from rainbow_tf.starts import file as starts
from rainbow_tf.starts.emulator import Emulator
from rainbow_tf.starts.environment import StartEnvironment
from rainbow_tf.starts.file import Recording, StartFile, StartPoint
from rainbow_tf.types import Decision


def record(path, game="breakout", *, lengths=(200, 90), origin="random", repeat=4, seed=1):
    """A start file of random games, cut at these numbers of actions."""
    settings = starts.recorder_settings(game, action_repeat=repeat, seed=seed)
    trajectories = []
    for k, length in enumerate(lengths):
        rng = np.random.default_rng([seed, k])
        recording = Recording(settings)
        codes = [action.value for action in recording.emulator.minimal_actions]
        while recording.frames < length * repeat and recording.step(
            codes[rng.integers(len(codes))]
        ):
            pass
        trajectories.append(recording.trajectory(origin))
    path.write_text(starts.text_of(settings, trajectories))
    return starts.read(path)


@pytest.fixture(scope="module")
def breakout(tmp_path_factory):
    return record(tmp_path_factory.mktemp("starts") / "breakout.json")


def rewrite(start_file: StartFile, path, change, *, with_checksum=True):
    """Writes the file with a changed body, and a matching checksum if wanted."""
    content = json.loads(start_file.path.read_text())
    change(content["body"])
    if with_checksum:
        content["sha256"] = starts._checksum(content["body"])
    path.write_text(json.dumps(content))
    return path


# Observations.


@pytest.mark.parametrize(
    ("game", "repeat", "stack", "steps"),
    [("qbert", 4, 4, 150), ("breakout", 4, 4, 150), ("seaquest", 3, 2, 60), ("pong", 1, 1, 40)],
)
def test_observations_equal_those_of_training(game, repeat, stack, steps):
    config = Config(game=game, noop_max=0, action_repeat=repeat, frame_stack=stack)
    environment = AtariEnvironment(config=config, num_envs=1, seed=3)
    emulator = Emulator(game, seed=5, action_repeat=repeat, frame_stack=stack)
    looking = Emulator(game, seed=5, action_repeat=repeat, frame_stack=stack)
    assert tuple(a.name for a in emulator.minimal_actions) == environment.spec.action_meanings
    np.testing.assert_array_equal(
        emulator.observation, environment.reset().observation[0], strict=True
    )
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = rng.integers(environment.spec.num_actions)
        output = environment.step(np.array([action]))
        code = emulator.minimal_actions[action].value
        assert emulator.step(code) == output.reward[0]
        assert emulator.ale.game_over() == output.episode_over[0]
        if emulator.ale.game_over():
            break
        np.testing.assert_array_equal(emulator.observation, output.observation[0], strict=True)
        # Also when rebuilt from the screens, as after a replay.
        looking.hold(code, repeat)
        looking.look()
        np.testing.assert_array_equal(looking.observation, output.observation[0], strict=True)


def test_observations_at_start_points_equal_those_of_training(breakout):
    config = Config(game="breakout", noop_max=0)
    environment = AtariEnvironment(config=config, num_envs=1, seed=3)
    codes = [
        a.value
        for a in Emulator("breakout", seed=0, action_repeat=4, frame_stack=1).minimal_actions
    ]
    actions = breakout.trajectories[0].actions
    outputs = [environment.reset()]
    outputs += [environment.step(np.array([codes.index(action)])) for action in actions]
    assert not any(output.episode_over[0] for output in outputs)
    points = [StartPoint(0, n, 4 * n) for n in (1, 2, 3, 4, 15, 60, len(actions))]
    lanes = StartEnvironment(config=config, starts=breakout, points=points, num_envs=len(points))
    handed = lanes.reset()
    assert lanes.spec == environment.spec
    assert handed.is_first.all()
    for lane, point in enumerate(points):
        expected = outputs[point.actions].observation[0]
        np.testing.assert_array_equal(handed.observation[lane], expected, strict=True)
    # The next step is the same too.
    stepped = lanes.step(np.array([codes.index(action) for action in [*actions[1:5], 0, 0, 0]]))
    for lane in range(4):
        expected = outputs[points[lane].actions + 1]
        np.testing.assert_array_equal(stepped.observation[lane], expected.observation[0])
        assert stepped.reward[lane] == expected.reward[0]


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_observations_of_every_game(game):
    config = Config(game=game, noop_max=0)
    environment = AtariEnvironment(config=config, num_envs=1, seed=3)
    emulator = Emulator(game, seed=5, action_repeat=4, frame_stack=4)
    np.testing.assert_array_equal(emulator.observation, environment.reset().observation[0])
    rng = np.random.default_rng(1)
    for _ in range(120):
        action = rng.integers(environment.spec.num_actions)
        output = environment.step(np.array([action]))
        emulator.step(emulator.minimal_actions[action].value)
        if output.episode_over[0]:
            break
        np.testing.assert_array_equal(emulator.observation, output.observation[0])


def test_shrink_equals_opencv_bit_for_bit():
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    for _ in range(20):
        screen = rng.integers(0, 256, (210, 160)).astype(np.uint8)
        expected = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(shrink(screen, (84, 84)), expected, strict=True)


def test_frame_by_frame_recording_is_observed_in_agent_steps(tmp_path):
    """The agent sees a human recording as if its own steps had ended at the start point."""
    person = record(tmp_path / "person.json", repeat=1, lengths=(130,), origin="human")
    codes = person.trajectories[0].actions
    emulator = starts.replay(person, StartPoint(0, 122, 122), action_repeat=4, frame_stack=4)
    screens = []
    raw = raw_emulator("breakout")
    for code in codes[:122]:
        raw.act(raw.getLegalActionSet()[code])
        screens.append(raw.getScreenGrayscale())
    expected = [
        shrink(np.maximum(screens[end - 1], screens[end - 2]), (84, 84))
        for end in (110, 114, 118, 122)
    ]
    np.testing.assert_array_equal(emulator.observation, expected)


def raw_emulator(game):
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale


# Replays.


def test_replay_is_deterministic(breakout):
    for point in starts.sample_points(breakout, 3, seed=2):
        one, two = (
            starts.replay(breakout, point, action_repeat=4, frame_stack=4) for _ in range(2)
        )
        for _ in range(30):
            assert one.checksum() == two.checksum()
            np.testing.assert_array_equal(one.observation, two.observation)
            np.testing.assert_array_equal(one.ale.getScreenRGB(), two.ale.getScreenRGB())
            assert one.step(3) == two.step(3)


def test_trajectory_ends_before_the_game_is_over(tmp_path):
    whole = record(tmp_path / "whole.json", "pong", lengths=(5000,))
    point = starts.points(whole, 0)[-1]
    assert point.actions < 5000
    emulator = starts.replay(whole, point, action_repeat=4, frame_stack=4)
    assert not emulator.ale.game_over()


def stress_games():
    return [pytest.param(game, id=game) for game in GAMES[::12]]


@pytest.mark.stress
@pytest.mark.parametrize("game", stress_games())
def test_many_starts_of_five_games_replay(game, tmp_path):
    start_file = record(tmp_path / "starts.json", game, lengths=(1800,) * 20)
    for trajectory in range(20):
        last = starts.points(start_file, trajectory)[-1]
        starts.replay(start_file, last, action_repeat=4, frame_stack=4)
    states = {}
    for point in starts.sample_points(start_file, 200, seed=1):
        emulator = starts.replay(start_file, point, action_repeat=4, frame_stack=4)
        state = (emulator.checksum(), emulator.observation.tobytes())
        assert states.setdefault(point, state) == state
    assert len(states) > 20


# Rejected files.


def sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_changed_file_is_rejected(breakout, tmp_path):
    def change(body):
        body["trajectories"][0]["origin"] = "human"

    path = rewrite(breakout, tmp_path / "changed.json", change, with_checksum=False)
    with pytest.raises(ConfigError, match="was changed after") as error:
        starts.read(path)
    assert "changed.json" in sentence(error)


@pytest.mark.parametrize("where", [3, 100, -1])
def test_changed_actions_do_not_replay(breakout, tmp_path, where):
    """Even with a new file checksum: the checksums of the RAM differ."""

    def change(body):
        actions = list(body["trajectories"][0]["actions"])
        actions[where] = "d" if actions[where] != "d" else "e"
        body["trajectories"][0]["actions"] = "".join(actions)

    changed = starts.read(rewrite(breakout, tmp_path / "changed.json", change))
    with pytest.raises(ConfigError, match="does not replay") as error:
        starts.replay(changed, starts.points(changed, 0)[-1], action_repeat=4, frame_stack=4)
    assert "changed.json" in sentence(error)


def test_wrong_checksum_on_the_way_does_not_replay(breakout, tmp_path):
    def change(body):
        body["trajectories"][0]["checksums"][2] = "00000000"

    changed = starts.read(rewrite(breakout, tmp_path / "changed.json", change))
    starts.replay(changed, StartPoint(0, 30, 120), action_repeat=4, frame_stack=4)
    with pytest.raises(ConfigError, match="at frame 180 "):
        starts.replay(changed, StartPoint(0, 45, 180), action_repeat=4, frame_stack=4)


def test_game_over_on_the_way_does_not_replay(tmp_path):
    """Even with the right checksums: nothing would be left to play."""
    pong = record(tmp_path / "pong.json", "pong", lengths=(5000,))
    actions = (*pong.trajectories[0].actions, *[0] * 300)
    emulator = Emulator("pong", seed=1, action_repeat=4, frame_stack=1)
    checksums = []
    for count, action in enumerate(actions, start=1):
        emulator.hold(action, 4)
        if count % 15 == 0 or count == len(actions):
            checksums.append(emulator.checksum())
    assert emulator.ale.game_over()
    ended = pong._replace(trajectories=[starts.Trajectory("random", actions, tuple(checksums))])
    with pytest.raises(ConfigError, match="does not replay"):
        starts.replay(ended, starts.points(ended, 0)[-1], action_repeat=4, frame_stack=4)


@pytest.mark.parametrize(
    ("name", "value", "settings", "expected"),
    [
        ("game", "pong", {}, "is of pong, and the run plays breakout"),
        ("rom_sha256", "0" * 64, {}, "another ROM of breakout"),
        ("sticky_action_probability", 0.25, {}, "has sticky actions"),
        ("seed", 1, {"protocol": "sticky"}, "--protocol=sticky, has sticky actions"),
        ("action_repeat", 4, {"action_repeat": 6}, "does not divide the run's 6"),
    ],
)
def test_files_of_other_settings_are_rejected(breakout, name, value, settings, expected):
    changed = {**breakout.settings.__dict__, name: value}
    other = breakout._replace(settings=starts.RecorderSettings(**changed))
    starts.check_fits(breakout, Config(game="breakout"))
    with pytest.raises(ConfigError, match=re.escape(expected)) as error:
        starts.check_fits(other, Config(game="breakout", **settings))
    sentence(error)


def test_other_environments_and_empty_files_are_rejected(breakout):
    with pytest.raises(ConfigError, match="for Atari games"):
        starts.check_fits(breakout, Config(environment="CartPole-v1"))
    with pytest.raises(ConfigError, match="no trajectory yet"):
        starts.check_fits(breakout._replace(trajectories=[]), Config(game="breakout"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a start file"),
        ('{"body": {"form', "not a start file"),
        ("[" * 100_000, "nested too deeply"),
        ("[1, 2]", "not a start file"),
        ('{"body": 3}', "not a start file"),
        ('{"body": {"format": 2}}', "format 2"),
        ('{"body": {"format": 1}}', "was changed"),
    ],
)
def test_files_that_are_not_start_files(tmp_path, text, expected):
    path = tmp_path / "starts.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected) as error:
        starts.read(path)
    assert "record_starts" in sentence(error)


def test_binary_and_missing_files(tmp_path):
    path = tmp_path / "starts.json"
    path.write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(ConfigError, match="not a start file"):
        starts.read(path)
    with pytest.raises(ConfigError, match="No such file"):
        starts.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("settings"),
        lambda body: body["settings"].pop("seed"),
        lambda body: body["settings"].update(action_repeat=101),
        lambda body: body["settings"].update(ale_py=1),
        lambda body: body.update(settings=[]),
        lambda body: body["trajectories"][0].update(actions=["a"]),
        lambda body: body["trajectories"][0].update(origin=["human"]),
        lambda body: body["trajectories"][0]["checksums"].append(7),
        lambda body: body["settings"].update(action_repeat=0),
        lambda body: body["settings"].update(action_repeat="4"),
        lambda body: body["settings"].update(action_repeat=-4),
        lambda body: body["settings"].update(seed=2**31),
        lambda body: body["settings"].update(seed=1.5),
        lambda body: body["settings"].update(game=None),
        lambda body: body["settings"].update(game="pong" + 3000 * "["),
        lambda body: body.update(trajectories=[3]),
        lambda body: body["trajectories"][0].update(origin="expert"),
        lambda body: body["trajectories"][0].update(actions="abz"),
        lambda body: body["trajectories"][0].update(actions=""),
        lambda body: body["trajectories"][0]["checksums"].pop(),
    ],
)
def test_incomplete_files(breakout, tmp_path, change):
    path = rewrite(breakout, tmp_path / "starts.json", change)
    with pytest.raises(ConfigError, match="cannot be used, it is incomplete") as error:
        starts.read(path)
    sentence(error)
    assert len(str(error.value)) < 1000


# Points and protocols.


def test_points_come_from_the_first_half_of_every_trajectory(breakout):
    points = starts.sample_points(breakout, 400, seed=1)
    # A checksum every 15 actions: up to 100 of 200 and 45 of 90.
    assert {p.actions for p in points if p.trajectory == 0} == {15, 30, 45, 60, 75, 90}
    assert {p.actions for p in points if p.trajectory == 1} == {15, 30, 45}
    assert all(p.frames == 4 * p.actions for p in points)
    share = np.mean([p.trajectory == 0 for p in points])
    assert 0.4 < share < 0.6
    assert starts.sample_points(breakout, 10, seed=1) == points[:10]
    assert starts.sample_points(breakout, 10, seed=2) != points[:10]
    assert str(StartPoint(3, 15, 60)) == "3@60"


def test_trajectories_that_are_too_short(breakout, tmp_path):
    short = record(tmp_path / "short.json", lengths=(10,))
    with pytest.raises(ConfigError, match="too short to start from"):
        starts.sample_points(short, 1, seed=1)


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        (["human", "human"], "human"),
        (["human", "policy"], "policy"),
        (["human", "random"], "random"),
        (["random", "policy", "human"], "policy"),
        (["random"], "random"),
    ],
)
def test_origin_is_human_only_if_people_played_all(breakout, origins, expected):
    trajectory = breakout.trajectories[0]
    mixed = breakout._replace(trajectories=[trajectory._replace(origin=o) for o in origins])
    assert mixed.origin == expected


# The environment.


class Cycle:
    """Cycles through its actions, the same in every lane; all values are 0."""

    def __init__(self, *actions):
        self.actions = actions
        self.time = 0

    def decide(self, observation, epsilon):
        action = self.actions[self.time % len(self.actions)]
        self.time += 1
        lanes = len(observation)
        return Decision(np.full(lanes, action), None, np.zeros(lanes), None)


def test_scores_equal_those_of_a_raw_emulator(breakout):
    """Whole games of five lives, unclipped, from three starts."""
    points = [StartPoint(0, 30, 120), StartPoint(0, 60, 240), StartPoint(1, 45, 180)]
    config = Config(game="breakout")
    expected = []
    for point in points:
        ale = raw_emulator("breakout")
        for code in breakout.trajectories[point.trajectory].actions[: point.actions]:
            for _ in range(4):
                ale.act(ale.getLegalActionSet()[code])
        score, length, lives = 0, 0, ale.lives()
        minimal = ale.getMinimalActionSet()
        while not ale.game_over():
            for _ in range(4):
                score += ale.act(minimal[(1, 2, 3, 3, 2)[length % 5]])
                if ale.game_over():
                    break
            length += 1
        assert lives > 1  # several lives are lost on the way
        expected.append((score, length))
    assert sum(score for score, _ in expected) > 0
    environment = StartEnvironment(config=config, starts=breakout, points=points, num_envs=3)
    games = EvaluationGames(Cycle(1, 2, 3, 3, 2), environment, config=config)
    played = dict(play_episodes(games, episodes=3))
    assert [(played[i].score, played[i].length) for i in range(3)] == expected


def test_lanes_share_the_points_and_then_idle(breakout):
    config = Config(game="breakout", max_episode_frames=20)
    points = starts.sample_points(breakout, 3, seed=1)
    environment = StartEnvironment(config=config, starts=breakout, points=points, num_envs=2)
    outputs = [environment.reset(), *(environment.step(np.zeros(2, np.int32)) for _ in range(12))]
    # Five steps of four frames from the start point, then the next point or idling.
    is_cut = [t in (5, 11) for t in range(13)]
    assert not any(o.terminal[0] for o in outputs)
    assert [bool(o.episode_over[0]) for o in outputs] == is_cut
    assert [bool(o.is_first[0]) for o in outputs] == [t in (0, 6, 12) for t in range(13)]
    assert [bool(o.episode_over[1]) for o in outputs] == [t == 5 for t in range(13)]
    assert [bool(o.is_first[1]) for o in outputs] == [t == 0 or t > 5 for t in range(13)]
    assert not any(o.terminal.any() for o in outputs)
    third = starts.replay(breakout, points[2], action_repeat=4, frame_stack=4)
    np.testing.assert_array_equal(outputs[6].observation[0], third.observation)
    np.testing.assert_array_equal(outputs[12].observation[1], outputs[5].observation[1])
    again = environment.reset()
    np.testing.assert_array_equal(again.observation, outputs[0].observation)
    assert outputs[0].reward.dtype == np.float32
    environment.close()


def test_lost_life_is_terminal_and_the_game_continues(breakout):
    environment = StartEnvironment(
        config=Config(game="breakout"),
        starts=breakout,
        points=[StartPoint(0, 15, 60)],
        num_envs=1,
    )
    outputs = [environment.reset()]
    for t in range(1000):
        outputs.append(environment.step(np.array([t % 2])))
        if outputs[-1].episode_over[0]:
            break
    lost = [t for t, output in enumerate(outputs) if output.terminal[0]]
    assert 2 <= len(lost) <= 5
    assert lost[-1] == len(outputs) - 1
    assert [t for t, output in enumerate(outputs) if output.is_first[0]] == [0]
    assert outputs[-1].terminal[0]
