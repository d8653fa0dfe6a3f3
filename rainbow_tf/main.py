"""Trains an agent: python -m rainbow_tf.main --game=qbert --n_step=3."""

import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.api import open_run
from rainbow_tf.command import ALL_SETTINGS, Command, Flag, settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import table
from rainbow_tf.process import StopSignals

if TYPE_CHECKING:
    from rainbow_tf.training.run import Run


def run(values: flags.FlagValues) -> None:
    """Checks the settings, then trains or resumes."""
    if values.list_presets:
        print(table({name: presets.sentence(name) for name in presets.names()}))
        return
    if values.preset:  # those of the command line are flagfiles by now
        raise ConfigError("--preset is in a flagfile; give it on the command line instead.")
    config = settings(values)
    try:
        train(config)
    except OSError as error:
        raise ConfigError(f"{error}; free the disk or give another --run_dir.") from error


def train(config: Config) -> None:
    """Trains, exports if asked to, and prints how to resume a run that was stopped."""
    stop = StopSignals(second=signal.SIG_DFL)
    with open_run(config, stop) as run:
        if run is None:
            return
        for _ in run.ticks():
            pass
    if not run.is_finished:
        _print_how_to_resume(config, run.frames)
        sys.exit(128 + stop.number if stop.number is not None else 1)
    _print_end(config, run)
    if config.export_dir is not None:
        from rainbow_tf.export.saved_model import export_run

        snapshot = "latest" if run.evaluator.best is None else "best"
        export = export_run(config, Path(config.export_dir), snapshot)
        print(f"The {snapshot} policy is in {export.folder}.")


def _print_end(config: Config, run: "Run") -> None:
    """Prints the scores and what to do next."""
    print(f"Done after {run.frames:,} frames.")
    best, last = run.evaluator.best, run.evaluator.last
    rows = {}
    if best is not None:
        rows["best score"] = f"{best.score_mean:.1f} after {best.frames:,} frames"
    if last is not None:
        rows["last score"] = f"{last:.1f}"
    print(table({**rows, "run folder": config.folder}))
    folder, name = shlex.quote(str(config.folder)), config.environment_name
    print("Next:")
    for line in (
        f"watch --run_dir={folder} --out={name}.mp4",
        f"evaluate --run_dir={folder}",
        f"report --runs={folder} --out=report/",
        f"export --run_dir={folder} --out=models/{name}",
    ):
        print(f"  python -m rainbow_tf.{line}")


def _print_how_to_resume(config: Config, frames: int) -> None:
    again = [a for a in sys.argv[1:] if not re.fullmatch("--?restart(=.*)?", a)]
    again += ["--norestart"] if config.restart else []  # it may stand in a flagfile
    print(f"Stopped after {frames:,} frames. To resume:")
    print(f"  python -m rainbow_tf.main {shlex.join(again)}")


COMMAND = Command(
    settings=ALL_SETTINGS,
    options={
        "preset": Flag(
            [],
            "Settings by name, such as baselines/dqn or minatar. Several can be given: the later "
            "one wins, and other flags win over all of them.",
        ),
        "list_presets": Flag(False, "Print the presets, one sentence each, and exit."),
    },
    run=run,
    example="settings look like --game=qbert",
    interrupted="interrupted before training began; nothing was changed.",
    rewrite=presets.expand,
)

if __name__ == "__main__":
    COMMAND.main()
