"""Start files: action sequences from a reset that were recorded, and replay exactly.

A file is JSON: the recorder's settings, and trajectories with who played them, the actions, one
letter each, and a checksum of the RAM every second of play and at the end.
"""

import dataclasses
import hashlib
import json
import math
import string
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.starts.emulator import Emulator, rom_checksum

ORIGINS = ("human", "policy", "random")
INITIAL_SHARE = 0.5  # of a trajectory: its end may be a game that is all but lost
_FORMAT = 1
_LETTERS = string.ascii_lowercase[:18]  # of the emulator's actions 0 to 17
_FRAMES_PER_SECOND = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecorderSettings:
    """What a replay must set as the recorder did."""

    game: str
    rom_sha256: str
    ale_py: str
    seed: int
    action_repeat: int
    sticky_action_probability: float
    action_set: str

    @property
    def mark_actions(self) -> int:
        """Actions between checksums."""
        return max(1, _FRAMES_PER_SECOND // self.action_repeat)


def recorder_settings(game: str, *, action_repeat: int, seed: int) -> RecorderSettings:
    """The settings of a recorder that starts now."""
    return RecorderSettings(
        game=game,
        rom_sha256=rom_checksum(game),
        ale_py=ale_py.__version__,
        seed=seed,
        action_repeat=action_repeat,
        sticky_action_probability=0.0,
        action_set="minimal",
    )


class Trajectory(NamedTuple):
    """A game from its reset to before its end."""

    origin: str
    actions: tuple[int, ...]
    checksums: tuple[str, ...]  # of the RAM after every `mark_actions`, and at the end


class StartPoint(NamedTuple):
    """A checksum's place in a trajectory."""

    trajectory: int
    actions: int
    frames: int

    def __str__(self) -> str:
        return f"{self.trajectory}@{self.frames}"


class StartFile(NamedTuple):
    """What a start file holds, and where it was read."""

    path: Path
    settings: RecorderSettings
    trajectories: list[Trajectory]

    @property
    def origin(self) -> str:
        """Who played: human only if nothing in it was played by a program."""
        origins = {trajectory.origin for trajectory in self.trajectories}
        if origins == {"human"}:
            return "human"
        return "policy" if "policy" in origins else "random"


def text_of(settings: RecorderSettings, trajectories: Sequence[Trajectory]) -> str:
    """The text of a start file."""
    body = {
        "format": _FORMAT,
        "settings": dataclasses.asdict(settings),
        "trajectories": [
            {
                "origin": trajectory.origin,
                "actions": "".join(_LETTERS[action] for action in trajectory.actions),
                "checksums": list(trajectory.checksums),
            }
            for trajectory in trajectories
        ],
    }
    return json.dumps({"sha256": _checksum(body), "body": body}, indent=1) + "\n"


def read(path: Path) -> StartFile:
    """A start file that is whole; nothing in it can run code."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"The start file {path} cannot be read ({error.strerror}); record one with "
            "python -m rainbow_tf.record_starts."
        ) from error
    except ValueError as error:
        raise _unusable(path, "it is not JSON") from error
    if not isinstance(content, dict) or not isinstance(content.get("body"), dict):
        raise _unusable(path, "it is not a start file")
    body = content["body"]
    if body.get("format") != _FORMAT:
        raise _unusable(path, f"it has format {body.get('format')}, this version reads {_FORMAT}")
    if content.get("sha256") != _checksum(body):
        raise _unusable(path, "it was changed after it was recorded: its checksum differs")
    try:
        settings = RecorderSettings(**body["settings"])
        _check_types(settings)
        trajectories = [_trajectory(settings, fields) for fields in body["trajectories"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(path, f"it is incomplete: {error}") from error
    return StartFile(path, settings, trajectories)


def _check_types(settings: RecorderSettings) -> None:
    for name, kind in typing.get_type_hints(RecorderSettings).items():
        value = getattr(settings, name)
        if not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{name} is {value!r}")
    if not 0 <= settings.seed < 2**31 or settings.action_repeat < 1:
        raise ValueError("its seed or action_repeat is out of range")


def _trajectory(settings: RecorderSettings, fields: dict[str, Any]) -> Trajectory:
    if fields["origin"] not in ORIGINS:
        raise ValueError(f"the origin {fields['origin']} is unknown")
    actions = tuple(_LETTERS.index(letter) for letter in fields["actions"])
    checksums = tuple(fields["checksums"])
    if not actions or len(checksums) != math.ceil(len(actions) / settings.mark_actions):
        raise ValueError("checksums are missing")
    return Trajectory(fields["origin"], actions, checksums)


def check_fits(starts: StartFile, config: Config) -> None:
    """Refuses a file that was recorded under other settings than a run's."""
    settings = starts.settings
    if config.game is None:
        raise ConfigError(
            f"--starts=human is for Atari games, and the run plays {config.environment}; give "
            "--starts=noop."
        )
    if settings.game != config.game:
        raise ConfigError(
            f"The start file {starts.path} is of {settings.game}, and the run plays "
            f"{config.game}; give another --start_file."
        )
    if settings.rom_sha256 != rom_checksum(config.game):
        raise ConfigError(
            f"The start file {starts.path} was recorded with another ROM of {config.game} than the "
            "one installed; record it again with python -m rainbow_tf.record_starts."
        )
    if settings.sticky_action_probability != 0 or config.sticky_action_probability != 0:
        culprit = f"The start file {starts.path}"
        if settings.sticky_action_probability == 0:
            culprit = f"The run, with --protocol={config.protocol},"
        raise ConfigError(
            f"{culprit} has sticky actions, which do not replay; human starts need none."
        )
    if config.action_repeat % settings.action_repeat:
        raise ConfigError(
            f"The start file {starts.path} was recorded with action_repeat="
            f"{settings.action_repeat}, which does not divide the run's {config.action_repeat}; "
            f"record it with --action_repeat={config.action_repeat}."
        )
    if not starts.trajectories:
        raise _unusable(starts.path, "it holds no trajectory yet")


def sample_points(starts: StartFile, number: int, *, seed: int) -> list[StartPoint]:
    """Points at random: a trajectory, then a second of its initial portion.

    The first of them do not depend on how many are asked for.
    """
    rng = np.random.default_rng(seed)
    portions = [_initial_points(starts, i) for i in range(len(starts.trajectories))]
    portions = [points for points in portions if points]
    if not portions:
        raise _unusable(starts.path, "its trajectories are all too short to start from")
    chosen = []
    for _ in range(number):
        points = portions[rng.integers(len(portions))]
        chosen.append(points[rng.integers(len(points))])
    return chosen


def _initial_points(starts: StartFile, trajectory: int) -> list[StartPoint]:
    most = INITIAL_SHARE * len(starts.trajectories[trajectory].actions)
    return [point for point in _points(starts, trajectory) if point.actions <= most]


def _points(starts: StartFile, trajectory: int) -> list[StartPoint]:
    """The points of a trajectory whose RAM is known."""
    settings = starts.settings
    length = len(starts.trajectories[trajectory].actions)
    ends = [*range(settings.mark_actions, length, settings.mark_actions), length]
    return [StartPoint(trajectory, end, end * settings.action_repeat) for end in ends]


def last_point(starts: StartFile, trajectory: int) -> StartPoint:
    """The end of a trajectory."""
    return _points(starts, trajectory)[-1]


def replay(
    starts: StartFile, point: StartPoint, *, action_repeat: int, frame_stack: int
) -> Emulator:
    """A new emulator at a point, its RAM checked on the way and there."""
    settings = starts.settings
    _, actions, checksums = starts.trajectories[point.trajectory]
    # Fresh: what a reset leaves in place is not the recorder's.
    emulator = Emulator(
        settings.game, seed=settings.seed, action_repeat=action_repeat, frame_stack=frame_stack
    )
    expected = iter(checksums)
    for count, action in enumerate(actions[: point.actions], start=1):
        emulator.hold(action, settings.action_repeat)
        is_mark = count % settings.mark_actions == 0 or count == len(actions)
        if emulator.is_over or (is_mark and emulator.checksum() != next(expected)):
            raise ConfigError(
                f"Trajectory {point.trajectory} of {starts.path} does not replay: the game differs "
                f"at frame {count * settings.action_repeat} (recorded with ale-py "
                f"{settings.ale_py}, this is {ale_py.__version__}); record it again with "
                "python -m rainbow_tf.record_starts."
            )
    emulator.look()
    return emulator


class Recording:
    """A trajectory as it is played; the step that ends the game is left out."""

    def __init__(self, settings: RecorderSettings, *, frame_stack: int = 1):
        self._settings = settings
        self.emulator = Emulator(
            settings.game,
            seed=settings.seed,
            action_repeat=settings.action_repeat,
            frame_stack=frame_stack,
        )
        self._actions: list[int] = []
        self._checksums: list[str] = []
        self._last = ""

    @property
    def frames(self) -> int:
        """Frames recorded."""
        return len(self._actions) * self._settings.action_repeat

    def step(self, action: int) -> bool:
        """Plays an action; tells whether the game goes on."""
        self.emulator.step(action)
        if self.emulator.is_over:
            return False
        self._actions.append(action)
        self._last = self.emulator.checksum()
        if len(self._actions) % self._settings.mark_actions == 0:
            self._checksums.append(self._last)
        return True

    def trajectory(self, origin: str) -> Trajectory:
        """What was recorded so far; there must be an action."""
        is_marked = len(self._actions) % self._settings.mark_actions == 0
        checksums = self._checksums if is_marked else [*self._checksums, self._last]
        return Trajectory(origin, tuple(self._actions), tuple(checksums))


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The start file {path} cannot be used, {reason}; give another --start_file or record one "
        "with python -m rainbow_tf.record_starts."
    )
