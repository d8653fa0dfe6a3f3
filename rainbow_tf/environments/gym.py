"""Gymnasium environments with discrete actions: classic control, MinAtar, your own."""

import functools
import inspect
import os
import re
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from rainbow_tf.config import Config, ConfigError, hint
from rainbow_tf.games import GAMES
from rainbow_tf.process import named_object, one_line, optional
from rainbow_tf.types import EnvironmentSpec, StepOutput

_MINATAR_ACTIONS = ("NOOP", "LEFT", "UP", "RIGHT", "DOWN", "FIRE")
# Names of actions as Gymnasium's documentation has them, by class.
_ACTIONS = {
    "CartPoleEnv": ("left", "right"),
    "MountainCarEnv": ("left", "none", "right"),
    "AcrobotEnv": ("torque -1", "torque 0", "torque +1"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
}


class GymEnvironment:
    """E lanes of one environment. A frame is one step, so the frame cap counts steps."""

    def __init__(self, *, config: Config, num_envs: int, seed: int, screens: bool = False) -> None:
        assert config.environment is not None
        _refuse_atari(config.environment)
        if screens:
            # Rendering goes to an array: pygame must not look for a display.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if config.environment.startswith("MinAtar/"):
            _register_minatar()
        self._make = functools.partial(_make_lanes, config, num_envs, screens)
        # Hashed: with consecutive lane seeds, runs 1 and 2 would share most of their lanes.
        self._seeds = (np.random.SeedSequence(seed).generate_state(num_envs) >> 1).tolist()
        self._env = self._make()
        self._is_fresh = True
        self.spec = _make_spec(config, self._env)
        stack_shape = (num_envs, config.stack, *self.spec.frame_shape)
        self._stack = np.zeros(stack_shape, self.spec.frame_dtype)
        self._episode_over = np.zeros(num_envs, bool)

    def reset(self) -> StepOutput:
        """Restarts every lane from the constructor's seed."""
        if not self._is_fresh:
            # A reset does not clear all state: MinAtar, for one, keeps its last action.
            self._env.close()
            self._env = self._make()
        self._is_fresh = False
        try:
            frame, _ = self._env.reset(seed=self._seeds)
        except ValueError as error:
            space = self._env.single_observation_space
            raise ConfigError(
                f"The environment's reset() failed ({one_line(error)}); its observations must be "
                f"in its observation_space, {space}."
            ) from error
        output = StepOutput.first(self._observe(frame, np.ones(len(frame), bool)))
        self._episode_over = output.episode_over
        return output

    def step(self, actions: np.ndarray) -> StepOutput:
        """Steps every lane once; a lane whose episode ended restarts."""
        frame, reward, terminated, truncated, _ = self._env.step(actions + self.spec.first_action)
        is_first, self._episode_over = self._episode_over, terminated | truncated
        return StepOutput(
            observation=self._observe(frame, is_first),
            reward=reward.astype(np.float32),
            terminal=terminated,
            episode_over=self._episode_over,
            is_first=is_first,
        )

    def screen(self) -> np.ndarray:
        """The first lane as its environment renders it."""
        env = self._env.envs[0]
        try:
            screen = np.asarray(env.render())
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(
                f"{env.spec.id if env.spec else 'The environment'} cannot be drawn "
                f"({one_line(error)}); install its rendering dependencies."
            ) from error
        # MinAtar renders floats in [0, 1].
        return screen if screen.dtype == np.uint8 else (255 * screen).astype(np.uint8)

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def _observe(self, frame: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """The stack with the new frame, in a new array: Gymnasium reuses the buffer `frame`."""
        # Not FrameStackObservation: it pads with the lower bound where that is above 0.
        stack = np.empty_like(self._stack)  # [E, S, *frame]
        stack[:, :-1] = self._stack[:, 1:]
        stack[is_first, :-1] = 0
        stack[:, -1] = frame
        self._stack = stack
        return stack


def _refuse_atari(environment: str) -> None:
    """Refuses ids of Atari games, which have other rules, and names the flags for the game."""
    found = re.fullmatch(r"(ALE/)?(\w+?)(NoFrameskip|Deterministic)?-v([045])", environment)
    if found is None:
        return
    game = re.sub(r"(?<!^)(?=[A-Z])", "_", found[2]).lower()
    flags = f"--game={game}" + ("" if found[4] == "4" else " --protocol=sticky")
    if game in GAMES or found[1] is not None:
        raise ConfigError(
            f"--environment={environment} would not follow the paper's Atari rules; give "
            f"{flags if game in GAMES else '--game with one of the 57 games'} instead."
        )


def _make_lanes(config: Config, num_envs: int, screens: bool) -> SyncVectorEnv:
    environment = str(config.environment)
    limited = functools.partial(TimeLimit, max_episode_steps=config.max_episode_frames)
    with warnings.catch_warnings():
        # Warnings meant for authors of environments: old versions, imprecise bounds.
        warnings.simplefilter("ignore")
        try:
            lanes = gymnasium.make_vec(
                _entry(environment),
                num_envs=num_envs,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP, "copy": False},
                wrappers=[limited],
                disable_env_checker=True,
                **({"render_mode": "rgb_array"} if screens else {}),
            )
        except ConfigError:
            raise
        except Exception as error:  # a constructor can raise anything
            problem = f"cannot be created ({one_line(error)}); repair it or"
            way_out = "give another --environment."
            if isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError):
                problem = (
                    f"needs a package that is not installed ({one_line(error)}); install it or"
                )
            elif environment not in gymnasium.registry and isinstance(error, gymnasium.error.Error):
                problem = "is not known to Gymnasium;"
                way_out = "give the id of a registered one, such as --environment=CartPole-v1."
                way_out = hint(environment, gymnasium.registry, way_out, flag="--environment=")
            raise ConfigError(f"--environment={environment} {problem} {way_out}") from error
    assert isinstance(lanes, SyncVectorEnv)
    return lanes


def _entry(environment: str) -> str | EnvSpec:
    """The id of a registered environment, or the entry of one that is a Python object."""
    make = named_object("environment", environment) if ":" in environment else None
    if make is None or environment.partition(":")[2] in gymnasium.registry:
        return environment
    parameters = inspect.signature(make).parameters

    def create(**options: Any) -> gymnasium.Env:
        """Leaves out a render mode that the environment does not take."""
        return make(**{name: value for name, value in options.items() if name in parameters})

    return EnvSpec(environment, entry_point=create)


def _register_minatar() -> None:
    if "MinAtar/Breakout-v1" in gymnasium.registry:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from its plotting packages
        with optional("--environment=MinAtar/...", extra="minatar"):
            import minatar.gym
    minatar.gym.register_envs()


def _make_spec(config: Config, lanes: SyncVectorEnv) -> EnvironmentSpec:
    """The spec of lanes with discrete actions and array observations; refuses others."""
    actions, frame = lanes.single_action_space, lanes.single_observation_space
    flag = f"--environment={config.environment}"
    if not isinstance(actions, spaces.Discrete):
        raise ConfigError(
            f"{flag} has {type(actions).__name__} actions, but Rainbow needs Discrete ones; give "
            "an --environment such as CartPole-v1."
        )
    if not isinstance(frame, spaces.Box):
        raise ConfigError(
            f"{flag} has {type(frame).__name__} observations, but a Box is needed; give another "
            "--environment or wrap it to return an array."
        )
    if len(frame.shape) not in (1, 2, 3):
        raise ConfigError(
            f"{flag} has observations of shape {frame.shape}, but vectors and images are needed; "
            "give another --environment or wrap it to return one."
        )
    keeps_dtype = len(frame.shape) > 1 and frame.dtype in (np.uint8, np.bool_)  # small images
    return EnvironmentSpec(
        frame_shape=frame.shape,
        frame_dtype=np.dtype(frame.dtype if keeps_dtype else np.float32),
        frame_stack=config.stack,
        num_actions=int(actions.n),
        action_meanings=_action_meanings(lanes.envs[0], int(actions.n)),
        first_action=int(actions.start),
    )


def _action_meanings(env: gymnasium.Env, num_actions: int) -> tuple[str, ...]:
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if meanings is not None:
        return tuple(str(meaning) for meaning in meanings())
    if type(env.unwrapped).__module__.startswith("minatar."):
        return tuple(_MINATAR_ACTIONS[action] for action in env.get_wrapper_attr("action_set"))
    numbers = tuple(str(action) for action in range(num_actions))
    return _ACTIONS.get(type(env.unwrapped).__name__, numbers)
