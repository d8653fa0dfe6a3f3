"""Trains many agents on many games, on Ray: python -m rainbow_tf.sweep --games=qbert,pong."""

import contextlib
import importlib.util
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf import config as config_module
from rainbow_tf.command import StopSignals, errors_as_sentences, load_tensorflow, run_command
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed.cluster import connect
from rainbow_tf.distributed.sweep import cells as cells_module
from rainbow_tf.distributed.sweep.cells import OUTPUT, Cell
from rainbow_tf.distributed.sweep.scheduler import Job, RayPool, Scheduler, Status, check_room
from rainbow_tf.distributed.sweep.views import PlainLines, summary

FLAGS = flags.FLAGS
_OBJECT_BYTES = 100_000_000  # cells send sentences, nothing large
_MOST_FAILED = 20
# Every cell has its own, or the sweep has one for all; a cell is one process, without actors.
_NOT_SHARED = (
    "game",
    "environment",
    "seed",
    "run_dir",
    "restart",
    "export_dir",
    "address",
    "actors",
)


def main(arguments: list[str]) -> None:
    """Checks every cell, then trains those that are not finished; bad input ends in a sentence."""
    with errors_as_sentences("ended at once; give the same command again to go on."):
        if len(arguments) > 1:
            raise ConfigError(
                f"'{arguments[1]}' is not a flag; settings look like --games=qbert,pong."
            )
        cells = _cells()
        if FLAGS.dry_run:
            _dry_run(cells)
            return
        jobs = _train(cells)
    if any(job.status is Status.FAILED for job in jobs):
        sys.exit(1)


def _cells() -> list[Cell]:
    for flag, least in (("cpus_per_run", 1), ("gpus_per_run", 0), ("max_retries", 0)):
        value = FLAGS[flag].value
        if value is not None and value < least:
            raise ConfigError(f"--{flag}={value} is too small; it must be at least {least}.")
    return cells_module.make_cells(
        world_flags=cells_module.worlds(FLAGS.games),
        agent_names=cells_module.agents(FLAGS.presets),
        seed_numbers=cells_module.seeds(FLAGS.seeds),
        arguments=[
            *(f"--preset={name}" for name in FLAGS.preset),
            *(FLAGS[name].serialize() for name in _shared_names() if FLAGS[name].present),
        ],
        out=Path(FLAGS.out),
        cpus=FLAGS.cpus_per_run,
        parse=parse,
    )


def parse(arguments: Sequence[str]) -> Config:
    """The settings that a command line of rainbow_tf.main would give."""
    values = flags.FlagValues()
    config_module.define_flags(values)
    values(presets.expand(["rainbow_tf.main", *arguments]))
    return config_module.from_flags(values)


def _train(cells: Sequence[Cell]) -> list[Job]:
    pool = _connect()
    cells = cells_module.with_gpus(cells, pool.nodes(), FLAGS.gpus_per_run)
    check_room(cells, pool.nodes(), is_local=FLAGS.address is None)
    stop = StopSignals(second=signal.default_int_handler)
    with _view() as view:
        scheduler = Scheduler(
            cells=cells,
            pool=pool,
            view=view,
            max_retries=FLAGS.max_retries,
            may_grow=FLAGS.address is not None,
            is_stopping=lambda: stop.requested,
        )
        scheduler.run()
    _say_the_end(scheduler.jobs)
    return scheduler.jobs


def _connect() -> RayPool:
    return RayPool(connect(FLAGS.address, wanted_by="A sweep", object_bytes=_OBJECT_BYTES))


def _view() -> contextlib.AbstractContextManager:
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        from rainbow_tf.distributed.sweep.table import LiveTable

        return LiveTable()
    return contextlib.nullcontext(PlainLines())


def _say_the_end(jobs: Sequence[Job]) -> None:
    print(summary(jobs))
    failed = [job for job in jobs if job.status is Status.FAILED]
    for job in failed[:_MOST_FAILED]:
        print(f"  {job.cell.name} failed: {job.reason}")
        print(f"    {job.cell.config.folder / OUTPUT}")
    if len(failed) > _MOST_FAILED:
        print(f"  and {len(failed) - _MOST_FAILED:,} more")
    if any(job.status is Status.WAITING for job in jobs):
        print("Stopped. To go on:")
        print(f"  python -m rainbow_tf.sweep {shlex.join(sys.argv[1:])}")
    if any(job.status is Status.DONE for job in jobs):
        runs = shlex.quote(f"--runs={FLAGS.out}")
        print("Tables and figures of what is there:")
        print(f"  python -m rainbow_tf.report {runs} --out=report/")


def _dry_run(cells: Sequence[Cell]) -> None:
    """Says what the sweep would take, and starts nothing."""
    # After the checks, because TensorFlow takes seconds to load.
    load_tensorflow(cells[0].config.threads)
    from rainbow_tf.distributed.sweep import forecast

    nodes = [forecast.this_machine()] if FLAGS.address is None else _connect().nodes()
    cells = cells_module.with_gpus(cells, nodes, FLAGS.gpus_per_run)
    print(forecast.describe_cells(cells))
    where = "this machine" if FLAGS.address is None else f"the cluster at {FLAGS.address}"
    print(forecast.forecast(cells, nodes, where=where))


def _shared_names() -> list[str]:
    return [name for name in Config.__dataclass_fields__ if name not in _NOT_SHARED]


def define_flags() -> None:
    """Defines the flags of a sweep, and those of training that all its cells share."""
    flags.DEFINE_string(
        "games",
        None,
        "What is played: all (57 Atari games), atari26 (those of Atari 100K), or names with "
        "commas; a Gymnasium id such as MinAtar/Breakout-v1 is one too.",
    )
    flags.DEFINE_string(
        "presets",
        "rainbow",
        "Agents, by their presets with commas; ablations/* and baselines/* are all of a kind.",
    )
    flags.DEFINE_string("seeds", "1", "How many seeds from 1 on, or a list such as 3,7 or 7,.")
    flags.DEFINE_string(
        "out", "runs", "Folder of all runs: OUT/<world>/<agent>/seed_<k>, seen by every machine."
    )
    flags.DEFINE_multi_string(
        "preset",
        [],
        "A preset for every agent, such as minatar. Several can be given; they win over those of "
        "--presets, and flags win over all of them.",
    )
    flags.DEFINE_string(
        "address",
        None,
        "A Ray cluster that runs, such as auto on one of its machines; by default Ray is started "
        "on this machine, for this sweep only.",
    )
    flags.DEFINE_integer(
        "cpus_per_run", None, "CPUs of a cell; by default 2 for Atari and 1 elsewhere."
    )
    flags.DEFINE_float(
        "gpus_per_run",
        None,
        "GPUs of a cell, such as 0.5; by default 1 for Atari where there are any, and 0 elsewhere.",
    )
    flags.DEFINE_integer(
        "max_retries",
        3,
        "How often a cell that was lost is tried again without a new checkpoint in between.",
    )
    flags.DEFINE_bool(
        "dry_run", False, "Say what the sweep would take in memory, disk and hours, and end."
    )
    config_module.define_flags(names=_shared_names())
    flags.adopt_module_key_flags(config_module)


if __name__ == "__main__":
    define_flags()
    run_command(main)
