"""What a log tells of a sweep."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from rainbow_tf.distributed.schedule import Job, Status

_SUMMARY_SECONDS = 60.0


class PlainLines:
    """A line for every event, and one a minute for the whole."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._next_summary = clock() + _SUMMARY_SECONDS

    def say(self, line: str) -> None:
        """Prints what happened."""
        print(line, flush=True)

    def show(self, jobs: Sequence[Job]) -> None:
        """Prints the summary when a minute is over."""
        if self._clock() >= self._next_summary:
            self._next_summary = self._clock() + _SUMMARY_SECONDS
            print(summary(jobs), flush=True)


def summary(jobs: Sequence[Job]) -> str:
    """How many cells stand where."""
    counts = Counter(job.status for job in jobs)
    waiting = counts[Status.WAITING] + counts[Status.QUEUED]
    return (
        f"{len(jobs):,} cells: {counts[Status.DONE]:,} done, {counts[Status.RUNNING]:,} running, "
        f"{waiting:,} waiting, {counts[Status.FAILED]:,} failed."
    )
