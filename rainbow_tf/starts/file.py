"""Start files: recorded action sequences from a reset, which replay exactly.

A file is JSON: the recorder's settings and the trajectories. Each has its player, its actions (one
letter each), and a checksum of the RAM for every second of play and at the end.
"""

import dataclasses
import hashlib
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import numpy as np

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.files import read_json, record
from rainbow_tf.process import one_line
from rainbow_tf.starts.emulator import Emulator, rom_checksum

ORIGINS = ("human", "policy", "random")
MOST_FRAMES = 1_000_000  # of a trajectory: four hours and a half
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

    def marks(self, length: int) -> list[int]:
        """After how many of `length` actions there is a checksum: every second and at the end."""
        period = max(1, _FRAMES_PER_SECOND // self.action_repeat)
        return [*range(period, length, period), length]


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
    checksums: tuple[str, ...]  # of the RAM, at the `marks`


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
        """Who played; human only if people played all trajectories."""
        origins = {trajectory.origin for trajectory in self.trajectories}
        return next(origin for origin in ("policy", "random", "human") if origin in origins)


def text_of(settings: RecorderSettings, trajectories: Sequence[Trajectory]) -> str:
    """The text of a start file."""
    body = {
        "format": _FORMAT,
        "settings": dataclasses.asdict(settings),
        "trajectories": [
            {**trajectory._asdict(), "actions": "".join(_LETTERS[a] for a in trajectory.actions)}
            for trajectory in trajectories
        ],
    }
    return json.dumps({"sha256": _checksum(body), "body": body}, indent=1) + "\n"


def read(path: Path) -> StartFile:
    """Reads and validates a start file; nothing in it can run code."""
    try:
        content = read_json(path)
        body = record(dict[str, Any], content.get("body"))
    except ValueError as error:
        raise _unusable(path, f"it is not a start file ({error})") from error
    if body.get("format") != _FORMAT:
        raise _unusable(
            path, f"it has format {body.get('format')!r:.60}, this version reads {_FORMAT}"
        )
    if content.get("sha256") != _checksum(body):
        raise _unusable(path, "it was changed after recording: its checksum differs")
    try:
        settings = record(RecorderSettings, body["settings"])
        Config(game=settings.game, seed=settings.seed, action_repeat=settings.action_repeat)
        stored = record(list[dict[str, Any]], body["trajectories"])
        trajectories = [_trajectory(settings, fields) for fields in stored]
    except (KeyError, ValueError) as error:
        raise _unusable(path, f"it is incomplete: {one_line(error)}") from error
    return StartFile(path, settings, trajectories)


def _trajectory(settings: RecorderSettings, fields: dict[str, Any]) -> Trajectory:
    if fields["origin"] not in ORIGINS:
        raise ValueError(f"the origin {fields['origin']!r:.60} is unknown")
    actions = tuple(_LETTERS.index(letter) for letter in record(str, fields["actions"]))
    checksums = record(tuple[str, ...], fields["checksums"])
    if not actions or len(checksums) != len(settings.marks(len(actions))):
        raise ValueError("checksums are missing")
    if len(actions) * settings.action_repeat > MOST_FRAMES:
        raise ValueError(f"a trajectory has more than {MOST_FRAMES:,} frames")
    return Trajectory(fields["origin"], actions, checksums)


def check_fits(starts: StartFile, config: Config) -> None:
    """Rejects a file whose recording does not fit the settings of a run."""
    path, settings, trajectories = starts
    if config.game is None:
        raise ConfigError(
            f"--starts=human is for Atari games, and the run plays {config.environment}; give "
            "--starts=noop."
        )
    if config.sticky_action_probability != 0:
        raise ConfigError(
            f"The run, with --protocol={config.protocol}, has sticky actions, which do not replay; "
            "give --starts=noop."
        )
    if settings.game != config.game:
        raise _unusable(path, f"it is of {settings.game}, and the run plays {config.game}")
    if settings.rom_sha256 != rom_checksum(config.game):
        raise _unusable(path, f"it was recorded with another ROM of {config.game}")
    if settings.sticky_action_probability != 0:
        raise _unusable(path, "it has sticky actions, which do not replay")
    if config.action_repeat % settings.action_repeat:
        repeats = f"{settings.action_repeat} does not divide the run's {config.action_repeat}"
        raise _unusable(path, f"its --action_repeat={repeats}")
    if not trajectories:
        raise _unusable(path, "it has no trajectory yet")


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
    chosen = (candidates[rng.integers(len(candidates))] for _ in range(number))
    return [initial[rng.integers(len(initial))] for initial in chosen]


def points(starts: StartFile, trajectory: int) -> list[StartPoint]:
    """The points of a trajectory that have a checksum; the last one is its end."""
    settings = starts.settings
    marks = settings.marks(len(starts.trajectories[trajectory].actions))
    return [StartPoint(trajectory, mark, mark * settings.action_repeat) for mark in marks]


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
    expected = dict(zip(settings.marks(len(actions)), checksums, strict=True))
    for count, action in enumerate(actions[: point.actions], start=1):
        emulator.hold(action, settings.action_repeat)
        is_same = count not in expected or emulator.checksum() == expected[count]
        if emulator.ale.game_over() or not is_same:
            versions = f"recorded with ale-py {settings.ale_py}, this is {ale_py.__version__}"
            raise _unusable(
                starts.path,
                f"its trajectory {point.trajectory} does not replay: the game differs at frame "
                f"{count * settings.action_repeat} ({versions})",
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
        self._checksums: list[str] = []  # one per action

    @property
    def frames(self) -> int:
        """Frames recorded."""
        return len(self._actions) * self._settings.action_repeat

    def step(self, action: int) -> bool:
        """Plays an action; returns whether the game continues."""
        self.emulator.step(action)
        if self.emulator.ale.game_over():
            return False
        self._actions.append(action)
        self._checksums.append(self.emulator.checksum())
        return True

    def trajectory(self, origin: str) -> Trajectory:
        """The trajectory so far; needs at least one action."""
        marks = self._settings.marks(len(self._actions))
        checksums = tuple(self._checksums[mark - 1] for mark in marks)
        return Trajectory(origin, tuple(self._actions), checksums)


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The start file {path} cannot be used, {reason}; give another --start_file or record one "
        "with python -m rainbow_tf.record_starts."
    )
