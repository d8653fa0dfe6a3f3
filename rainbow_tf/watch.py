"""Records a video of a run's policy with its value estimates.

python -m rainbow_tf.watch --run_dir=runs/qbert/rainbow/seed_1 --out=qbert.mp4
"""

import contextlib
import itertools
from pathlib import Path
from typing import Any

from absl import flags

from rainbow_tf.command import SNAPSHOT_FLAGS, Command, Flag, run_settings, wanted_snapshot
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import progress_bar
from rainbow_tf.environments.base import make_environment
from rainbow_tf.process import load_tensorflow
from rainbow_tf.video.encoder import (
    GIF_SECONDS,
    LARGE,
    SMALL,
    check_video,
    frames_per_second,
    video,
)

MAX_SECONDS = 600.0


def run(values: flags.FlagValues) -> None:
    """Checks the flags, then writes the video."""
    if values.run_dir is None or values.out is None:
        raise ConfigError("Give --run_dir, the run to watch, and --out, such as --out=qbert.mp4.")
    config = run_settings(values, values.run_dir)
    snapshot = wanted_snapshot(values, config)
    check_video(Path(values.out))
    # After the flags are checked: TensorFlow takes seconds to load.
    load_tensorflow(config.tensorflow_threads)
    names = ("episodes", "max_seconds", "fps", "seed")
    options: dict[str, Any] = {name: values[name].value for name in names}
    film(config, Path(values.out), snapshot, **options)


def film(
    config: Config,
    path: Path,
    snapshot: str | int,
    *,
    episodes: int = 1,
    max_seconds: float = MAX_SECONDS,
    fps: int | None = None,
    seed: int = 1,
) -> None:
    """Plays the episodes, writes the video and prints its scores."""
    from rainbow_tf.runs.weights import load_policy
    from rainbow_tf.video.film import play
    from rainbow_tf.video.panel import Panel

    is_gif = path.suffix == ".gif"
    rate = frames_per_second(config) if fps is None else fps
    seconds = min(max_seconds, GIF_SECONDS) if is_gif else max_seconds
    scores: dict[int, float] = {}  # by episode
    environment = make_environment(config, num_envs=1, seed=seed, screens=True)
    with contextlib.closing(environment):
        policy, frames = load_policy(config, snapshot, seed=seed)
        panel = Panel(config, environment.spec, frames=frames, height=SMALL if is_gif else LARGE)
        scenes = play(policy, environment, config=config, episodes=episodes)
        scenes = itertools.islice(scenes, max(1, round(seconds * rate)))
        bar = progress_bar(iterable=scenes, unit="frame")
        with video(path, frames_per_second=rate) as writer, bar:
            for scene in bar:
                bar.set_postfix_str(f"score {scene.score:g}", refresh=False)
                writer.add(panel.picture(scene))
                scores[scene.episode] = scene.score
    listed = " and ".join(f"{score:g}" for score in scores.values())
    print(f"{path} shows {bar.n / rate:.1f} s of play with a score of {listed}.")
    if not scene.is_last:
        longer = "write an .mp4" if seconds == GIF_SECONDS else "give a larger --max_seconds"
        print(f"It was cut there; {longer} to see more.")


COMMAND = Command(
    options=SNAPSHOT_FLAGS
    | {
        "out": Flag(None, "Video to write: an .mp4 or .gif file."),
        "episodes": Flag(1, "Games to show.", minimum=1, maximum=1000),
        "max_seconds": Flag(
            MAX_SECONDS,
            f"Maximum length in seconds; a .gif has at most {GIF_SECONDS}.",
            minimum=0.1,
            maximum=86_400,
        ),
        "fps": Flag(
            None,
            "Agent steps per second; by default an Atari game's real speed, and 15 otherwise.",
            int,
            minimum=1,
            maximum=120,
        ),
        "seed": Flag(1, "Seed of the games.", minimum=0, maximum=2**31 - 1),
    },
    run=run,
    example="give --run_dir and --out",
    interrupted="interrupted; no video was written.",
)

if __name__ == "__main__":
    COMMAND.main()
