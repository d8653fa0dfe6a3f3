"""Records games whose positions evaluation can start from.

python -m rainbow_tf.record_starts --game=qbert --player=human --output=starts/qbert.json
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags
from tqdm import tqdm

from rainbow_tf.command import Command, define_snapshot_flags, wants_best
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.process import load_tensorflow
from rainbow_tf.runs.folder import read_config
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.starts import file as starts
from rainbow_tf.starts.file import RecorderSettings, Recording, Trajectory

if TYPE_CHECKING:
    from rainbow_tf.starts.keyboard import Keyboard

_FRAMES_PER_SECOND = 60


def run(values: flags.FlagValues) -> None:
    """Records the missing trajectories; writes the file after each one."""
    config = _config(values)
    assert config.game is not None
    settings = starts.recorder_settings(
        config.game, action_repeat=config.action_repeat, seed=values.seed
    )
    path = Path(values.output)
    done = _done(path, settings, values.player)
    if len(done) >= values.trajectories:
        print(f"{path} has its {len(done)} trajectories; raise --trajectories to record more.")
        return
    _write(path, settings, done)  # fails early if the file cannot be written
    players = {"random": _random_games, "policy": _policy_games, "human": _human_games}
    games = players[values.player](values, config, settings, len(done))
    bar = tqdm(
        total=values.trajectories,
        initial=len(done),
        unit="trajectory",
        file=sys.stderr,
        mininterval=0.5 if sys.stderr.isatty() else 30.0,
    )
    with bar:
        for trajectory in games:
            done.append(trajectory)
            _write(path, settings, done)
            bar.update()
            frames = len(trajectory.actions) * settings.action_repeat
            bar.set_postfix_str(f"last {frames:,} frames", refresh=False)
    print(f"{path} holds {len(done)} of {values.trajectories} trajectories by {values.player}.")


def _config(values: flags.FlagValues) -> Config:
    """The settings of the games; those of the run if its policy plays."""
    if values.player is None:
        raise ConfigError("Give --player: human, policy or random.")
    if values.output is None:
        raise ConfigError("Give --output, the start file to write, such as starts/qbert.json.")
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
    wants_best(values)  # checks the flags before TensorFlow is loaded
    config = read_config(Path(values.run_dir))
    if config.game is None:
        raise ConfigError(
            f"--run_dir={values.run_dir} plays {config.environment}, but starts are only recorded "
            "for Atari games; give the run of a game."
        )
    if values.game not in (None, config.game):
        raise ConfigError(
            f"--run_dir={values.run_dir} plays {config.game}, not --game={values.game}."
        )
    if values.action_repeat not in (None, config.action_repeat):
        raise ConfigError(
            f"--action_repeat={values.action_repeat} is not the run's {config.action_repeat}; "
            "leave it out."
        )
    return dataclasses.replace(config, eval_noise=False)


def _done(path: Path, settings: RecorderSettings, player: str) -> list[Trajectory]:
    """The trajectories in the file, which must have the same settings."""
    if not path.exists():
        return []
    there = starts.read(path)
    differing = [
        f"{name}={old} where this command has {new}"
        for name, old in dataclasses.asdict(there.settings).items()
        if old != (new := getattr(settings, name))
    ]
    if there.trajectories and there.origin != player:
        differing.append(f"player={there.origin} where this command has {player}")
    if differing:
        raise ConfigError(f"--output={path} holds {differing[0]}; give another --output.")
    return list(there.trajectories)


def _write(path: Path, settings: RecorderSettings, trajectories: list[Trajectory]) -> None:
    text = starts.text_of(settings, trajectories).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(text))
    except OSError as error:
        raise ConfigError(
            f"--output={path} cannot be written ({error.strerror}); give another file."
        ) from error


def _random_games(
    values: flags.FlagValues, config: Config, settings: RecorderSettings, first: int
) -> Iterator[Trajectory]:
    """Uniformly random actions; game k depends only on the seed and k."""
    for k in range(first, values.trajectories):
        rng = np.random.default_rng([values.seed, k])
        recording = Recording(settings)
        codes = [action.value for action in recording.emulator.minimal_actions]

        def choose(rng=rng, codes=codes) -> int:
            return codes[rng.integers(len(codes))]

        yield _play(recording, choose, values, "random")


def _policy_games(
    values: flags.FlagValues, config: Config, settings: RecorderSettings, first: int
) -> Iterator[Trajectory]:
    """The policy of a run; no-ops and random actions keep its games from being identical."""
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.environments.base import make_environment
    from rainbow_tf.runs.weights import load_policy

    environment = make_environment(config, num_envs=1, seed=values.seed, training=False)
    environment.close()
    actor, _ = load_policy(
        config,
        environment.spec,
        is_best=wants_best(values),
        checkpoint=values.checkpoint,
        seed=values.seed,
    )
    for k in range(first, values.trajectories):
        actor.rng = np.random.default_rng([values.seed, k])
        recording = Recording(settings, frame_stack=config.stack)
        codes = [action.value for action in recording.emulator.minimal_actions]
        noops = int(actor.rng.integers(config.noop_max + 1))

        def choose(recording=recording, codes=codes, noops=noops) -> int:
            if recording.frames < noops * config.action_repeat:
                return 0
            return codes[actor.act(recording.emulator.observation[None], values.epsilon)[0]]

        yield _play(recording, choose, values, "policy")


def _play(
    recording: Recording, choose: Callable[[], int], values: flags.FlagValues, origin: str
) -> Trajectory:
    while recording.frames < values.max_frames and recording.step(choose()):
        pass
    return recording.trajectory(origin)


def _human_games(
    values: flags.FlagValues, config: Config, settings: RecorderSettings, first: int
) -> Iterator[Trajectory]:
    """Games of a person at the keyboard, until the window is closed."""
    from rainbow_tf.starts.keyboard import Keyboard

    keyboard = Keyboard(
        f"{settings.game}: recording starts", _FRAMES_PER_SECOND // settings.action_repeat
    )
    try:
        for k in range(first, values.trajectories):
            about = f"Game {k + 1} of {values.trajectories}"
            trajectory = _human_game(keyboard, settings, about, values.max_frames)
            if trajectory is None:
                return
            yield trajectory
    finally:
        keyboard.close()


def _human_game(
    keyboard: "Keyboard", settings: RecorderSettings, about: str, max_frames: int
) -> Trajectory | None:
    """One game played by a person; None if the window was closed."""
    from rainbow_tf.starts.keyboard import choose_action

    recording, is_playing = Recording(settings), False
    while True:
        state = "paused, P to go on" if recording.frames else "Enter to begin"
        seconds = recording.frames // _FRAMES_PER_SECOND
        line = f"{about}, {seconds} s: {'recording' if is_playing else state}"
        keyboard.show(recording.emulator.screen(), line)
        commands = keyboard.poll()
        if "quit" in commands:
            return None
        if "discard" in commands:
            recording, is_playing = Recording(settings), False
            continue
        if "enter" in commands:
            if recording.frames:
                return recording.trajectory("human")
            is_playing = True
        elif "pause" in commands and recording.frames:
            is_playing = not is_playing
        if is_playing:
            action = choose_action(keyboard.held, recording.emulator.minimal_actions)
            goes_on = recording.step(action)
            if not goes_on or recording.frames >= max_frames:
                return recording.trajectory("human")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    string = functools.partial(flags.DEFINE_string, flag_values=values)
    integer = functools.partial(flags.DEFINE_integer, flag_values=values)
    string("game", None, "Atari game by its snake-case name; not needed with --run_dir.")
    player_help = (
        "human: a person at the keyboard, in a window. policy: the policy of --run_dir. random: "
        "uniformly random actions."
    )
    flags.DEFINE_enum("player", None, list(starts.ORIGINS), player_help, flag_values=values)
    string("output", None, "Start file to write, or to extend.")
    integer("trajectories", 100, "Games in the file when done.", lower_bound=1)
    frames_help = "Maximum frames per game, 60 a second; starts come from the first half."
    integer("max_frames", 7_200, frames_help, lower_bound=1)
    repeat_help = (
        "Frames per action; by default 1 for a person, 4 for a random player, and the run's for a "
        "policy."
    )
    integer("action_repeat", None, repeat_help, lower_bound=1)
    seed_help = "Seed of the emulator and the random actions."
    integer("seed", 1, seed_help, lower_bound=0, upper_bound=2**31 - 1)
    define_snapshot_flags(values)
    flags.DEFINE_float(
        "epsilon",
        0.05,
        "Share of random actions with --player=policy.",
        lower_bound=0,
        upper_bound=1,
        flag_values=values,
    )


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="give --game and --output",
    interrupted="interrupted; complete trajectories are kept, rerun the command to resume.",
)

if __name__ == "__main__":
    COMMAND.main()
