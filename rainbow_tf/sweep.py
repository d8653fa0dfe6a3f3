"""Trains many agents on many games, on Ray: python -m rainbow_tf.sweep --games=qbert,pong."""

import contextlib
import difflib
import fnmatch
import functools
import importlib.util
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.command import Command, define_settings, settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed.cluster import connect
from rainbow_tf.distributed.sweep import cells as cells_module
from rainbow_tf.distributed.sweep.cells import OUTPUT, Cell
from rainbow_tf.distributed.sweep.scheduler import Job, RayPool, Scheduler, Status, check_room
from rainbow_tf.distributed.sweep.views import PlainLines, summary
from rainbow_tf.games import GAMES
from rainbow_tf.process import StopSignals, load_tensorflow
from rainbow_tf.scoring.normalise import published

_OBJECT_BYTES = 100_000_000  # runs return sentences, nothing large
_MOST_FAILED = 20
# Set per run, or once for the sweep; a run of a sweep is one process, without actors.
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


def run(values: flags.FlagValues) -> None:
    """Checks every run, then trains those that are not finished."""
    cells = _cells(values)
    if values.dry_run:
        _dry_run(values, cells)
        return
    jobs = _train(values, cells)
    if any(job.status is Status.FAILED for job in jobs):
        sys.exit(1)


def _cells(values: flags.FlagValues) -> list[Cell]:
    for flag, least in (("cpus_per_run", 1), ("gpus_per_run", 0), ("max_retries", 0)):
        value = values[flag].value
        if value is not None and value < least:
            raise ConfigError(f"--{flag}={value} is too small; it must be at least {least}.")
    return cells_module.make_cells(
        environment_flags=environments(values.games),
        agent_names=agents(values.presets),
        seed_numbers=seeds(values.seeds),
        arguments=[
            *(f"--preset={name}" for name in values.preset),
            *(values[name].serialize() for name in _shared_names() if values[name].present),
        ],
        out=Path(values.out),
        cpus=values.cpus_per_run,
        parse=parse,
    )


def parse(arguments: Sequence[str]) -> Config:
    """The settings that these arguments of rainbow_tf.main give."""
    values = flags.FlagValues()
    define_settings(values)
    values(presets.expand(["rainbow_tf.main", *arguments]))
    return settings(values)


def environments(names: str) -> list[str]:
    """The flags of the environments in --games, each once."""
    flags: list[str] = []
    for name in _parts(names, "--games", "such as --games=qbert,pong or --games=all"):
        if name == "all":
            flags += [f"--game={game}" for game in GAMES]
        elif name == "atari26":
            scores, *_ = published("atari100k", "noop").values()
            flags += [f"--game={game}" for game in scores]
        elif name in GAMES:
            flags.append(f"--game={name}")
        elif name != name.lower() or "/" in name or "-" in name:
            flags.append(f"--environment={name}")
        else:
            close = difflib.get_close_matches(name, ["all", "atari26", *GAMES], n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(GAMES)}."
            raise ConfigError(
                f"--games has {name}, which is not one of the 57 games, all, atari26 or a "
                f"Gymnasium id; {hint}"
            )
    return list(dict.fromkeys(flags))


def agents(patterns: str) -> list[str]:
    """Names of the presets that --presets matches, each once."""
    names: list[str] = []
    for pattern in _parts(patterns, "--presets", "such as --presets=rainbow,ablations/*"):
        found = presets.names(pattern)
        if not found:
            close = difflib.get_close_matches(pattern, presets.names(), n=1)
            close = close or fnmatch.filter(presets.names(), f"*/{pattern}")
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(presets.names())}."
            raise ConfigError(f"--presets has {pattern}, which matches no preset; {hint}")
        names += found
    return list(dict.fromkeys(names))


def seeds(text: str) -> list[int]:
    """Seeds 1 to N for a number N, or those of a comma-separated list."""
    parts = _parts(text, "--seeds", "such as --seeds=5 for 1 to 5, or --seeds=3,7")
    if not all(part.isdecimal() for part in parts) or parts == ["0"]:
        raise ConfigError(
            f"--seeds={text} cannot be used; give a number, such as --seeds=5 for 1 to 5, or a "
            "list, such as --seeds=3,7."
        )
    numbers = list(map(int, parts))
    return list(dict.fromkeys(numbers)) if "," in text else list(range(1, numbers[0] + 1))


def _parts(text: str | None, flag: str, example: str) -> list[str]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{flag} names nothing; give it, {example}.")
    return parts


def _train(values: flags.FlagValues, cells: Sequence[Cell]) -> list[Job]:
    pool = _connect(values)
    cells = cells_module.with_gpus(cells, pool.nodes(), values.gpus_per_run)
    check_room(cells, pool.nodes(), is_local=values.address is None)
    stop = StopSignals(second=signal.default_int_handler)
    stop.install()
    with _view() as view:
        scheduler = Scheduler(
            cells=cells,
            pool=pool,
            view=view,
            max_retries=values.max_retries,
            may_grow=values.address is not None,
            is_stopping=lambda: stop.requested,
        )
        scheduler.run()
    _say_the_end(scheduler.jobs, out=values.out)
    return scheduler.jobs


def _connect(values: flags.FlagValues) -> RayPool:
    return RayPool(connect(values.address, wanted_by="A sweep", object_bytes=_OBJECT_BYTES))


def _view() -> contextlib.AbstractContextManager:
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        from rainbow_tf.distributed.sweep.table import LiveTable

        return LiveTable()
    return contextlib.nullcontext(PlainLines())


def _say_the_end(jobs: Sequence[Job], *, out: str) -> None:
    print(summary(jobs))
    failed = [job for job in jobs if job.status is Status.FAILED]
    for job in failed[:_MOST_FAILED]:
        print(f"  {job.cell.name} failed: {job.reason}")
        print(f"    {job.cell.config.folder / OUTPUT}")
    if len(failed) > _MOST_FAILED:
        print(f"  and {len(failed) - _MOST_FAILED:,} more")
    if any(job.status is Status.WAITING for job in jobs):
        print("Stopped. To resume:")
        print(f"  python -m rainbow_tf.sweep {shlex.join(sys.argv[1:])}")
    if any(job.status is Status.DONE for job in jobs):
        runs = shlex.quote(f"--runs={out}")
        print("Tables and figures of the runs so far:")
        print(f"  python -m rainbow_tf.report {runs} --out=report/")


def _dry_run(values: flags.FlagValues, cells: Sequence[Cell]) -> None:
    """Prints what the sweep would need, and starts nothing."""
    # After the checks, because TensorFlow takes seconds to load.
    load_tensorflow(cells[0].config.threads)
    from rainbow_tf.distributed.sweep import forecast

    nodes = [forecast.this_machine()] if values.address is None else _connect(values).nodes()
    cells = cells_module.with_gpus(cells, nodes, values.gpus_per_run)
    print(forecast.describe_cells(cells))
    where = "this machine" if values.address is None else f"the cluster at {values.address}"
    print(forecast.forecast(cells, nodes, where=where))


def _shared_names() -> list[str]:
    return [name for name in Config.__dataclass_fields__ if name not in _NOT_SHARED]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of a sweep, and the settings that all its runs share."""
    string = functools.partial(flags.DEFINE_string, flag_values=values)
    integer = functools.partial(flags.DEFINE_integer, flag_values=values)
    string(
        "games",
        None,
        "What is played: all (57 Atari games), atari26 (those of Atari 100K), or names with "
        "commas; a Gymnasium id such as MinAtar/Breakout-v1 is one too.",
    )
    string(
        "presets",
        "rainbow",
        "Agents, by their presets with commas; ablations/* and baselines/* are all of a kind.",
    )
    string("seeds", "1", "How many seeds from 1 on, or a list such as 3,7 or 7,.")
    string("out", "runs", "Folder of all runs on all machines: OUT/<game>/<agent>/seed_<k>.")
    flags.DEFINE_multi_string(
        "preset",
        [],
        "A preset for every agent, such as minatar. Several can be given; they override --presets, "
        "and flags override all of them.",
        flag_values=values,
    )
    string("address", None, "A running Ray cluster, such as auto; default: Ray on this machine.")
    integer("cpus_per_run", None, "CPUs per run; default: 2 for Atari, 1 elsewhere.")
    flags.DEFINE_float(
        "gpus_per_run",
        None,
        "GPUs per run, such as 0.5; default: 1 for Atari if there are any, 0 elsewhere.",
        flag_values=values,
    )
    integer("max_retries", 3, "Retries of a lost run without a new checkpoint in between.")
    flags.DEFINE_bool("dry_run", False, "Print what the sweep needs, and exit.", flag_values=values)
    define_settings(values, names=_shared_names())


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="settings look like --games=qbert,pong",
    interrupted="stopped at once; rerun the command to resume.",
)

if __name__ == "__main__":
    COMMAND.main()
