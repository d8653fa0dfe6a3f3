"""The log output of a sweep."""

import time
from collections import Counter
from collections.abc import Callable, Sequence, Sized

from rainbow_tf.distributed.sweep.scheduler import Job, Status

_SUMMARY_SECONDS = 60.0


class PlainLines:
    """One line per event, and a summary every minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._next_summary = clock() + _SUMMARY_SECONDS

    def say(self, line: str) -> None:
        """Prints an event."""
        print(line, flush=True)

    def show(self, jobs: Sequence[Job]) -> None:
        """Prints the summary once a minute."""
        if self._clock() >= self._next_summary:
            self._next_summary = self._clock() + _SUMMARY_SECONDS
            print(summary(jobs), flush=True)


def summary(jobs: Sequence[Job]) -> str:
    """Number of runs by status."""
    counts = Counter(job.status for job in jobs)
    waiting = counts[Status.WAITING] + counts[Status.QUEUED]
    return (
        f"{counted(jobs, 'run')}: {counts[Status.DONE]:,} done, {counts[Status.RUNNING]:,} "
        f"running, {waiting:,} waiting, {counts[Status.FAILED]:,} failed."
    )


def counted(things: Sized, name: str) -> str:
    """A count with its noun: 1 run, 3,990 runs."""
    return f"{len(things):,} {name}{'s' if len(things) != 1 else ''}"
