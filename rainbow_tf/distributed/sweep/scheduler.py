"""Runs the cells of a sweep on Ray: waits, tries again what was lost, and never starts over."""

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

_AHEAD = 32  # cells more than there is room for: an autoscaler adds nodes for what it sees waiting
_POLL_SECONDS = 1.0
_BUSY_SECONDS = 10.0
_CANCEL_AGAIN_SECONDS = 10.0


class Status(enum.Enum):
    """Where a cell stands."""

    WAITING = "waiting"
    QUEUED = "queued"  # Ray has it, no process yet
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclasses.dataclass(kw_only=True)
class Job:
    """A cell and what became of it so far."""

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
    """What a person sees of a sweep."""

    def say(self, line: str) -> None:
        """Something happened."""

    def show(self, jobs: Sequence[Job]) -> None:
        """The sweep as it stands."""


class RayPool:
    """Cells as tasks of Ray, each in a fresh process."""

    def __init__(self, ray: ModuleType):
        self._ray = ray
        self._train = ray.remote(max_retries=0, max_calls=1)(train_cell)

    def nodes(self) -> list[Resources]:
        """What each machine of the cluster has."""
        found = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [Resources(*(n.get(key, 0) for key in ("CPU", "GPU", "memory"))) for n in found]

    def submit(self, cell: Cell) -> Any:
        """A task that trains the cell as soon as there is room for it."""
        cpus, gpus, memory = cell.request
        options = {"num_cpus": cpus, "num_gpus": gpus, "memory": int(memory), "name": cell.name}
        return self._train.options(**options).remote(cell)

    def ended(self, tasks: list[Any]) -> list[Any]:
        """Those of the tasks that ended within a moment."""
        if not tasks:
            time.sleep(_POLL_SECONDS)
            return []
        return self._ray.wait(tasks, num_returns=len(tasks), timeout=_POLL_SECONDS)[0]

    def outcome(self, task: Any) -> Outcome:
        """How an ended task ended."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return Outcome(Ending.STOPPED, "it was stopped")
        except self._ray.exceptions.RayError as error:
            first_sentence, *_ = re.split(r"\.\s|\n", str(error).strip())
            return Outcome(Ending.LOST, first_sentence.removesuffix("."))

    def cancel(self, task: Any) -> None:
        """Takes the task out of the queue, or interrupts it so that it saves and ends."""
        self._ray.cancel(task)


def check_room(cells: Sequence[Cell], nodes: Sequence[Resources], *, is_local: bool) -> None:
    """Refuses a cell that this machine can never hold; of a cluster, which may grow, warns."""
    for request, cell in {cell.request: cell for cell in cells}.items():
        if any(node.room_for(request) for node in nodes):
            continue
        largest = max(nodes, key=lambda node: node.memory)
        asks = f"{cell.name} asks for {request}"
        if is_local:
            raise ConfigError(
                f"{asks}, and this machine has {largest}; give a smaller --cpus_per_run, "
                "--gpus_per_run or --replay_capacity, or --replay_compression=lz4."
            )
        print(f"{asks}, and no node has that (the largest: {largest}); it waits for one.")


class Scheduler:
    """Brings every cell to its end, whatever happens to others."""

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
        """Runs until all cells are done or failed, or until those that run have stopped."""
        while self._goes_on():
            if self._is_stopping():
                self._cancel()
            else:
                self._submit()
            self._collect()
            self._look()
            self._view.show(self.jobs)

    def _goes_on(self) -> bool:
        if self._is_stopping():
            return any(job.task is not None for job in self.jobs)
        return any(job.status not in (Status.DONE, Status.FAILED) for job in self.jobs)

    def _submit(self) -> None:
        """Hands Ray what there is room for; what was lost comes first, as it stands first."""
        now = self._clock()
        ready = [j for j in self.jobs if j.status is Status.WAITING and j.not_before <= now]
        nodes = self._pool.nodes() if ready else []
        under_way = sum(job.task is not None for job in self.jobs)
        for job in ready:
            if under_way >= sum(node.room_for(job.cell.request) for node in nodes) + self._ahead:
                break
            job.output_bytes = output_bytes(job.cell.config)
            job.task = self._pool.submit(job.cell)
            job.status = Status.QUEUED
            under_way += 1

    def _cancel(self) -> None:
        """Interrupts all tasks, again after a while: library code may swallow an interrupt."""
        if self._clock() < self._cancelled_at + _CANCEL_AGAIN_SECONDS:
            return
        self._view.say("Stopping: what runs saves a checkpoint. A second Ctrl-C ends at once.")
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
                self._try_again(job, outcome)

    def _try_again(self, job: Job, outcome: Outcome) -> None:
        if job.state.saved_frames > job.saved_frames:
            job.tries_lost = 0
        job.saved_frames = job.state.saved_frames
        job.tries_lost += 1
        if job.tries_lost > self._max_retries:
            self._fail(job, f"tried {job.tries_lost} times in vain, at last: {outcome.reason}")
            return
        what = "lost, goes on from"
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

    def _look(self) -> None:
        """Sees in their folders which cells have begun, and how far the running ones are."""
        for job in self.jobs:
            config = job.cell.config
            if job.status is Status.QUEUED and output_bytes(config) > job.output_bytes:
                job.status = Status.RUNNING
                self._tell(job, f"begun from {job.state.saved_frames:,} frames")
            if job.status is Status.RUNNING:
                job.state = read_state(config)
