"""What a sweep needs: runs, memory, disk and hours, from a short trial of every agent."""

import dataclasses
from collections.abc import Sequence

import psutil
import tensorflow as tf

from rainbow_tf.distributed.sweep.cells import Cell, Resources, read_state
from rainbow_tf.distributed.sweep.views import counted
from rainbow_tf.training.build import build_parts
from rainbow_tf.training.checkpoint import disk_bytes
from rainbow_tf.training.progress import duration, measure_speed, size

_TRIAL_CAPACITY = 10_000  # steps of replay: its size does not change the speed
_MOST_ENVIRONMENTS = 8


def this_machine() -> Resources:
    """Free resources of this machine."""
    return Resources(
        cpus=psutil.cpu_count() or 1,
        gpus=len(tf.config.list_physical_devices("GPU")),
        memory=psutil.virtual_memory().available,
    )


def describe_cells(cells: Sequence[Cell]) -> str:
    """The runs by agent, and what each needs."""
    environments = list(dict.fromkeys(cell.config.environment_name for cell in cells))
    seeds = list(dict.fromkeys(cell.config.seed for cell in cells))
    finished = sum(read_state(cell.config).is_finished for cell in cells)
    rows: dict[str, str] = {}
    for cell in cells:
        rows.setdefault(cell.config.agent, f"{cell.preset}, {cell.request} per run")
    width = max(map(len, rows))
    more = (
        f" and {len(environments) - _MOST_ENVIRONMENTS} more"
        if len(environments) > _MOST_ENVIRONMENTS
        else ""
    )
    return "\n".join(
        [
            f"{counted(cells, 'run')}, {finished:,} of them finished: {counted(rows, 'agent')}, "
            f"{counted(environments, 'environment')}, {counted(seeds, 'seed')}.",
            f"  environments  {', '.join(environments[:_MOST_ENVIRONMENTS])}{more}",
            f"  seeds  {', '.join(map(str, seeds[:20]))}{', ...' if len(seeds) > 20 else ''}",
            *(f"  {agent:<{width}}  {row}" for agent, row in rows.items()),
        ]
    )


def forecast(cells: Sequence[Cell], nodes: Sequence[Resources], *, where: str) -> str:
    """Disk and hours of the unfinished runs."""
    trials: dict[tuple[str, bool], _Trial] = {}
    disk = hours = wall_hours = longest = 0.0
    for cell in cells:
        config = cell.config
        kind = (cell.preset, config.game is not None)
        if kind not in trials:
            trials[kind] = _measure(cell)
        disk += disk_bytes(config, cell.spec, trials[kind].num_parameters)
        state = read_state(config)
        if state.is_finished:
            continue
        cell_hours = trials[kind].hours * max(0.0, 1 - state.saved_frames / config.frames)
        room = sum(node.room_for(cell.request) for node in nodes)
        hours += cell_hours
        wall_hours += cell_hours / max(room, 1)
        longest = max(longest, cell_hours)
    first = next(iter(cells)).request
    room = sum(node.room_for(first) for node in nodes)
    return "\n".join(
        [
            f"Disk: {size(disk)} at most, for checkpoints with a full replay.",
            f"Time: {hours:,.2f} run-hours at the speed of this machine; {where} has room for "
            f"{room:,} at the same time, so {duration(3600 * max(wall_hours, longest))} in all.",
        ]
    )


@dataclasses.dataclass(frozen=True)
class _Trial:
    hours: float  # of a whole cell
    num_parameters: int


def _measure(cell: Cell) -> _Trial:
    config = cell.config
    capacity = min(config.replay_capacity, _TRIAL_CAPACITY)
    print(f"Measuring {config.agent} on {config.environment_name} ...", end="", flush=True)
    parts = build_parts(dataclasses.replace(config, replay_capacity=capacity))
    try:
        frames_per_second, seconds = measure_speed(config, parts)
    finally:
        parts.close()
    print(f" {frames_per_second:,.0f} frames/s when learning")
    return _Trial(hours=seconds / 3600, num_parameters=parts.learner.online.count_params())
