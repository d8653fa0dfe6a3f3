"""Runs a sweep on Ray: waits for room, retries lost runs from their checkpoints."""

import dataclasses
import enum
import re
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from rainbow_tf.config import ConfigError
from rainbow_tf.distributed.sweep.cells import (
    Cell,
    Ending,
    Outcome,
    Resources,
    State,
    output_bytes,
    read_state,
    train_cell,
)

_AHEAD = 32  # runs submitted beyond the room there is: an autoscaler adds nodes for them
_POLL_SECONDS = 1.0
_BUSY_SECONDS = 10.0
_CANCEL_AGAIN_SECONDS = 10.0


class Status(enum.Enum):
    """Status of a run."""

    WAITING = "waiting"
    QUEUED = "queued"  # Ray has it, no process yet
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclasses.dataclass(kw_only=True)
class Job:
    """A run of the sweep and its status."""

    cell: Cell
    state: State
    status: Status = Status.WAITING
    task: Any = None  # of Ray, while it has one
    output_bytes: int = 0  # before the task
    tries_lost: int = 0  # in a row, without a new checkpoint
    saved_frames: int = 0  # when it was lost last
    not_before: float = 0.0  # seconds of the clock
    reason: str = ""


class View(Protocol):
    """Shows a sweep to a person."""

    def say(self, line: str) -> None:
        """Reports an event."""

    def show(self, jobs: Sequence[Job]) -> None:
        """Shows the current status."""


class RayPool:
    """Runs as Ray tasks, each in a fresh process."""

    def __init__(self, ray: ModuleType):
        self._ray = ray
        self._train = ray.remote(max_retries=0, max_calls=1)(train_cell)

    def nodes(self) -> list[Resources]:
        """Resources of each node."""
        found = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [Resources(*(n.get(key, 0) for key in ("CPU", "GPU", "memory"))) for n in found]

    def submit(self, cell: Cell) -> Any:
        """A task that trains the run as soon as there is room for it."""
        cpus, gpus, memory = cell.request
        options = {"num_cpus": cpus, "num_gpus": gpus, "memory": int(memory), "name": cell.name}
        return self._train.options(**options).remote(cell)

    def ended(self, tasks: list[Any]) -> list[Any]:
        """The tasks that have ended, after a short wait."""
        if not tasks:
            time.sleep(_POLL_SECONDS)
            return []
        return self._ray.wait(tasks, num_returns=len(tasks), timeout=_POLL_SECONDS)[0]

    def outcome(self, task: Any) -> Outcome:
        """How a task ended."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return Outcome(Ending.STOPPED, "stopped")
        except self._ray.exceptions.RayError as error:
            first_sentence, *_ = re.split(r"\.\s|\n", str(error).strip())
            return Outcome(Ending.LOST, first_sentence.removesuffix("."))

    def cancel(self, task: Any) -> None:
        """Removes a queued task, or interrupts a running one so that it saves and ends."""
        self._ray.cancel(task)


def check_room(cells: Sequence[Cell], nodes: Sequence[Resources], *, is_local: bool) -> None:
    """Refuses a run that does not fit on this machine; warns on a cluster, which may grow."""
    for request, cell in {cell.request: cell for cell in cells}.items():
        if any(node.room_for(request) for node in nodes):
            continue
        largest = max(nodes, key=lambda node: node.memory)
        asks = f"{cell.name} needs {request}"
        if is_local:
            raise ConfigError(
                f"{asks}, and this machine has {largest}; give a smaller --cpus_per_run, "
                "--gpus_per_run or --replay_capacity, or --replay_compression=lz4."
            )
        print(f"{asks}, and no node has that (the largest: {largest}); waiting for one.")


class Scheduler:
    """Runs every run to its end, whatever happens to the others."""

    def __init__(
        self,
        *,
        cells: Sequence[Cell],
        pool: RayPool,
        view: View,
        max_retries: int,
        may_grow: bool,
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.jobs = [Job(cell=cell, state=read_state(cell.config)) for cell in cells]
        for job in self.jobs:
            job.saved_frames = job.state.saved_frames
            if job.state.is_finished:
                job.status = Status.DONE
        self._pool = pool
        self._view = view
        self._max_retries = max_retries
        self._ahead = _AHEAD if may_grow else 0
        self._is_stopping = is_stopping
        self._clock = clock
        self._cancelled_at = float("-inf")

    def run(self) -> None:
        """Runs until all runs are done or failed, or, when stopping, until none is active."""
        while self._is_active():
            if self._is_stopping():
                self._cancel()
            else:
                self._submit()
            self._collect()
            self._update()
            self._view.show(self.jobs)

    def _is_active(self) -> bool:
        if self._is_stopping():
            return any(job.task is not None for job in self.jobs)
        return any(job.status not in (Status.DONE, Status.FAILED) for job in self.jobs)

    def _submit(self) -> None:
        """Submits as many waiting runs as there is room for, in order."""
        now = self._clock()
        ready = [j for j in self.jobs if j.status is Status.WAITING and j.not_before <= now]
        nodes = self._pool.nodes() if ready else []
        submitted = sum(job.task is not None for job in self.jobs)
        for job in ready:
            if submitted >= sum(node.room_for(job.cell.request) for node in nodes) + self._ahead:
                break
            job.output_bytes = output_bytes(job.cell.config)
            job.task = self._pool.submit(job.cell)
            job.status = Status.QUEUED
            submitted += 1

    def _cancel(self) -> None:
        """Interrupts all tasks; repeats it, because library code may swallow an interrupt."""
        if self._clock() < self._cancelled_at + _CANCEL_AGAIN_SECONDS:
            return
        self._view.say("Stopping: active runs save a checkpoint. A second Ctrl-C stops at once.")
        self._cancelled_at = self._clock()
        for job in self.jobs:
            if job.task is not None:
                self._pool.cancel(job.task)

    def _collect(self) -> None:
        jobs = {job.task: job for job in self.jobs if job.task is not None}
        for task in self._pool.ended(list(jobs)):
            job = jobs[task]
            outcome = self._pool.outcome(task)
            job.task = None
            job.state = read_state(job.cell.config)
            if outcome.ending is Ending.DONE:
                job.status = Status.DONE
                score = "" if job.state.score is None else f", last score {job.state.score:,.1f}"
                self._tell(job, f"done{score}")
            elif outcome.ending is Ending.FAILED:
                self._fail(job, outcome.reason)
            elif self._is_stopping():
                job.status = Status.WAITING
                self._tell(job, f"stopped at {job.state.saved_frames:,} frames")
            else:
                self._retry(job, outcome)

    def _retry(self, job: Job, outcome: Outcome) -> None:
        if job.state.saved_frames > job.saved_frames:
            job.tries_lost = 0
        job.saved_frames = job.state.saved_frames
        job.tries_lost += 1
        if job.tries_lost > self._max_retries:
            self._fail(
                job, f"gave up after {job.tries_lost} attempts; last error: {outcome.reason}"
            )
            return
        what = "lost, resumes from"
        if outcome.ending is Ending.BUSY:
            what = "waits at"
            job.not_before = self._clock() + _BUSY_SECONDS
        job.status = Status.WAITING
        self._tell(job, f"{what} {job.saved_frames:,} frames: {outcome.reason}")

    def _fail(self, job: Job, reason: str) -> None:
        job.status, job.reason = Status.FAILED, reason
        self._tell(job, f"failed: {reason}")

    def _tell(self, job: Job, what: str) -> None:
        self._view.say(f"{job.cell.name} {what}")

    def _update(self) -> None:
        """Reads from the folders which runs have started, and their progress."""
        for job in self.jobs:
            config = job.cell.config
            if job.status is Status.QUEUED and output_bytes(config) > job.output_bytes:
                job.status = Status.RUNNING
                self._tell(job, f"started from {job.state.saved_frames:,} frames")
            if job.status is Status.RUNNING:
                job.state = read_state(config)
