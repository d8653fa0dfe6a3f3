import functools
import re
import subprocess
import sys

import cv2
import grpc
import numpy as np
import pytest
from model_server import StatusError

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.export import play as play_module
from rainbow_tf.export.client import SavedModelPolicy, ServingError, Signature, TensorSpec
from rainbow_tf.export.play import Player, as_input, play
from rainbow_tf.runs.weights import make_policy

CARTPOLE = Config(environment="CartPole-v1", seed=5)


@pytest.fixture
def run_play(run_command):
    """A function that runs the command in this process."""
    return functools.partial(run_command, "play")


def games(policy, config, *, episodes, alpha=None, watch=lambda score: None):
    """Scores and lengths of whole games."""
    environment = make_environment(config, num_envs=1, seed=config.seed)
    player = Player(policy, environment, alpha)
    played = list(play(player, environment, episodes=episodes, watch=watch))
    environment.close()
    assert len(player.seconds) == sum(episode.length for episode in played)
    return played


def test_served_games_are_those_in_process(server, models, connect):
    expected = games(SavedModelPolicy(models["wobbly"]), CARTPOLE, episodes=4)
    assert len(set(expected)) > 1, "equal games would prove nothing"
    assert all(10 < episode.score < 200 for episode in expected)
    for transport in ("grpc", "rest"):
        served = connect(transport, server, "wobbly")
        assert games(served, CARTPOLE, episodes=4) == expected


def test_an_export_plays_the_same_games_as_its_agent(cartpole, cartpole_model):
    network, settings = cartpole
    actor = make_policy(settings["config"], network, noise=False, rng=np.random.default_rng(0))
    environment = make_environment(CARTPOLE, num_envs=1, seed=CARTPOLE.seed)
    played = list(play(actor, environment, episodes=3, watch=lambda score: None))
    environment.close()
    assert games(SavedModelPolicy(cartpole_model), CARTPOLE, episodes=3) == played


def test_other_seeds_give_other_games(models):
    policy = SavedModelPolicy(models["wobbly"])
    first, again, other = (
        games(policy, Config(environment="CartPole-v1", seed=seed), episodes=3)
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_scores_are_whole_games_in_agent_steps(models):
    watched = []
    policy = SavedModelPolicy(models["cartpole_v1"])
    played = games(policy, CARTPOLE, episodes=2, watch=watched.append)
    assert played == [(500, 500), (500, 500)]
    assert watched == [*range(500), *range(500)]


def test_risk_policy(models):
    # The risk signature of this policy takes the worst action.
    policy = SavedModelPolicy(models["cartpole_v1"])
    assert all(game.length < 15 for game in games(policy, CARTPOLE, episodes=3, alpha=0.5))


@pytest.mark.parametrize("kind", ["grpc", "rest"])
def test_atari_games(server, models, connect, kind):
    config = Config(game="qbert", max_episode_frames=60, seed=3)
    served = connect(kind, server, "qbert")
    expected = games(SavedModelPolicy(models["qbert"]), config, episodes=2)
    assert games(served, config, episodes=2) == expected
    assert [episode.length for episode in expected] == [15, 15]


def test_layouts():
    uint8, float32, is_set = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.bool_)
    grey = np.arange(1 * 2 * 3 * 5, dtype=np.uint8).reshape(1, 2, 3, 5)  # [E, S, H, W]
    last = as_input(grey, TensorSpec(uint8, (None, 3, 5, 2)))
    np.testing.assert_array_equal(last[0, :, :, 0], grey[0, 0])
    np.testing.assert_array_equal(last[0, :, :, 1], grey[0, 1])
    np.testing.assert_array_equal(as_input(grey, TensorSpec(uint8, (None, 2, 3, 5))), grey)

    planes = np.random.default_rng(1).random((2, 2, 4, 3, 5)) < 0.5  # [E, S, H, W, C]
    joined = as_input(planes, TensorSpec(is_set, (None, 4, 3, 10)))
    np.testing.assert_array_equal(joined[..., :5], planes[:, 0])
    np.testing.assert_array_equal(joined[..., 5:], planes[:, 1])
    as_numbers = as_input(planes[:, :1], TensorSpec(float32, (None, 4, 3, 5)))
    assert as_numbers.dtype == float32
    np.testing.assert_array_equal(as_numbers, planes[:, 0])

    vectors = np.arange(12, dtype=np.float32).reshape(2, 2, 3)  # [E, S, D]
    np.testing.assert_array_equal(
        as_input(vectors, TensorSpec(float32, (None, 6))), [range(6), range(6, 12)]
    )
    # Bytes are not silently cast to floats: their scale would differ.
    assert as_input(grey, TensorSpec(float32, (None, 3, 5, 2))).dtype == uint8
    with pytest.raises(ServingError, match=r"takes float32 \[B, 4\].*--frame_stack"):
        as_input(vectors, TensorSpec(float32, (None, 4)))


def test_a_model_of_another_environment_is_refused(models):
    with pytest.raises(ServingError, match=r"environment gives float32 .*--environment"):
        games(
            SavedModelPolicy(models["cartpole_v1"]),
            Config(environment="Acrobot-v1"),
            episodes=1,
        )
    with pytest.raises(ServingError, match=r"chose action [345], but the environment has 3"):
        games(SavedModelPolicy(models["qbert"]), Config(game="freeway"), episodes=1)


def test_the_model_s_metadata_fills_in_missing_flags(models):
    policy = SavedModelPolicy(models["qbert"])
    about = play_module._ask_about(policy)
    config = play_module._environment_config(policy, about, {})
    assert (config.game, config.frame_stack, config.action_repeat) == ("qbert", 4, 4)
    said = {**about, "preprocessing": '{"protocol": "sticky", "frame_stack": 2}'}
    config = play_module._environment_config(policy, said, {"frame_stack": 3})
    assert (config.protocol, config.frame_stack) == ("sticky", 3)
    with pytest.raises(ConfigError, match="plays qbert, not --game=pong"):
        play_module._environment_config(policy, about, {"game": "pong"})
    minatar = SavedModelPolicy(models["minatar_breakout_v1"])
    config = play_module._environment_config(minatar, play_module._ask_about(minatar), {})
    assert config.environment == "MinAtar/Breakout-v1"


def test_a_model_without_metadata_is_played(models):
    policy = SavedModelPolicy(models["wobbly"])
    policy.signature()
    del policy._signatures["metadata"]
    assert play_module._ask_about(policy) == {}
    assert games(policy, CARTPOLE, episodes=1)
    with pytest.raises(ConfigError, match="give --game"):
        play_module._environment_config(policy, {}, {})


class Told(SavedModelPolicy):
    """A model whose metadata can hold anything that a server or a file could."""

    def __init__(self, folder, **facts):
        super().__init__(folder)
        arrays = {name: np.asarray(fact)[None] for name, fact in facts.items()}
        specs = {name: TensorSpec(a.dtype, (None, *a.shape[1:])) for name, a in arrays.items()}
        query = self.signature("metadata").inputs
        self._signatures = self._signatures | {"metadata": Signature(query, specs)}
        self._facts = arrays

    def _run(self, inputs, signature, deadline):
        if signature == "metadata":
            return self._facts
        return super()._run(inputs, signature, deadline)


@pytest.fixture
def config_of(models):
    """A function that returns the settings with which a model of this metadata is played."""

    def find(given=(), **facts):
        policy = Told(models["wobbly"], **facts)
        return play_module._environment_config(policy, play_module._ask_about(policy), dict(given))

    return find


def text(value):
    return np.array(value, object)


def test_a_module_is_imported_only_for_the_flag(config_of, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    evil = "evil:CartPole-v1"
    with pytest.raises(ConfigError) as error:
        config_of(game=text(evil.encode()))
    said = "plays evil:CartPole-v1, which imports the module evil; give --environment=evil:"
    assert said in str(error.value)
    assert "evil" not in sys.modules
    assert config_of({"environment": evil}, game=text(evil.encode())).environment == evil
    with pytest.raises(ConfigError, match="plays evil:CartPole-v1, not --game=qbert"):
        config_of({"game": "qbert"}, game=text(evil.encode()))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"game": np.int32(3)}, r"cannot be used \(game: int32 \[1\]\)"),
        ({"game": np.zeros((0,), object)}, r"cannot be used \(game: object \[1, 0\]\)"),
        ({"game": text(b"\xff\x1b[31m")}, r"--environment=.\?\[31m|\?\[31m"),
        ({"score": text(b"high")}, r"cannot be used \(score: object"),
        ({"preprocessing": text(b"{")}, r"cannot be used \(preprocessing: \{\)"),
        ({"preprocessing": text(b"3")}, r"cannot be used \(preprocessing: 3\)"),
        ({"preprocessing": text(b"[" * 10**5)}, r"cannot be used \(preprocessing: \[\["),
        ({"preprocessing": text(b'{"frame_stack": "\\u001b[1m"}')}, r"--frame_stack=\?\[1m cannot"),
        ({"preprocessing": text(b'{"action_repeat": 1e99}')}, r"--action_repeat=1e\+99 cannot"),
        ({"preprocessing": text(b'{"protocol": []}')}, r"--protocol=\[\] cannot be used"),
    ],
)
def test_metadata_of_any_type_is_one_sentence(config_of, facts, said):
    with pytest.raises(ConfigError, match=said) as error:
        make_environment(config_of(**{"game": text(b"CartPole-v1")} | facts), num_envs=1, seed=0)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


def test_escape_sequences_in_metadata_are_not_printed(capsys):
    about = {"score": np.float32(3), "score_protocol": "\x1b[2Jno-op"}
    play_module._print_summary([1.0], [0.1], about)
    assert capsys.readouterr().out.endswith("score in its run: 3 (?[2Jno-op)\n")


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (None, r"answers 'actions' as float64 \[0\]"),
        (np.float32([1.0]), r"answers 'actions' as float32 \[1\]"),
        (np.int32([[1]]), r"answers 'actions' as int32 \[1, 1\]"),
        (np.int32([-1]), "chose action -1, but the environment has 2"),
        (np.int64([2**40]), "chose action 1099511627776, but the environment has 2"),
    ],
)
def test_actions_of_any_kind_are_one_sentence(models, monkeypatch, actions, said):
    policy = SavedModelPolicy(models["wobbly"])
    answer = {} if actions is None else {"actions": actions}
    monkeypatch.setattr(policy, "predict", lambda inputs, signature: answer)
    with pytest.raises(ServingError, match=said):
        games(policy, CARTPOLE, episodes=1)


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_video(models, tmp_path, suffix, run_play):
    path = tmp_path / "new" / f"game.{suffix}"
    arguments = [f"--model_dir={models['wobbly']}", f"--out={path}", "--episodes=1"]
    result = run_play(*arguments, "--environment=CartPole-v1")
    assert result.status == 0, result.stderr
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (frame := capture.read()[1]) is not None:
        frames.append(frame)
    assert frames[0].shape == (420, 630, 3)
    steps = int(re.search(r"(\d+) steps", result.stdout)[1])
    # A GIF merges equal screens.
    assert len(frames) == steps if suffix == "mp4" else 2 <= len(frames) <= steps
    assert f"video: {path}" in result.stdout
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_video_that_cannot_be_written_is_one_sentence(tmp_path, run_play):
    result = run_play("--server=localhost:1", "--game=qbert", f"--out={tmp_path}/game.avi")
    assert result.status != 0
    assert result.stderr == f"rainbow_tf: {tmp_path}/game.avi must end in .mp4 or .gif.\n"


@pytest.mark.parametrize("kind", ["grpc", "rest", "in_process"])
def test_command(server, models, kind, tmp_path, monkeypatch, run_play):
    monkeypatch.chdir(tmp_path)
    where = {
        "grpc": [f"--server={server.address}", "--environment=CartPole-v1", "--model=wobbly"],
        "rest": [f"--server={server.url}", "--environment=CartPole-v1", "--model=wobbly"],
        "in_process": [f"--model_dir={models['wobbly']}"],
    }[kind]
    result = run_play(*where, "--episodes=3", "--seed=5")
    assert result.status == 0, result.stderr
    scores = [float(score) for score in re.findall(r"episode \d/3: score (\d+)", result.stdout)]
    expected = games(SavedModelPolicy(models["wobbly"]), CARTPOLE, episodes=3)
    assert scores == [episode.score for episode in expected]
    assert f"mean score {np.mean(scores):.1f}" in result.stdout
    count, *latencies = re.search(
        r"latency of (\d+) requests: p50 (\S+) ms, p90 (\S+) ms, p99 (\S+) ms", result.stdout
    ).groups()
    assert int(count) == sum(episode.length for episode in expected)
    assert 0 < float(latencies[0]) <= float(latencies[1]) <= float(latencies[2])
    for line in result.stderr.replace("\r", "\n").splitlines():
        assert "step/s" in line or not line.strip(), line
    assert not list(tmp_path.iterdir())


def test_the_model_is_named_after_the_game(server, run_play):
    result = run_play(
        f"--server={server.url.removeprefix('http://')}",
        "--rest",
        "--environment=CartPole-v1",
        "--episodes=1",
    )
    assert result.status == 0, result.stderr
    assert "score 500," in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["--server", "--model_dir"]),
        (["--server=localhost:1", "--model_dir=models"], ["either --server", "--model_dir"]),
        (["--server=localhost:1"], ["--server=localhost:1", "--game"]),
        (["--server=localhost:1", "--game=qbertt"], ["--game=qbertt", "qbert?"]),
        (
            ["--server=http://localhost:1", "--game=qbert", "--retry=False"],
            ["No server answers", "http://localhost:1", "refused"],
        ),
        (
            ["--server=localhost:1", "--game=qbert", "--timeout=0.3"],
            ["No server answers", "localhost:1"],
        ),
        (["--model_dir=nowhere"], ["--model_dir=nowhere", "no SavedModel"]),
        (["qbert"], ["'qbert' is not a flag"]),
    ],
)
def test_bad_input_is_one_sentence(arguments, named, tmp_path, monkeypatch, run_play):
    monkeypatch.chdir(tmp_path)
    result = run_play(*arguments)
    assert result.status != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr


def test_a_server_that_fails_during_a_game_is_one_sentence(server, run_play):
    fault = StatusError(grpc.StatusCode.INTERNAL, "out of luck")
    server.faults += [lambda: None] * 20 + [fault]
    result = run_play(f"--server={server.url}", "--environment=CartPole-v1")
    assert result.status != 0
    assert "Traceback" not in result.stderr
    assert re.fullmatch(r"rainbow_tf: .*out of luck.*\.", result.stderr.splitlines()[-1])


def test_missing_model_is_one_sentence(server, run_play):
    result = run_play(f"--server={server.url}", "--game=pong")
    assert result.status != 0
    assert "has no model 'pong'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_help_shows_every_setting():
    command = [sys.executable, "-m", "rainbow_tf.export.play", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    for flag in ("--game", "--environment", "--protocol", "--server", "--alpha", "--out"):
        assert f"{flag}:" in result.stdout
    assert "only a model of someone you trust" in result.stdout
