"""What a sweep needs: runs, memory, disk and hours, from a short trial of every agent."""

import dataclasses
import textwrap
from collections.abc import Sequence

import psutil
import tensorflow as tf

from rainbow_tf.console import duration, size, table
from rainbow_tf.distributed.sweep.cells import Cell, Resources, counted, read_state
from rainbow_tf.training.checkpoint import disk_bytes
from rainbow_tf.training.progress import measure_speed
from rainbow_tf.training.run import build_single
from rainbow_tf.types import BEGINNING

_TRIAL_CAPACITY = 10_000  # steps of replay: its size does not change the speed
_WIDTH = 90  # of the lists of environments and seeds


def this_machine() -> Resources:
    """Free resources of this machine."""
    return Resources(
        cpus=psutil.cpu_count() or 1,
        gpus=len(tf.config.list_physical_devices("GPU")),
        memory=psutil.virtual_memory().available,
    )


def print_cells(cells: Sequence[Cell]) -> None:
    """Prints the runs by agent, and what each needs."""
    environments = dict.fromkeys(cell.config.environment_name for cell in cells)
    seeds = dict.fromkeys(str(cell.config.seed) for cell in cells)
    agents: dict[str, str] = {}
    for cell in cells:
        agents.setdefault(cell.config.agent, f"{cell.preset}, {cell.request} per run")
    finished = sum(read_state(cell.config).is_finished for cell in cells)
    print(
        f"{counted(len(cells), 'run')}, {finished:,} of them finished: "
        f"{counted(len(agents), 'agent')}, {counted(len(environments), 'environment')}, "
        f"{counted(len(seeds), 'seed')}."
    )
    print(f"  environments  {textwrap.shorten(', '.join(environments), _WIDTH)}")
    print(f"  seeds  {textwrap.shorten(', '.join(seeds), _WIDTH)}")
    print(table(agents))


def print_forecast(cells: Sequence[Cell], nodes: Sequence[Resources], *, where: str) -> None:
    """Prints disk and hours of the unfinished runs."""
    trials: dict[tuple[str, bool], tuple[float, int]] = {}
    disk = hours = wall_hours = longest = 0.0
    for cell in cells:
        config = cell.config
        kind = (cell.preset, config.game is not None)
        if kind not in trials:
            trials[kind] = _measure(cell)
        hours_of_all, num_parameters = trials[kind]
        disk += disk_bytes(config, cell.spec, num_parameters)
        cell_hours = hours_of_all * max(0.0, 1 - read_state(config).saved_frames / config.frames)
        room = sum(node.room_for(cell.request) for node in nodes)
        hours += cell_hours
        wall_hours += cell_hours / max(room, 1)
        longest = max(longest, cell_hours)
    room = sum(node.room_for(cells[0].request) for node in nodes)
    print(f"Disk: {size(disk)} at most, for checkpoints with a full replay.")
    print(
        f"Time: {hours:,.2f} run-hours at the speed of this machine; {where} has room for "
        f"{room:,} at the same time, so {duration(3600 * max(wall_hours, longest))} in all."
    )


def _measure(cell: Cell) -> tuple[float, int]:
    """Hours of a whole run, and parameters of its network."""
    config = cell.config
    capacity = min(config.replay_capacity, _TRIAL_CAPACITY)
    print(f"Measuring {config.agent} on {config.environment_name} ...", end="", flush=True)
    parts, _ = build_single(dataclasses.replace(config, replay_capacity=capacity), BEGINNING)
    try:
        frames_per_second, seconds = measure_speed(config, parts)
    finally:
        parts.close()
    print(f" {frames_per_second:,.0f} frames/s when learning")
    return seconds / 3600, parts.learner.online.count_params()
