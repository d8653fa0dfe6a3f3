"""Records a video of a run's policy with its value estimates.

python -m rainbow_tf.watch --run_dir=runs/qbert/rainbow/seed_1 --out=qbert.mp4
"""

import itertools
import sys
from pathlib import Path

from absl import flags
from tqdm import tqdm

from rainbow_tf.command import SNAPSHOT_FLAGS, Command, Flag, wants_best
from rainbow_tf.config import ConfigError
from rainbow_tf.environments.base import make_environment
from rainbow_tf.process import load_tensorflow
from rainbow_tf.runs.folder import read_config
from rainbow_tf.video.encoder import LARGE, SMALL, check_video, frames_per_second, video

_SECONDS, _GIF_SECONDS = 120.0, 20.0


def run(values: flags.FlagValues) -> None:
    """Plays the episodes, writes the video and prints its scores."""
    if values.run_dir is None or values.out is None:
        raise ConfigError("Give --run_dir, the run to watch, and --out, such as --out=qbert.mp4.")
    config = read_config(Path(values.run_dir))
    is_best = wants_best(values)
    path = Path(values.out)
    check_video(path)
    is_gif = path.suffix == ".gif"
    rate = frames_per_second(config) if values.fps is None else values.fps
    seconds = values.max_seconds
    if seconds is None:
        seconds = _GIF_SECONDS if is_gif else _SECONDS
    # Imported after the flags are checked: TensorFlow takes seconds to load.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.runs.weights import load_policy
    from rainbow_tf.video.film import play
    from rainbow_tf.video.panel import Panel

    environment = make_environment(
        config, num_envs=1, seed=values.seed, training=False, screens=True
    )
    try:
        actor, frames = load_policy(
            config,
            environment.spec,
            is_best=is_best,
            checkpoint=values.checkpoint,
            seed=values.seed,
        )
        panel = Panel(config, environment.spec, frames=frames, height=SMALL if is_gif else LARGE)
        scenes = play(actor, environment, config=config, episodes=values.episodes)
        scenes = itertools.islice(scenes, max(1, round(seconds * rate)))
        scores: dict[int, float] = {}  # by episode
        interval = 0.5 if sys.stderr.isatty() else 30.0
        bar = tqdm(scenes, unit="frame", file=sys.stderr, mininterval=interval)
        with video(path, frames_per_second=rate) as writer, bar:
            for scene in bar:
                bar.set_postfix_str(f"score {scene.score:g}", refresh=False)
                writer.add(panel.picture(scene))
                scores[scene.episode] = scene.score
    finally:
        environment.close()
    listed = " and ".join(f"{score:g}" for score in scores.values())
    print(f"{path} shows {bar.n / rate:.1f} s of play with a score of {listed}.")
    if not scene.is_last:
        print("It was cut there; give a larger --max_seconds to see more.")


COMMAND = Command(
    about=str(__doc__),
    options=SNAPSHOT_FLAGS
    | {
        "out": Flag(None, "Video to write: an .mp4 or .gif file."),
        "episodes": Flag(1, "Games to show.", minimum=1),
        "max_seconds": Flag(
            None,
            f"Maximum length in seconds; by default {_SECONDS:g}, and {_GIF_SECONDS:g} for a .gif "
            "(at most 60).",
            float,
            minimum=0.1,
        ),
        "fps": Flag(
            None,
            "Agent steps per second; by default an Atari game's real speed, and 15 otherwise.",
            int,
            minimum=1,
            maximum=120,
        ),
        "seed": Flag(1, "Seed of the games.", minimum=0),
    },
    run=run,
    example="give --run_dir and --out",
    interrupted="interrupted; no video was written.",
)

if __name__ == "__main__":
    COMMAND.main()
