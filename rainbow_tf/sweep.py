"""Trains many agents on many games, on Ray: python -m rainbow_tf.sweep --games=qbert,pong."""

import contextlib
import difflib
import fnmatch
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf.command import Command, Flag, parse_settings
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed.cluster import connect
from rainbow_tf.distributed.sweep.cells import OUTPUT, Cell, Status, make_cells, with_gpus
from rainbow_tf.distributed.sweep.scheduler import Job, RayPool, Scheduler, check_room, summary
from rainbow_tf.games import GAMES
from rainbow_tf.process import StopSignals, load_tensorflow
from rainbow_tf.scoring.normalise import published

_OBJECT_BYTES = 100_000_000  # runs return sentences, nothing large
_MOST_FAILED = 20
_OF_A_RUN = ("game", "environment", "seed", "run_dir", "restart", "export_dir")
_OF_THE_SWEEP = ("address", "actors")  # a run of a sweep is one process, without actors
_SHARED = [n for n in Config.__dataclass_fields__ if n not in (*_OF_A_RUN, *_OF_THE_SWEEP)]


def run(values: flags.FlagValues) -> None:
    """Checks every run, then trains those that are not finished."""
    shared = [values[name].serialize() for name in _SHARED if values[name].present]
    arguments = [*(f"--preset={name}" for name in values.preset), *shared]
    kinds = parse(values.games, values.presets, arguments)
    out, cpus = Path(values.out), values.cpus_per_run
    cells = make_cells(kinds, seeds=seeds(values.seeds), out=out, cpus=cpus)
    if values.dry_run:
        _dry_run(values, cells)
    else:
        _print_end(_train(values, cells), out=values.out)


def parse(games: str, agent_presets: str, arguments: Sequence[str]) -> list[tuple[str, Config]]:
    """The preset and the settings of every agent on every game; arguments apply to all."""
    return [
        (agent, parse_settings([f"--preset={agent}", *arguments, environment]))
        for environment in environments(games)
        for agent in agents(agent_presets)
    ]


def environments(names: str) -> list[str]:
    """The flags of the environments in --games, each once."""
    scores, *_ = published("atari100k", "noop").values()
    groups = {"all": GAMES, "atari26": scores, **{game: [game] for game in GAMES}}
    found: list[str] = []
    for name in _parts(names, "--games", "such as --games=qbert,pong or --games=all"):
        if name in groups:
            found += [f"--game={game}" for game in groups[name]]
        elif name != name.lower() or "/" in name or "-" in name:
            found.append(f"--environment={name}")
        else:
            raise ConfigError(
                f"--games has {name}, which is not one of the 57 games, all, atari26 or a "
                f"Gymnasium id; {_hint(name, list(groups))}"
            )
    return list(dict.fromkeys(found))


def agents(patterns: str) -> list[str]:
    """Names of the presets that --presets matches, each once."""
    names: list[str] = []
    for pattern in _parts(patterns, "--presets", "such as --presets=rainbow,ablations/*"):
        found = presets.names(pattern)
        if not found:
            hint = _hint(pattern, presets.names())
            raise ConfigError(f"--presets has {pattern}, which matches no preset; {hint}")
        names += found
    return list(dict.fromkeys(names))


def _hint(name: str, known: Sequence[str]) -> str:
    close = fnmatch.filter(known, f"*/{name}") or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}."


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
    from rainbow_tf.distributed.sweep.views import LiveTable, PlainLines  # rich comes with Ray

    cells = with_gpus(cells, pool.nodes(), values.gpus_per_run)
    check_room(cells, pool.nodes(), is_local=values.address is None)
    stop = StopSignals(second=signal.default_int_handler)
    stop.install()
    with LiveTable() if sys.stdout.isatty() else contextlib.nullcontext(PlainLines()) as view:
        scheduler = Scheduler(
            cells=cells,
            pool=pool,
            say=view.say,
            show=view.show,
            max_retries=values.max_retries,
            may_grow=values.address is not None,
            is_stopping=lambda: stop.requested,
        )
        scheduler.run()
    return scheduler.jobs


def _connect(values: flags.FlagValues) -> RayPool:
    return RayPool(connect(values.address, wanted_by="A sweep", object_bytes=_OBJECT_BYTES))


def _print_end(jobs: Sequence[Job], *, out: str) -> None:
    """Prints how the runs ended and what to do next; the status is 1 if a run failed."""
    print(summary(jobs))
    failed = [job for job in jobs if job.status is Status.FAILED]
    for job in failed[:_MOST_FAILED]:
        print(f"  {job.cell.name} failed: {job.reason}")
        print(f"    {job.cell.config.folder / OUTPUT}")
    if any(job.status is Status.WAITING for job in jobs):
        print("Stopped. To resume:")
        print(f"  python -m rainbow_tf.sweep {shlex.join(sys.argv[1:])}")
    if any(job.status is Status.DONE for job in jobs):
        print("Tables and figures of the runs so far:")
        print(f"  python -m rainbow_tf.report {shlex.quote(f'--runs={out}')} --out=report/")
    if failed:
        sys.exit(1)


def _dry_run(values: flags.FlagValues, cells: Sequence[Cell]) -> None:
    """Prints what the sweep would need, and starts nothing."""
    # After the checks, because TensorFlow takes seconds to load.
    load_tensorflow(cells[0].config.threads)
    from rainbow_tf.distributed.sweep import forecast

    nodes = [forecast.this_machine()] if values.address is None else _connect(values).nodes()
    cells = with_gpus(cells, nodes, values.gpus_per_run)
    forecast.print_cells(cells)
    where = "this machine" if values.address is None else f"the cluster at {values.address}"
    forecast.print_forecast(cells, nodes, where=where)


COMMAND = Command(
    settings=_SHARED,
    options={
        "games": Flag(
            None, "all (57 of Atari), atari26 (Atari 100K), or names and Gymnasium ids, by commas."
        ),
        "presets": Flag("rainbow", "Agents by their presets; ablations/* are all of a kind."),
        "seeds": Flag("1", "How many seeds from 1 on, or a list such as 3,7 or 7,."),
        "out": Flag("runs", "Folder of all runs on all machines: OUT/<game>/<agent>/seed_<k>."),
        "preset": Flag([], "A preset for every agent, such as minatar; overrides --presets."),
        "address": Flag(None, "A running Ray cluster, such as auto; default: this machine."),
        "cpus_per_run": Flag(
            None, "CPUs per run; default: 2 for Atari, 1 elsewhere.", int, minimum=1, maximum=1024
        ),
        "gpus_per_run": Flag(
            None,
            "GPUs per run; default: 1 for Atari if any, else 0.",
            float,
            minimum=0,
            maximum=1024,
        ),
        "max_retries": Flag(
            3, "Retries of a run without a new checkpoint between.", minimum=0, maximum=1000
        ),
        "dry_run": Flag(False, "Print what the sweep needs, and exit."),
    },
    run=run,
    example="settings look like --games=qbert,pong",
    interrupted="stopped at once; rerun the command to resume.",
)

if __name__ == "__main__":
    COMMAND.main()
