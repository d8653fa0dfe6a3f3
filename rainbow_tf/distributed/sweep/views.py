"""What a sweep shows while it runs: lines in a log, or a live table on a terminal."""

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rainbow_tf.distributed.sweep.cells import Status
from rainbow_tf.distributed.sweep.scheduler import Job, summary

_SUMMARY_SECONDS = 60.0
_MOST_EVENTS = 6


class PlainLines:
    """One line per event, and a summary every minute."""

    def __init__(self) -> None:
        self._next_summary = time.monotonic() + _SUMMARY_SECONDS

    def say(self, line: str) -> None:
        """Prints an event."""
        print(line, flush=True)

    def show(self, jobs: Sequence[Job]) -> None:
        """Prints the summary once a minute."""
        if time.monotonic() >= self._next_summary:
            self._next_summary = time.monotonic() + _SUMMARY_SECONDS
            print(summary(jobs), flush=True)


class LiveTable(Live):
    """Active runs and the latest events, never taller than the screen."""

    def __init__(self) -> None:
        super().__init__(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._events: deque[str] = deque(maxlen=_MOST_EVENTS)

    def say(self, line: str) -> None:
        """Keeps an event for the next update."""
        self._events.append(line)

    def show(self, jobs: Sequence[Job]) -> None:
        """Redraws the table."""
        running = [job for job in jobs if job.status is Status.RUNNING]
        # Beside the events: the summary, the head, how many more run, and a line that stays free.
        rows = max(1, self.console.height - len(self._events) - 4)
        below = [f"and {len(running) - rows:,} more active"] if len(running) > rows else []
        below += [f"latest: {event}" for event in self._events]
        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in (summary(jobs), *below)]
        self.update(Group(lines[0], _running_table(running[:rows]), *lines[1:]), refresh=True)


def _running_table(jobs: Sequence[Job]) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("running", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("frames", "%", "frames/s", "score", "h:mm left"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        state, frames = job.state, job.cell.config.frames
        speed, score = state.frames_per_second, state.score
        minutes = int(max(0, frames - state.frames) / speed / 60) if speed else 0
        table.add_row(
            job.cell.name,
            f"{state.frames:,}",
            f"{min(1.0, state.frames / frames):.0%}",
            f"{speed:,.0f}" if speed is not None else "",
            f"{score:,.1f}" if score is not None else "",
            f"{minutes // 60}:{minutes % 60:02d}" if speed else "",
        )
    return table
