"""Runs a sweep on Ray: waits for room, retries lost runs from their checkpoints."""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rainbow_tf.config import ConfigError
from rainbow_tf.distributed.sweep.cells import (
    Cell,
    Outcome,
    Resources,
    State,
    Status,
    counted,
    read_state,
    train_cell,
)

_AHEAD = 32  # runs submitted beyond the room there is: an autoscaler adds nodes for them
_POLL_SECONDS = 1.0
_CANCEL_AGAIN_SECONDS = 10.0


@dataclasses.dataclass
class Job:
    """A run of the sweep and its status."""

    cell: Cell
    state: State
    status: Status
    task: Any = None  # of Ray, while it has one
    tries_lost: int = 0  # in a row, without a new checkpoint
    saved_frames: int = 0  # when it was lost last
    not_before: float = 0.0  # seconds of the clock
    reason: str = ""


def summary(jobs: Sequence[Job]) -> str:
    """Number of runs by status."""
    counts = Counter(job.status for job in jobs)
    parts = [f"{counts[status]:,} {status.value}" for status in Status]
    return f"{counted(len(jobs), 'run')}: {', '.join(parts)}."


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
        except self._ray.exceptions.RayError as error:
            first_sentence, *_ = re.split(r"\.\s|\n", str(error).strip())
            return Outcome(Status.WAITING, first_sentence.removesuffix("."))

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


@dataclasses.dataclass(kw_only=True)
class Scheduler:
    """Runs every run to its end, whatever happens to the others."""

    cells: dataclasses.InitVar[Sequence[Cell]]
    pool: RayPool
    say: Callable[[str], None]
    show: Callable[[Sequence[Job]], None]
    max_retries: int
    may_grow: bool  # whether the cluster adds nodes for waiting runs
    is_stopping: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self, cells: Sequence[Cell]) -> None:
        self.jobs = []
        for cell in cells:
            state = read_state(cell.config)
            status = Status.DONE if state.is_finished else Status.WAITING
            self.jobs.append(Job(cell, state, status, saved_frames=state.saved_frames))
        self._cancelled_at = float("-inf")

    def run(self) -> None:
        """Runs until all runs are done or failed, or, when stopping, until none is active."""
        while self._is_active():
            if self.is_stopping():
                self._cancel()
            else:
                self._submit()
            self._collect()
            self._update()
            self.show(self.jobs)

    def _is_active(self) -> bool:
        if self.is_stopping():
            return any(job.task is not None for job in self.jobs)
        return any(job.status not in (Status.DONE, Status.FAILED) for job in self.jobs)

    def _submit(self) -> None:
        """Submits as many waiting runs as there is room for, in order."""
        now = self.clock()
        waiting = [job for job in self.jobs if job.status is Status.WAITING and job.task is None]
        ready = [job for job in waiting if job.not_before <= now]
        nodes = self.pool.nodes() if ready else []
        submitted = sum(job.task is not None for job in self.jobs)
        for job in ready:
            room = sum(node.room_for(job.cell.request) for node in nodes)
            if submitted >= room + (_AHEAD if self.may_grow else 0):
                break
            job.task = self.pool.submit(job.cell)
            submitted += 1

    def _cancel(self) -> None:
        """Interrupts all tasks; repeats it, because library code may swallow an interrupt."""
        if self.clock() < self._cancelled_at + _CANCEL_AGAIN_SECONDS:
            return
        self.say("Stopping: active runs save a checkpoint. A second Ctrl-C stops at once.")
        self._cancelled_at = self.clock()
        for job in self.jobs:
            if job.task is not None:
                self.pool.cancel(job.task)

    def _collect(self) -> None:
        jobs = {job.task: job for job in self.jobs if job.task is not None}
        for task in self.pool.ended(list(jobs)):
            job, outcome = jobs[task], self.pool.outcome(task)
            job.task = None
            job.state = read_state(job.cell.config)
            job.status, job.reason = outcome.status, outcome.reason
            if job.status is Status.DONE:
                score = "" if job.state.score is None else f", last score {job.state.score:,.1f}"
                self._tell(job, f"done{score}")
            elif job.status is Status.FAILED:
                self._tell(job, f"failed: {job.reason}")
            elif self.is_stopping():
                self._tell(job, f"stopped at {job.state.saved_frames:,} frames")
            else:
                self._retry(job, outcome.retry_seconds)

    def _retry(self, job: Job, seconds: float) -> None:
        if job.state.saved_frames > job.saved_frames:
            job.tries_lost = 0
        job.saved_frames = job.state.saved_frames
        job.tries_lost += 1
        if job.tries_lost > self.max_retries:
            job.status = Status.FAILED
            job.reason = f"gave up after {job.tries_lost} attempts; last error: {job.reason}"
            self._tell(job, f"failed: {job.reason}")
            return
        job.not_before = self.clock() + seconds
        what = "waits at" if seconds > 0 else "lost, resumes from"
        self._tell(job, f"{what} {job.saved_frames:,} frames: {job.reason}")

    def _tell(self, job: Job, what: str) -> None:
        self.say(f"{job.cell.name} {what}")

    def _update(self) -> None:
        """Reads from the folders which runs have started, and their progress."""
        for job in self.jobs:
            if job.task is None:
                continue
            state = read_state(job.cell.config)
            if job.status is Status.WAITING and state.output_bytes > job.state.output_bytes:
                job.status = Status.RUNNING
                self._tell(job, f"started from {job.state.saved_frames:,} frames")
            if job.status is Status.RUNNING:
                job.state = state
