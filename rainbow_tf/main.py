"""Trains an agent: python -m rainbow_tf.main --game=qbert --n_step=3."""

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

from absl import app, flags

from rainbow_tf import config as config_module
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.startup import load_tensorflow


def main(arguments: list[str]) -> None:
    """Checks the settings, then trains; what a user can mend ends in one sentence."""
    try:
        if len(arguments) > 1:
            raise ConfigError(f"'{arguments[1]}' is not a flag; settings look like --game=qbert.")
        config = config_module.from_flags()
        check_folder(config)
        run(config)
    except ConfigError as error:
        sys.exit(f"rainbow_tf: {error}")
    except KeyboardInterrupt:
        sys.exit("rainbow_tf: interrupted before training began; nothing was written.")


def check_folder(config: Config) -> None:
    """Refuses a folder that holds a run or cannot be made, and touches nothing."""
    folder = config.folder
    if (folder / "config.json").exists() and not config.restart:
        raise ConfigError(
            f"{folder} already holds a run; give --restart to move it aside, or another "
            "--run_dir or --seed."
        )
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise _unwritable(folder, f"{nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise _unwritable(folder, f"no permission to write in {nearest}")


def make_folder(config: Config) -> None:
    """Moves an older run aside, makes the folder and writes the settings there."""
    folder = config.folder
    try:
        if (folder / "config.json").exists():
            aside = folder.with_name(f"{folder.name}_{datetime.now():%Y%m%d_%H%M%S}")
            folder.rename(aside)
            print(f"The run in {folder} was moved to {aside}.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.to_json())
    except OSError as error:
        raise _unwritable(folder, str(error.strerror)) from error


def _unwritable(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The run folder {folder} cannot be written ({reason}); give another --run_dir."
    )


def run(config: Config) -> None:
    """Builds the parts, shows what will be done, and trains."""
    # TensorFlow takes seconds to load: settings are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.training.evaluation import Evaluator
    from rainbow_tf.training.loop import TrainingError, train
    from rainbow_tf.training.metrics import Metrics
    from rainbow_tf.training.parts import build_parts
    from rainbow_tf.training.progress import ProgressBar, describe

    parts = build_parts(config)
    print(describe(config, parts), flush=True)

    stop = _StopSignals()
    make_folder(config)
    metrics = Metrics(
        config=config, folder=config.folder, network=parts.learner.online, replay=parts.replay
    )
    bar = ProgressBar(config.frames)
    evaluator = Evaluator(config=config, parts=parts, metrics=metrics, say=bar.say)
    frames = 0
    try:
        for tick in train(config, parts):
            frames = tick.frames
            metrics.observe(tick)
            bar.show(frames, metrics)
            evaluator.observe(frames)
            if stop.requested:
                break
    except TrainingError as error:
        sys.exit(f"rainbow_tf: {error}")
    finally:
        bar.close()
        metrics.close()
        parts.world.close()
    state = "Stopped" if stop.requested else "Done"
    print(f"{state} after {frames:,} frames; the run is in {config.folder}.")


class _StopSignals:
    """Ends the run after the step at hand on the first Ctrl-C or SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once


if __name__ == "__main__":
    config_module.define_flags()
    flags.adopt_module_key_flags(config_module)
    app.run(main)
