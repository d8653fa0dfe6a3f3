"""Plays with an exported policy: python -m rainbow_tf.export.play --model_dir=models/qbert.

A SavedModel is a program: give --model_dir only a model of someone you trust. It is not loaded if
its graph holds operations that reach files or other programs. A server's answers are checked.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from rainbow_tf.command import Command, Flag
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import progress_bar
from rainbow_tf.environments.base import Environment, make_environment
from rainbow_tf.export import client
from rainbow_tf.export.client import DEFAULT_SIGNATURE, Policy, ServingError, TensorSpec
from rainbow_tf.export.load import SERVER_FLAGS, connect, percentiles
from rainbow_tf.files import parse_json
from rainbow_tf.games import GAMES
from rainbow_tf.process import load_tensorflow, one_line
from rainbow_tf.types import Episode
from rainbow_tf.video.encoder import SMALL, check_video, enlarged, frames_per_second, video

# Settings that a model's metadata gives and a flag can override.
_RULES = ("protocol", "action_repeat", "frame_stack", "noop_max", "max_episode_frames")
# What is read of the metadata, by NumPy's kind of it; O are bytes.
_FACTS = {"game": "O", "preprocessing": "O", "score": "f", "score_protocol": "O"}
_SETTINGS = ("game", "environment", "seed", *_RULES)


class Player:
    """Asks a policy for the actions in an environment, and notes how long each answer took."""

    def __init__(self, policy: Policy, environment: Environment, alpha: float | None = None):
        self._policy = policy
        self._num_actions = environment.spec.num_actions
        self._alpha = alpha
        self._signature = DEFAULT_SIGNATURE if alpha is None else "risk"
        specs = policy.signature(self._signature).inputs
        if "observations" not in specs:
            raise ServingError(f"{policy.name} takes no 'observations'; export it again.")
        self._spec = specs["observations"]
        self.seconds: list[float] = []

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Actions [E] for observations [E, S, *frame]."""
        inputs = {"observations": as_input(observation, self._spec)}
        if self._alpha is not None:
            inputs["alpha"] = np.full(len(observation), self._alpha, np.float32)
        started = time.perf_counter()
        actions = self._policy.predict(inputs, self._signature).get("actions", np.empty(0))
        self.seconds.append(time.perf_counter() - started)
        if actions.shape != (len(observation),) or actions.dtype.kind not in "iu":
            found = TensorSpec(actions.dtype, actions.shape)
            raise ServingError(
                f"{self._policy.name} answers 'actions' as {found}, not as integers, one for each "
                "observation; export it again."
            )
        if not 0 <= actions.min() <= actions.max() < self._num_actions:
            raise ServingError(
                f"{self._policy.name} chose action {actions.max()}, but the environment has "
                f"{self._num_actions}; give the --game or --environment that it was trained on."
            )
        return actions


def as_input(observation: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Observations [E, S, *frame] in the layout and type of a signature."""
    lanes, stack, *frame = observation.shape
    layouts = [observation.reshape(lanes, -1), observation]
    if len(frame) > 1:  # channels last: [E, H, W, S * C]
        layouts.append(np.moveaxis(observation, 1, 3).reshape(lanes, *frame[:2], -1))
    for layout in layouts:
        if layout.shape[1:] == spec.shape[1:]:
            # Planes of bools mean the same as numbers; nothing else does.
            return layout.astype(spec.dtype, copy=False) if layout.dtype == bool else layout
    found = TensorSpec(observation.dtype, tuple(frame))
    raise ServingError(
        f"The model takes {spec}, but the environment gives {found} in stacks of {stack}; give "
        "the --game or --environment and the --frame_stack that it was trained with."
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
    # Wrong settings are refused here, before TensorFlow is loaded.
    wanted = Config(**given) if "game" in given or "environment" in given else None
    path = None if values.out is None else Path(values.out)
    if path is not None:
        check_video(path)
    with contextlib.closing(_find_policy(values, wanted)) as policy:
        about = _ask_about(policy)
        config = _environment_config(policy, about, given)
        scores, seconds = _play(policy, config, values, path)
    _print_summary(scores, seconds, about)
    if path is not None:
        print(f"video: {path}")


def _play(
    policy: Policy, config: Config, values: flags.FlagValues, path: Path | None
) -> tuple[list[float], list[float]]:
    """Plays, prints and records; the scores of the episodes and the seconds of the answers."""
    environment = make_environment(config, num_envs=1, seed=config.seed, screens=path is not None)
    player = Player(policy, environment, values.alpha)
    print(f"{config.game or config.environment} with {policy.name[0].lower()}{policy.name[1:]}")
    bar = progress_bar(unit="step")
    recording: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if path is not None:
        recording = video(path, frames_per_second=frames_per_second(config))

    def watch(score: float) -> None:
        bar.update()
        bar.set_postfix_str(f"score {score:g}", refresh=False)
        if writer is not None:
            picture = enlarged(environment.screen(), height=SMALL, width=2 * SMALL)
            height, width = (size - size % 2 for size in picture.shape[:2])  # must be even
            writer.add(picture[:height, :width])

    scores = []
    with contextlib.closing(environment), bar, recording as writer:
        for score, length in play(player, environment, episodes=values.episodes, watch=watch):
            scores.append(score)
            text = f"episode {len(scores)}/{values.episodes}: score {score:g}, {length:,} steps"
            bar.write(text, file=sys.stdout)
    return scores, player.seconds


def _print_summary(scores: list[float], seconds: list[float], about: dict[str, Any]) -> None:
    print(f"mean score {np.mean(scores):.1f}, lowest {min(scores):g}, highest {max(scores):g}")
    print(f"latency of {len(seconds):,} requests: {percentiles(seconds)}")
    if np.isfinite(about.get("score", np.nan)):
        protocol = f" ({one_line(about['score_protocol'])})" if "score_protocol" in about else ""
        print(f"score in its run: {about['score']:g}{protocol}")


def _find_policy(values: flags.FlagValues, wanted: Config | None) -> Policy:
    server, model = values.server, values.model
    if (server is None) == (values.model_dir is None):
        raise ConfigError(
            "Give either --server, such as --server=localhost:8500, or --model_dir, the folder "
            "of an exported model."
        )
    if server is None:
        version = client.newest_version(Path(values.model_dir))
        load_tensorflow()
        return client.SavedModelPolicy(version)
    if model is None:
        if wanted is None:
            raise ConfigError(f"--server={server} needs --game, --environment or --model.")
        model = wanted.environment_name
    return connect(values, model)


def _ask_about(policy: Policy) -> dict[str, Any]:
    """The model's metadata; none if another program wrote the model."""
    policy.signature()  # raises if no server answers
    try:
        policy.signature("metadata")
    except ServingError:
        return {}
    answer = policy.predict({"query": np.zeros(1, np.int32)}, "metadata")
    facts = {}
    for name, kind in _FACTS.items():
        if name in answer:
            value = np.ravel(answer[name])[:1]
            if value.dtype.kind != kind or not value.size:
                raise _metadata_error(policy, name, TensorSpec(value.dtype, answer[name].shape))
            facts[name] = value[0]
    return {k: v.decode(errors="replace") if _FACTS[k] == "O" else v for k, v in facts.items()}


def _metadata_error(policy: Policy, name: str, found: object) -> ServingError:
    return ServingError(
        f"{policy.name} has metadata that cannot be used ({name}: {one_line(found)}); export it "
        "again."
    )


def _environment_config(policy: Policy, about: dict[str, Any], given: dict[str, Any]) -> Config:
    """The flags, and the model's metadata for what they leave open."""
    text = about.get("preprocessing", "{}")
    try:
        said = parse_json(text, dict[str, Any])
    except ValueError as error:
        raise _metadata_error(policy, "preprocessing", text) from error
    settings = {name: said[name] for name in _RULES if name in said}
    if "game" in about:
        game = one_line(about["game"])
        flag = "game" if "game" in given else "environment"
        if given.get(flag, game) != game:
            raise ConfigError(f"{policy.name} plays {game}, not --{flag}={given[flag]}.")
        if ":" in game and not given.keys() & {"game", "environment"}:
            raise ConfigError(
                f"{policy.name} plays {game}, which imports the module {game.partition(':')[0]}; "
                f"give --environment={game} if you trust it."
            )
        settings["game" if game in GAMES else "environment"] = game
    try:
        return Config(**settings | given)
    except ConfigError as error:  # may quote the metadata
        raise ConfigError(f"{one_line(error)}.") from error


COMMAND = Command(
    settings=_SETTINGS,
    options=SERVER_FLAGS
    | {
        "model_dir": Flag(None, "Folder of an exported model, to play with no server."),
        "episodes": Flag(5, "Games to play.", minimum=1),
        "alpha": Flag(
            None,
            "Play the risk policy: maximise the mean of this share of the worst returns.",
            float,
            minimum=1e-3,
            maximum=1,
        ),
        "out": Flag(
            None, "Write what is played to this .mp4 file, or the first minute to this .gif."
        ),
    },
    run=run,
    example="settings look like --game=qbert",
)

if __name__ == "__main__":
    COMMAND.main()
