"""Recording starts: a random player, a policy, and a person at a window."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from absl import flags
from ale_py import Action

from rainbow_tf import record_starts
from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.runs.weights import Best, write_best
from rainbow_tf.starts import file as starts
from rainbow_tf.starts.keyboard import choose_action


def parse(*arguments):
    values = flags.FlagValues()
    record_starts.COMMAND.define_flags(values)
    values(["record_starts", *arguments])
    return values


def record(output, *arguments, player="random"):
    record_starts.run(parse("--game=breakout", f"--player={player}", f"--out={output}", *arguments))
    return starts.read(output)


def check_replays(start_file):
    for trajectory in range(len(start_file.trajectories)):
        point = starts.points(start_file, trajectory)[-1]
        starts.replay(start_file, point, action_repeat=4, frame_stack=4)


def test_random_games(tmp_path, capsys):
    output = tmp_path / "new" / "breakout.json"
    start_file = record(output, "--trajectories=3", "--max_frames=400")
    assert start_file.settings.game == "breakout"
    assert start_file.settings.action_repeat == 4
    assert start_file.settings.sticky_action_probability == 0
    assert start_file.origin == "random"
    assert [len(t.actions) for t in start_file.trajectories] == [100] * 3
    assert len({t.actions for t in start_file.trajectories}) == 3
    used = {action for t in start_file.trajectories for action in t.actions}
    assert used == {Action.NOOP.value, Action.FIRE.value, Action.RIGHT.value, Action.LEFT.value}
    check_replays(start_file)
    assert "holds 3 of 3 trajectories by random" in capsys.readouterr().out


def test_a_recording_resumes_where_it_was_interrupted(tmp_path, monkeypatch, capsys):
    arguments = ["--trajectories=4", "--max_frames=120"]
    record(tmp_path / "whole.json", *arguments)
    calls = []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return starts.Recording(*args, **kwargs)

    output = tmp_path / "parts.json"
    monkeypatch.setattr(record_starts, "Recording", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(output, *arguments)
    assert len(starts.read(output).trajectories) == 2
    record(output, *arguments)
    assert output.read_text() == (tmp_path / "whole.json").read_text()
    assert len(calls) == 5  # two, one interrupted, two
    record(output, *arguments)
    assert "has its 4 trajectories" in capsys.readouterr().out


def test_a_file_of_others_is_not_gone_on_with(tmp_path):
    output = tmp_path / "breakout.json"
    record(output, "--trajectories=1", "--max_frames=40")
    before = output.read_text()
    with pytest.raises(ConfigError, match="holds seed=1 where this command has 2"):
        record(output, "--trajectories=2", "--seed=2")
    with pytest.raises(ConfigError, match="holds action_repeat=4 where this command has 1"):
        record(output, "--trajectories=2", "--action_repeat=1")
    with pytest.raises(ConfigError, match="holds player=random where this command has human"):
        record(output, "--trajectories=2", "--action_repeat=4", player="human")
    assert output.read_text() == before
    output.write_text(before.replace("random", "human"))
    with pytest.raises(ConfigError, match="was changed"):
        record(output, "--trajectories=2")


def make_run(folder, **settings):
    agent = {"network": "data_efficient", "distributional": False, "noisy": False}
    config = Config(game="breakout", run_dir=str(folder), **agent, **settings)
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    spec = make_environment(config, num_envs=1, seed=1).spec
    network = make_network(config, spec, seed=1, name="online")
    network.head.advantage.bias.assign([0.0, 0.0, 100.0, 0.0])  # always to the right
    write_best(folder, network, Best(1234, 0.0, 1, "paper/noop"))
    return folder


@pytest.mark.compiles
def test_a_policy_is_never_called_human(tmp_path):
    run_dir = make_run(tmp_path / "run", noop_max=10)
    arguments = [f"--run_dir={run_dir}", "--trajectories=3", "--max_frames=240"]
    start_file = record(tmp_path / "breakout.json", *arguments, "--epsilon=0", player="policy")
    assert start_file.origin == "policy"
    noops = [trajectory.actions.count(0) for trajectory in start_file.trajectories]
    assert len(set(noops)) > 1  # else a greedy policy's games would all be one
    assert max(noops) <= 10
    for number, trajectory in zip(noops, start_file.trajectories, strict=True):
        assert trajectory.actions == (0,) * number + (3,) * (60 - number)
    check_replays(start_file)
    explored = record(tmp_path / "explored.json", *arguments, "--epsilon=1", player="policy")
    assert {a for t in explored.trajectories for a in t.actions} == {0, 1, 3, 4}
    again = record(tmp_path / "again.json", *arguments, "--epsilon=0", player="policy")
    assert again.trajectories == start_file.trajectories


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--game=pong", "--out=x.json"], "Give --player and --out"),
        (["--game=pong", "--player=random"], "Give --player and --out"),
        (["--player=random", "--out=x.json"], "Give --game"),
        (["--game=quake", "--player=random", "--out=x.json"], "--game=quake is not one"),
        (["--game=pong", "--player=policy", "--out=x.json"], "need each other"),
        (["--player=random", "--run_dir=x", "--out=x.json"], "need each other"),
        (["--player=policy", "--run_dir=x", "--out=x.json"], "not a run folder"),
        (
            ["--player=policy", "--run_dir=RUN", "--out=x.json", "--game=pong"],
            "not the run's breakout",
        ),
        (
            ["--player=policy", "--run_dir=RUN", "--out=x.json", "--action_repeat=2"],
            "not the run's 4",
        ),
        (["--game=pong", "--player=random", "--out=FILE/x.json"], "cannot be written"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(Config(game="breakout").to_json())
    given = [
        a.replace("RUN", str(tmp_path / "run")).replace("FILE", str(tmp_path / "file"))
        for a in arguments
    ]
    with pytest.raises(ConfigError, match=expected) as error:
        record_starts.run(parse(*given))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x.json").exists()


# A person.

ALL = tuple(Action.__members__.values())
PONG = (Action.NOOP, Action.FIRE, Action.RIGHT, Action.LEFT, Action.RIGHTFIRE, Action.LEFTFIRE)


@pytest.mark.parametrize(
    ("held", "actions", "expected"),
    [
        (set(), ALL, "NOOP"),
        ({"up", "right", "space"}, ALL, "UPRIGHTFIRE"),
        ({"down", "left"}, ALL, "DOWNLEFT"),
        ({"up", "down", "left", "right"}, PONG, "RIGHT"),
        ({"up", "space"}, PONG, "FIRE"),
        ({"left", "space"}, PONG, "LEFTFIRE"),
        ({"up"}, PONG, "NOOP"),
    ],
)
def test_held_keys_become_an_action_of_the_game(held, actions, expected):
    assert choose_action(held, actions) == Action[expected].value


class Person:
    """Presses written keys at written times: commands and held buttons per poll."""

    def __init__(self, script):
        self.script = iter(script)
        self.held = set()
        self.lines = []
        self.is_closed = False

    def __call__(self, title, frames_per_second):
        assert title.startswith("breakout")
        assert frames_per_second == 60
        return self

    def poll(self):
        commands, self.held = next(self.script)
        return commands

    def show(self, screen, line):
        assert screen.shape == (210, 160, 3)
        self.lines.append(line)

    def close(self):
        self.is_closed = True


def test_a_person_s_games(tmp_path, monkeypatch):
    nothing, fire = ([], set()), ([], {"space"})
    person = Person(
        [
            *[nothing] * 3,  # nothing is recorded before it begins
            (["return"], set()),
            *[fire] * 10,
            (["p"], set()),
            *[fire] * 5,
            (["p"], {"left"}),
            *[([], {"left"})] * 9,
            (["return"], set()),  # the first is kept
            (["return"], {"right"}),
            *[fire] * 3,
            (["backspace"], set()),
            (["return"], {"right"}),
            *[([], {"right"})] * 29,  # the most frames are reached
            (["return"], set()),
            *[fire] * 3,
            (["escape"], set()),
        ]
    )
    monkeypatch.setattr(record_starts, "Keyboard", person)
    output = tmp_path / "breakout.json"
    start_file = record(output, "--max_frames=30", "--trajectories=5", player="human")
    assert start_file.origin == "human"
    assert start_file.settings.action_repeat == 1
    assert [t.actions for t in start_file.trajectories] == [
        (0, *[1] * 10, *[4] * 10),
        (3,) * 30,
    ]
    assert person.is_closed
    assert person.lines[0] == "Game 1 of 5, 0 s: Enter to begin"
    assert "Game 1 of 5, 0 s: paused, P to resume" in person.lines
    assert person.lines[-1] == "Game 3 of 5, 0 s: recording"
    check_replays(start_file)


def test_a_window_hears_its_keys(monkeypatch):
    pygame = pytest.importorskip("pygame")
    from rainbow_tf.starts.keyboard import Keyboard

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keyboard = Keyboard("breakout", 60)
    pygame.event.clear()

    def press(kind, key):
        pygame.event.post(pygame.event.Event(kind, key=key))

    for key in (pygame.K_LEFT, pygame.K_SPACE, pygame.K_RETURN, pygame.K_q):
        press(pygame.KEYDOWN, key)
    assert keyboard.poll() == ["left", "space", "return", "q"]
    assert keyboard.held == {"left", "space", "return", "q"}
    press(pygame.KEYUP, pygame.K_LEFT)
    press(pygame.KEYDOWN, pygame.K_BACKSPACE)
    assert keyboard.poll() == ["backspace"]
    assert keyboard.held == {"space", "return", "q", "backspace"}
    pygame.event.post(pygame.event.Event(pygame.WINDOWFOCUSLOST))
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert keyboard.poll() == ["escape"]
    assert keyboard.held == set()
    screen = np.zeros((210, 160, 3), np.uint8)
    screen[:105, :80] = (200, 100, 50)
    keyboard.show(screen, "Game 1 of 5")
    assert tuple(keyboard._window.get_at((10, 10)))[:3] == (200, 100, 50)
    assert tuple(keyboard._window.get_at((319, 239)))[:3] == (200, 100, 50)
    assert tuple(keyboard._window.get_at((321, 241)))[:3] == (0, 0, 0)
    text = pygame.surfarray.array3d(keyboard._window)[:, 480:]
    assert (text == 255).any()
    keyboard.close()


def test_a_person_at_a_virtual_screen(tmp_path):
    """A real window, real keys."""
    pytest.importorskip("pygame")
    if shutil.which("Xvfb") is None or shutil.which("xdotool") is None:
        pytest.skip("needs Xvfb and xdotool")
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x700x24"],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        environment = {**os.environ, "DISPLAY": f":{stream.readline().strip()}"}
    environment.pop("SDL_VIDEODRIVER", None)
    output = tmp_path / "breakout.json"
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "rainbow_tf.record_starts", "--game=breakout"),
            *("--player=human", f"--out={output}", "--trajectories=1"),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def xdotool(*arguments):
        subprocess.run(["xdotool", *arguments], env=environment, check=True)

    try:
        time.sleep(3)  # until the window is there
        deadline = time.monotonic() + 60
        while recorder.poll() is None and time.monotonic() < deadline:
            xdotool("key", "Return")
            time.sleep(0.3)
            xdotool("keydown", "Right")
            time.sleep(0.5)
            xdotool("keyup", "Right")
            xdotool("key", "Return")
            time.sleep(0.5)
        stdout, stderr = recorder.communicate(timeout=30)
    finally:
        recorder.kill()
        server.kill()
        recorder.wait()
        server.wait()
    assert recorder.returncode == 0, stderr
    assert "holds 1 of 1 trajectories by human" in stdout
    start_file = starts.read(output)
    assert start_file.origin == "human"
    actions = start_file.trajectories[0].actions
    assert set(actions) == {Action.NOOP.value, Action.RIGHT.value}
    check_replays(start_file)


def test_without_pygame_it_says_so(monkeypatch):
    from rainbow_tf.starts.keyboard import Keyboard

    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigError, match=r"pip install 'rainbow_tf\[record\]'"):
        Keyboard("breakout", 60)


@pytest.mark.parametrize("driver", [{"SDL_VIDEODRIVER": "x11", "DISPLAY": ":987"}, {}])
def test_without_a_screen_it_says_so(tmp_path, driver):
    pytest.importorskip("pygame")
    screens = ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {k: v for k, v in os.environ.items() if k not in screens} | driver
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rainbow_tf.record_starts", "--game=breakout"),
            *("--player=human", f"--out={tmp_path / 'x.json'}"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "needs a screen" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_file_is_plain_json(tmp_path):
    record(tmp_path / "x.json", "--trajectories=1", "--max_frames=40")
    body = json.loads((tmp_path / "x.json").read_text())["body"]
    assert set(body) == {"format", "settings", "trajectories"}
    assert set(body["trajectories"][0]["actions"]) <= set("abcdefghijklmnopqr")
