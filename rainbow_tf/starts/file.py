"""Start files: recorded action sequences from a reset, which replay exactly.

A file is JSON: the recorder's settings and the trajectories. Each has its player, its actions (one
letter each), and a checksum of the RAM for every second of play and at the end.
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
INITIAL_SHARE = 0.5  # of a trajectory; near its end the game may be almost lost
_FORMAT = 1
_LETTERS = string.ascii_lowercase[:18]  # for ALE's actions 0 to 17
_FRAMES_PER_SECOND = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecorderSettings:
    """Settings that a replay must share with its recording."""

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
    """Settings for a new recording."""
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
    """A game from its reset to a point before its end."""

    origin: str
    actions: tuple[int, ...]
    checksums: tuple[str, ...]  # of the RAM, every `mark_actions` and at the end


class StartPoint(NamedTuple):
    """A position in a trajectory that has a checksum."""

    trajectory: int
    actions: int
    frames: int

    def __str__(self) -> str:
        return f"{self.trajectory}@{self.frames}"


class StartFile(NamedTuple):
    """The content and path of a start file."""

    path: Path
    settings: RecorderSettings
    trajectories: list[Trajectory]

    @property
    def origin(self) -> str:
        """The player; human only if people played all trajectories."""
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
    """Reads and validates a start file; nothing in it can run code."""
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
        raise _unusable(path, "it was changed after recording: its checksum differs")
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
    """Rejects a file whose recording does not fit the settings of a run."""
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
            f"The start file {starts.path} was recorded with another ROM of {config.game} than is "
            "installed; record it again with python -m rainbow_tf.record_starts."
        )
    if settings.sticky_action_probability != 0 or config.sticky_action_probability != 0:
        culprit = f"The start file {starts.path}"
        if settings.sticky_action_probability == 0:
            culprit = f"The run, with --protocol={config.protocol},"
        raise ConfigError(
            f"{culprit} has sticky actions, which do not replay; human starts work only without."
        )
    if config.action_repeat % settings.action_repeat:
        raise ConfigError(
            f"The start file {starts.path} was recorded with action_repeat="
            f"{settings.action_repeat}, which does not divide the run's {config.action_repeat}; "
            f"record it with --action_repeat={config.action_repeat}."
        )
    if not starts.trajectories:
        raise _unusable(starts.path, "it has no trajectory yet")


def sample_points(starts: StartFile, number: int, *, seed: int) -> list[StartPoint]:
    """Random points: a trajectory, then a second of its initial share.

    The first points are the same for any `number`.
    """
    rng = np.random.default_rng(seed)
    candidates = []
    for i, trajectory in enumerate(starts.trajectories):
        most = INITIAL_SHARE * len(trajectory.actions)
        if initial := [point for point in points(starts, i) if point.actions <= most]:
            candidates.append(initial)
    if not candidates:
        raise _unusable(starts.path, "its trajectories are all too short to start from")
    chosen = []
    for _ in range(number):
        initial = candidates[rng.integers(len(candidates))]
        chosen.append(initial[rng.integers(len(initial))])
    return chosen


def points(starts: StartFile, trajectory: int) -> list[StartPoint]:
    """The points of a trajectory that have a checksum; the last one is its end."""
    settings = starts.settings
    length = len(starts.trajectories[trajectory].actions)
    ends = [*range(settings.mark_actions, length, settings.mark_actions), length]
    return [StartPoint(trajectory, end, end * settings.action_repeat) for end in ends]


def replay(
    starts: StartFile, point: StartPoint, *, action_repeat: int, frame_stack: int
) -> Emulator:
    """A new emulator at the point; the RAM is checked at every checksum on the way."""
    settings = starts.settings
    _, actions, checksums = starts.trajectories[point.trajectory]
    # A new one: a reset does not restore all of an emulator's state.
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
    """A trajectory while it is played; the step that ends the game is left out."""

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
        """Plays an action; returns whether the game continues."""
        self.emulator.step(action)
        if self.emulator.is_over:
            return False
        self._actions.append(action)
        self._last = self.emulator.checksum()
        if len(self._actions) % self._settings.mark_actions == 0:
            self._checksums.append(self._last)
        return True

    def trajectory(self, origin: str) -> Trajectory:
        """The trajectory so far; needs at least one action."""
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
