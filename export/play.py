"""Plays games with an exported policy.

python -m rainbow_tf.export.play --server=localhost:8500 --game=qbert --episodes=5
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from tqdm import tqdm

from rainbow_tf.command import Command, define_settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import Environment, make_environment
from rainbow_tf.export.client import (
    DEFAULT_SIGNATURE,
    GrpcPolicy,
    Policy,
    RestPolicy,
    SavedModelPolicy,
    ServingError,
    TensorSpec,
    newest_version,
)
from rainbow_tf.games import GAMES
from rainbow_tf.process import load_tensorflow
from rainbow_tf.video.encoder import SMALL, check_video, enlarged, frames_per_second, video

# What a model may say of the environment it was trained in, and a flag may say otherwise.
_RULES = ("protocol", "action_repeat", "frame_stack", "noop_max", "max_episode_frames")
_SETTINGS = ("game", "environment", "seed", *_RULES)


class Episode(NamedTuple):
    """A whole game: its true score and its length in agent steps."""

    score: float
    length: int


class Player:
    """Asks a policy for the actions in an environment, and notes how long each answer took."""

    def __init__(self, policy: Policy, environment: Environment, alpha: float | None = None):
        self._policy = policy
        self._num_actions = environment.spec.num_actions
        self._alpha = alpha
        self._signature = DEFAULT_SIGNATURE if alpha is None else "risk"
        self._observations = policy.signature(self._signature).inputs.get("observations")
        if self._observations is None:
            raise ServingError(f"{policy.name} takes no 'observations'; export it again.")
        self.seconds: list[float] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Actions [E] for observations [E, S, *frame]."""
        assert self._observations is not None
        inputs = {"observations": as_input(observation, self._observations)}
        if self._alpha is not None:
            inputs["alpha"] = np.full(len(observation), self._alpha, np.float32)
        started = time.perf_counter()
        actions = self._policy.predict(inputs, self._signature)["actions"]
        self.seconds.append(time.perf_counter() - started)
        if not 0 <= actions.min() <= actions.max() < self._num_actions:
            raise ServingError(
                f"{self._policy.name} chose action {actions.max()}, but the environment has "
                f"{self._num_actions}; give the --game or --environment that it was trained on."
            )
        return actions


def as_input(observation: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Observations [E, S, *frame] in the layout and type of a signature."""
    lanes, _, *frame = observation.shape
    flat = observation.reshape(lanes, -1)
    layouts = [flat, observation]
    if len(frame) > 1:  # channels last: [E, H, W, S * C]
        layouts.append(np.moveaxis(observation, 1, 3).reshape(lanes, *frame[:2], -1))
    for layout in layouts:
        if layout.shape[1:] == spec.shape[1:]:
            # Planes of bools mean the same as numbers; nothing else does.
            is_same = layout.dtype in (spec.dtype, np.bool_)
            return layout.astype(spec.dtype, copy=False) if is_same else layout
    raise ServingError(
        f"The model takes {spec}, but the environment gives {TensorSpec(flat.dtype, tuple(frame))} "
        f"in stacks of {observation.shape[1]}; give the --game or --environment and the "
        "--frame_stack that it was trained with."
    )


def play(
    player: Player, environment: Environment, *, episodes: int, watch: Callable[[float], None]
) -> Iterator[Episode]:
    """Plays whole episodes in the first lane; `watch` gets the score at every step."""
    output = environment.reset()
    for _ in range(episodes):
        score, length = 0.0, 0
        while not output.episode_over[0]:
            watch(score)
            output = environment.step(player.act(output.observation))
            score += float(output.reward[0])
            length += 1
        yield Episode(score, length)
        output = environment.step(np.zeros(1, np.int32))  # a restart, whatever the action


def run(values: flags.FlagValues) -> None:
    """Finds the policy and its environment, plays, and prints scores and latencies."""
    given: dict[str, Any] = {name: values[name].value for name in _SETTINGS if values[name].present}
    if "game" in given or "environment" in given:
        Config(**given)  # refused before TensorFlow is loaded
    if values.video is not None:
        check_video(Path(values.video))
    policy = _find_policy(values, given)
    policy.signature()
    about = _ask_about(policy)
    config = _environment_config(policy, about, given)
    environment = make_environment(
        config,
        num_envs=1,
        seed=config.seed,
        training=False,
        screens=values.video is not None,
    )
    player = Player(policy, environment, values.alpha)
    print(f"{config.game or config.environment} with {policy.name[0].lower()}{policy.name[1:]}")
    bar = tqdm(unit="step", file=sys.stderr, mininterval=0.5 if sys.stderr.isatty() else 30.0)

    def watch(score: float) -> None:
        bar.update()
        bar.set_postfix_str(f"score {score:g}", refresh=False)
        if writer is not None:
            writer.add(_even(enlarged(environment.screen(), height=SMALL, width=2 * SMALL)))

    scores = []
    with contextlib.ExitStack() as ends:
        for part in (policy, environment, bar):
            ends.callback(part.close)
        writer = None
        if values.video is not None:
            rate = frames_per_second(config)
            writer = ends.enter_context(video(Path(values.video), frames_per_second=rate))
        for episode in play(player, environment, episodes=values.episodes, watch=watch):
            scores.append(episode.score)
            bar.write(
                f"episode {len(scores)}/{values.episodes}: score {episode.score:g}, "
                f"{episode.length:,} steps",
                file=sys.stdout,
            )
    print(_summary(scores, player.seconds))
    if "score" in about and np.isfinite(about["score"]).all():
        protocol = f" ({_text(about['score_protocol'])})" if "score_protocol" in about else ""
        print(f"score in its run: {float(np.ravel(about['score'])[0]):g}{protocol}")
    if values.video is not None:
        print(f"video: {values.video}")


def _find_policy(values: flags.FlagValues, given: dict[str, Any]) -> Policy:
    server, model_dir = values.server, values.model_dir
    if (server is None) == (model_dir is None):
        raise ConfigError(
            "Give either --server, such as --server=localhost:8500, or --model_dir, the folder "
            "of an exported model."
        )
    if model_dir is not None:
        version = newest_version(Path(model_dir))
        load_tensorflow()
        return SavedModelPolicy(version)
    model = values.model
    if model is None:
        if "game" not in given and "environment" not in given:
            raise ConfigError(f"--server={server} needs --game, --environment or --model.")
        model = Config(**given).environment_name
    is_url = server.startswith(("http://", "https://"))
    kwargs = {"model": model, "timeout": values.timeout, "retries": values.retries}
    if is_url or values.rest:
        return RestPolicy(server if is_url else f"http://{server}", **kwargs)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # no notes when a video starts a process
    load_tensorflow()
    return GrpcPolicy(server, **kwargs)


def _ask_about(policy: Policy) -> dict[str, np.ndarray]:
    """What the model says of itself; a model that another program wrote may say nothing."""
    try:
        return policy.predict({"query": np.zeros(1, np.int32)}, "metadata")
    except ServingError:
        return {}


def _environment_config(
    policy: Policy, about: dict[str, np.ndarray], given: dict[str, Any]
) -> Config:
    """The flags, and the model's own words for what they leave open."""
    settings: dict[str, Any] = {}
    if "preprocessing" in about:
        said = json.loads(_text(about["preprocessing"]))
        settings = {name: said[name] for name in _RULES if name in said}
    if "game" in about:
        game = _text(about["game"])
        wanted = given.get("game") or given.get("environment")
        if wanted not in (None, game):
            flag = "game" if "game" in given else "environment"
            raise ConfigError(f"{policy.name} plays {game}, not --{flag}={wanted}.")
        settings["game" if game in GAMES else "environment"] = game
    return Config(**settings | given)


def _summary(scores: list[float], seconds: list[float]) -> str:
    low, middle, high = np.percentile(1e3 * np.array(seconds), [50, 90, 99])
    return (
        f"mean score {np.mean(scores):.1f}, lowest {min(scores):g}, highest {max(scores):g}\n"
        f"latency of {len(seconds):,} requests: p50 {low:.2f} ms, p90 {middle:.2f} ms, "
        f"p99 {high:.2f} ms"
    )


def _even(picture: np.ndarray) -> np.ndarray:
    height, width, _ = picture.shape
    return picture[: height - height % 2, : width - width % 2]


def _text(value: np.ndarray) -> str:
    return np.ravel(value)[0].decode()


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    define_settings(values, names=_SETTINGS)
    flags.DEFINE_string(
        "server",
        None,
        "TensorFlow Serving: host:port for gRPC, http://host:port for REST.",
        flag_values=values,
    )
    flags.DEFINE_bool("rest", False, "Ask host:port over REST.", flag_values=values)
    flags.DEFINE_string(
        "model", None, "The model's name at the server; by default the game's.", flag_values=values
    )
    flags.DEFINE_string(
        "model_dir",
        None,
        "Folder of an exported model, to play with no server.",
        flag_values=values,
    )
    flags.DEFINE_integer("episodes", 5, "Games to play.", lower_bound=1, flag_values=values)
    flags.DEFINE_float(
        "alpha",
        None,
        "Play the risk policy: maximise the mean of this share of the worst returns.",
        lower_bound=1e-3,
        upper_bound=1,
        flag_values=values,
    )
    flags.DEFINE_float(
        "timeout", 10.0, "Seconds to wait for an answer.", lower_bound=1e-3, flag_values=values
    )
    flags.DEFINE_integer(
        "retries",
        5,
        "Further tries when no server answers, with growing waits.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "video",
        None,
        "Write what is played to this .mp4 file, or the first minute to this .gif.",
        flag_values=values,
    )


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="settings look like --game=qbert",
    interrupted="interrupted.",
)

if __name__ == "__main__":
    COMMAND.main()
