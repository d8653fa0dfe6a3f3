"""Records games whose positions evaluation can start from.

python -m rainbow_tf.record_starts --game=qbert --player=human --out=starts/qbert.json
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from rainbow_tf.command import SNAPSHOT_FLAGS, Command, Flag, run_settings, wanted_snapshot
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import progress_bar
from rainbow_tf.process import load_tensorflow
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.starts import file as starts
from rainbow_tf.starts.file import RecorderSettings, Recording, Trajectory
from rainbow_tf.starts.keyboard import Keyboard, choose_action
from rainbow_tf.types import Policy

_FRAMES_PER_SECOND = 60


def run(values: flags.FlagValues) -> None:
    """Records the missing trajectories; writes the file after each one."""
    config = _config(values)
    assert config.game is not None
    settings = starts.recorder_settings(
        config.game, action_repeat=config.action_repeat, seed=values.seed
    )
    path = Path(values.out)
    done = _done(path, settings, values.player)
    if len(done) >= values.trajectories:
        print(f"{path} has its {len(done)} trajectories; raise --trajectories to record more.")
        return
    _write(path, settings, done)  # fails early if the file cannot be written
    games = _human_games if values.player == "human" else _automatic_games
    about = {"total": values.trajectories, "initial": len(done), "unit": "trajectory"}
    for trajectory in progress_bar(iterable=games(values, config, settings, len(done)), **about):
        done.append(trajectory)
        _write(path, settings, done)
    print(f"{path} holds {len(done)} of {values.trajectories} trajectories by {values.player}.")


def _config(values: flags.FlagValues) -> Config:
    """The settings of the games; those of the run if its policy plays."""
    if values.player is None or values.out is None:
        raise ConfigError("Give --player and --out, the file to write: starts/qbert.json.")
    if (values.player == "policy") != (values.run_dir is not None):
        raise ConfigError(
            "--player=policy and --run_dir, the run whose policy plays, need each other; give both "
            "or neither."
        )
    if values.run_dir is None:
        if values.game is None:
            raise ConfigError("Give --game, such as --game=qbert.")
        # People react frame by frame.
        default = 1 if values.player == "human" else Config(game=values.game).action_repeat
        repeat = default if values.action_repeat is None else values.action_repeat
        return Config(game=values.game, action_repeat=repeat)
    config = run_settings(values, values.run_dir)
    if config.game is None:
        raise ConfigError(
            f"--run_dir={values.run_dir} plays {config.environment}, but starts are only recorded "
            "for Atari games; give the run of a game."
        )
    for name in ("game", "action_repeat"):
        given, used = values[name].value, getattr(config, name)
        if given not in (None, used):
            raise ConfigError(f"--{name}={given} is not the run's {used}; leave it out.")
    return dataclasses.replace(config, eval_noise=False)


def _done(path: Path, settings: RecorderSettings, player: str) -> list[Trajectory]:
    """The trajectories in the file, which must have the same settings."""
    if not path.exists():
        return []
    there = starts.read(path)
    old, new = dataclasses.asdict(there.settings), dataclasses.asdict(settings)
    if there.trajectories:
        old["player"], new["player"] = there.origin, player
    for name, value in old.items():
        if value != new[name]:
            raise ConfigError(
                f"--out={path} holds {name}={value} where this command has {new[name]}; give "
                "another --out."
            )
    return there.trajectories


def _write(path: Path, settings: RecorderSettings, trajectories: list[Trajectory]) -> None:
    text = starts.text_of(settings, trajectories).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(
            f"--out={path} cannot be written ({error.strerror}); give another file."
        ) from error


def _automatic_games(
    values: flags.FlagValues, config: Config, settings: RecorderSettings, first: int
) -> Iterator[Trajectory]:
    """Games of a policy or of random actions; game k depends only on the seed and k."""
    policy: Policy | None = None
    if values.player == "policy":
        load_tensorflow(config.tensorflow_threads)
        from rainbow_tf.runs.weights import load_policy

        policy, _ = load_policy(config, wanted_snapshot(values, config), seed=values.seed)
    for k in range(first, values.trajectories):
        rng = np.random.default_rng([values.seed, k])
        recording = Recording(settings, frame_stack=config.stack)
        codes = [action.value for action in recording.emulator.minimal_actions]
        noop_frames = 0
        if policy is not None:
            policy.rng = rng
            # With the random actions, they keep a policy's games from being identical.
            noop_frames = int(rng.integers(config.noop_max + 1)) * config.action_repeat
        is_over = False
        while recording.frames < values.max_frames and not is_over:
            if policy is None:
                action = int(rng.integers(len(codes)))
            elif recording.frames < noop_frames:
                action = 0
            else:
                action = policy.act(recording.emulator.observation[None], values.epsilon)[0]
            is_over = not recording.step(codes[action])
        yield recording.trajectory(values.player)


def _human_games(
    values: flags.FlagValues, config: Config, settings: RecorderSettings, first: int
) -> Iterator[Trajectory]:
    """Games of a person at the keyboard, until the window is closed."""
    rate = _FRAMES_PER_SECOND // settings.action_repeat
    with contextlib.closing(Keyboard(f"{settings.game}: recording starts", rate)) as keyboard:
        for k in range(first, values.trajectories):
            about = f"Game {k + 1} of {values.trajectories}"
            trajectory = _human_game(keyboard, settings, about, values.max_frames)
            if trajectory is None:
                return
            yield trajectory


def _human_game(
    keyboard: Keyboard, settings: RecorderSettings, about: str, max_frames: int
) -> Trajectory | None:
    """One game played by a person; None if the window was closed."""
    recording, is_playing = Recording(settings), False
    while True:
        state = "paused, P to resume" if recording.frames else "Enter to begin"
        seconds = recording.frames // _FRAMES_PER_SECOND
        line = f"{about}, {seconds} s: {'recording' if is_playing else state}"
        keyboard.show(recording.emulator.ale.getScreenRGB(), line)
        pressed = keyboard.poll()
        is_over = False
        if "escape" in pressed:
            return None
        if "backspace" in pressed:
            recording, is_playing = Recording(settings), False
        elif "return" in pressed or "enter" in pressed:  # "enter" is on the number pad
            is_over, is_playing = recording.frames > 0, True
        elif "p" in pressed and recording.frames:
            is_playing = not is_playing
        if is_playing and not is_over:
            action = choose_action(keyboard.held, recording.emulator.minimal_actions)
            is_over = not recording.step(action) or recording.frames >= max_frames
        if is_over:
            return recording.trajectory("human")


COMMAND = Command(
    options=SNAPSHOT_FLAGS
    | {
        "game": Flag(None, "Atari game by its snake-case name; not needed with --run_dir."),
        "player": Flag(
            None,
            "human: a person at the keyboard, in a window. policy: the policy of --run_dir. "
            "random: uniformly random actions.",
            choices=starts.ORIGINS,
        ),
        "out": Flag(None, "Start file to write, or to extend."),
        "trajectories": Flag(100, "Games in the file when done.", minimum=1, maximum=10_000),
        "max_frames": Flag(
            7_200,
            "Maximum frames per game, 60 a second; starts come from the first half.",
            minimum=1,
            maximum=starts.MOST_FRAMES,
        ),
        "action_repeat": Flag(
            None,
            "Frames per action; by default the run's, 1 for a person and 4 for random actions.",
            int,
            minimum=1,
            maximum=100,
        ),
        "seed": Flag(
            1, "Seed of the emulator and the random actions.", minimum=0, maximum=2**31 - 1
        ),
        "epsilon": Flag(
            0.05, "Share of random actions with --player=policy.", minimum=0, maximum=1
        ),
    },
    run=run,
    example="give --game and --out",
    interrupted="interrupted; complete trajectories are kept, rerun the command to resume.",
)

if __name__ == "__main__":
    COMMAND.main()
