"""Trains an agent: python -m rainbow_tf.main --game=qbert --n_step=3."""

import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.command import Command, define_settings, settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.process import StopSignals, load_tensorflow
from rainbow_tf.runs.folder import RunFolder, check_folder, is_finished
from rainbow_tf.types import Counters, Tick
from rainbow_tf.video.encoder import VIDEOS, check_video

if TYPE_CHECKING:
    from rainbow_tf.training.build import AnyParts


def run(values: flags.FlagValues) -> None:
    """Checks the settings, then trains or resumes."""
    if values.list_presets:
        width = max(map(len, presets.names()))
        print("\n".join(f"{name:<{width}}  {presets.sentence(name)}" for name in presets.names()))
        return
    if values.preset:  # those of the command line are flagfiles by now
        raise ConfigError("--preset is in a flagfile; give it on the command line instead.")
    config = settings(values)
    try:
        check_folder(config)
        train(config)
    except OSError as error:
        raise ConfigError(f"{error}; free the disk or give another --run_dir.") from error


def train(config: Config) -> None:
    """Trains in the folder of the settings, from its newest checkpoint if it has one."""
    with RunFolder(config) as folder:
        checkpoint = folder.find_checkpoint()
        if checkpoint is not None and is_finished(config, checkpoint):
            print(
                f"Training in {folder.path} is complete ({checkpoint.frames:,} frames). Raise "
                "--frames to continue, or give --restart to start again."
            )
            return
        if config.record_period_frames > 0:
            check_video(config.folder / VIDEOS / "0.mp4")
        # TensorFlow takes seconds to load: settings are checked before it.
        load_tensorflow(config.tensorflow_threads)
        from rainbow_tf.training.run import train_run

        stop = StopSignals(second=signal.SIG_DFL)
        result = train_run(config, folder, checkpoint, stop=stop, build=build)
    if not result.is_finished:
        _print_how_to_resume(config, result.frames)
        return
    print(f"Done after {result.frames:,} frames; the run is in {config.folder}.")
    if config.export_dir is not None:
        from rainbow_tf.export.runs import export_run

        is_best = result.best is not None
        export = export_run(config, Path(config.export_dir), is_best=is_best)
        print(f"The {'best' if is_best else 'last'} policy is in {export.folder}.")


def build(config: Config, start: Counters) -> "tuple[AnyParts, Iterator[Tick]]":
    """The parts of a run and its ticks: in one process, or with actors on Ray."""
    if config.actors == 0:
        from rainbow_tf.training.run import build_single

        return build_single(config, start)
    from rainbow_tf.distributed.apex import learner as apex

    fleet = apex.build_fleet(config, start.steps)
    return fleet, apex.train(config, fleet, start)


def _print_how_to_resume(config: Config, frames: int) -> None:
    again = [a for a in sys.argv[1:] if not re.fullmatch("--?restart(=.*)?", a)]
    again += ["--norestart"] if config.restart else []  # it may stand in a flagfile
    print(f"Stopped after {frames:,} frames. To resume:")
    print(f"  python -m rainbow_tf.main {shlex.join(again)}")


def define_flags(values: flags.FlagValues) -> None:
    """Defines a flag for every setting, and those of presets."""
    define_settings(values)
    flags.DEFINE_multi_string(
        "preset",
        [],
        "Settings by name, such as baselines/dqn or minatar. Several can be given: the later one "
        "wins, and other flags win over all of them.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "list_presets", False, "Print the presets, one sentence each, and exit.", flag_values=values
    )


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="settings look like --game=qbert",
    interrupted="interrupted before training began; nothing was changed.",
    rewrite=presets.expand,
)

if __name__ == "__main__":
    COMMAND.main()
