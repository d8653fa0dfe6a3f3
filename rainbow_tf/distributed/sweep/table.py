"""A live table of a sweep, on a terminal."""

from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rainbow_tf.distributed.sweep.scheduler import Job, Status
from rainbow_tf.distributed.sweep.views import summary

_MOST_FAILED = 4
_MOST_EVENTS = 3


class LiveTable:
    """Active and failed runs and the latest events, never taller than the screen."""

    def __init__(self, console: Console | None = None):
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._events: deque[str] = deque(maxlen=_MOST_EVENTS)

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Keeps an event for the next update."""
        self._events.append(line)

    def show(self, jobs: Sequence[Job]) -> None:
        """Redraws the table."""
        self._live.update(self._drawn(jobs), refresh=True)

    def _drawn(self, jobs: Sequence[Job]) -> Group:
        running = [job for job in jobs if job.status is Status.RUNNING]
        failed = [job for job in jobs if job.status is Status.FAILED]
        below = [f"failed: {job.cell.name}: {job.reason}" for job in failed[-_MOST_FAILED:]]
        if len(failed) > _MOST_FAILED:
            below.append(f"and {len(failed) - _MOST_FAILED:,} more that failed")
        below += [f"latest: {event}" for event in self._events]
        # Beside these: the summary, the head, how many more run, and a line that stays free.
        rows = max(1, self._console.height - len(below) - 4)
        if len(running) > rows:
            below.insert(0, f"and {len(running) - rows:,} more active")
        return Group(
            Text(summary(jobs), style="bold", no_wrap=True, overflow="ellipsis"),
            _running_table(running[:rows]),
            *(Text(line, no_wrap=True, overflow="ellipsis") for line in below),
        )


def _running_table(jobs: Sequence[Job]) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("running", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("frames", "%", "frames/s", "score", "h:mm left"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        state, frames = job.state, job.cell.config.frames
        speed, score = state.frames_per_second, state.score
        table.add_row(
            job.cell.name,
            f"{state.frames:,}",
            f"{min(1.0, state.frames / frames):.0%}",
            f"{speed:,.0f}" if speed is not None else "",
            f"{score:,.1f}" if score is not None else "",
            _hours(max(0, frames - state.frames) / speed) if speed else "",
        )
    return table


def _hours(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}"
