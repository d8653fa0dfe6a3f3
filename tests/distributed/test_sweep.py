"""Sweeps: their runs, the scheduler, the views and the command.

Cells are not trained here, except by the tests at the end, which start Ray.
"""

import csv
import dataclasses
import io
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tensorflow as tf
from fake_ray import FakeRay, Ref, TaskCancelledError, WorkerCrashedError
from rich.console import Console

from rainbow_tf import sweep
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed import cluster
from rainbow_tf.distributed.sweep import cells as cells_module
from rainbow_tf.distributed.sweep import scheduler as schedule
from rainbow_tf.distributed.sweep import views
from rainbow_tf.distributed.sweep.cells import Outcome, Resources, Status, read_state
from rainbow_tf.distributed.sweep.scheduler import Job, Scheduler, check_room
from rainbow_tf.runs.folder import FolderBusyError, RunFolder, is_finished
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointError, CheckpointStore

TINY = [
    "--games=CartPole-v1",
    "--presets=rainbow,baselines/dqn",
    "--frames=400",
    "--min_history_frames=100",
    "--replay_capacity=1000",
    "--log_period_frames=100",
    "--eval_period_frames=200",
    "--eval_frames=100",
    "--checkpoint_period_frames=100",
]


def make_cells(out, *arguments, games="CartPole-v1", presets="rainbow", seeds="1", cpus=None):
    kinds = sweep.parse(games, presets, arguments)
    return cells_module.make_cells(kinds, seeds=sweep.seeds(seeds), out=out, cpus=cpus)


# The cells.


def test_presets_with_actors_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"--preset=apex has --actors=4.*leave that preset out"):
        make_cells(tmp_path, presets="rainbow,apex", games="pong")


def test_games_by_name_and_by_group():
    assert len(sweep.environments("all")) == 57
    atari26 = sweep.environments("atari26")
    assert len(set(atari26)) == 26
    assert {"--game=pong", "--game=up_n_down"} <= set(atari26)
    assert "--game=tennis" not in atari26
    assert sweep.environments("qbert, pong,qbert,") == ["--game=qbert", "--game=pong"]
    assert sweep.environments("MinAtar/Breakout-v1,CartPole-v1,Own") == [
        "--environment=MinAtar/Breakout-v1",
        "--environment=CartPole-v1",
        "--environment=Own",
    ]


def test_presets_by_pattern():
    assert sweep.agents("rainbow,ablations/*,rainbow")[:2] == [
        "rainbow",
        "ablations/no_distributional",
    ]
    assert len(sweep.agents("rainbow,ablations/*,baselines/*")) == 14


@pytest.mark.parametrize(
    ("text", "numbers"), [("5", [1, 2, 3, 4, 5]), ("3,7", [3, 7]), ("7,", [7]), ("0,0,4", [0, 4])]
)
def test_seeds(text, numbers):
    assert sweep.seeds(text) == numbers


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (sweep.environments, "qbertt", "--games has qbertt.*did you mean qbert?"),
        (sweep.environments, "al", "did you mean all?"),
        (sweep.environments, None, "--games names nothing; give it, such as"),
        (sweep.agents, "dqn", "--presets has dqn.*did you mean baselines/dqn?"),
        (sweep.agents, "ablation/*", "--presets has ablation/.*matches no preset"),
        (sweep.agents, ",", "--presets names nothing"),
        (sweep.seeds, "0", "--seeds=0 cannot be used"),
        (sweep.seeds, "-1", "--seeds=-1 cannot be used"),
        (sweep.seeds, "1,x", "--seeds=1,x cannot be used"),
    ],
)
def test_unknown_names_are_rejected(read, text, said):
    with pytest.raises(ConfigError, match=said):
        read(text)


def test_one_cell_per_agent_environment_and_seed(tmp_path):
    cells = make_cells(
        tmp_path,
        "--preset=minatar",
        games="MinAtar/Breakout-v1,MinAtar/Asterix-v1",
        presets="rainbow,baselines/dqn",
        seeds="2",
    )
    assert [cell.name for cell in cells] == [
        "minatar_breakout_v1/rainbow/seed_1",
        "minatar_breakout_v1/dqn/seed_1",
        "minatar_asterix_v1/rainbow/seed_1",
        "minatar_asterix_v1/dqn/seed_1",
        "minatar_breakout_v1/rainbow/seed_2",
        "minatar_breakout_v1/dqn/seed_2",
        "minatar_asterix_v1/rainbow/seed_2",
        "minatar_asterix_v1/dqn/seed_2",
    ]
    assert {cell.config.folder for cell in cells} == {tmp_path / cell.name for cell in cells}
    assert {cell.config.min_history_frames for cell in cells} == {2_000}, (
        "--preset wins over --presets"
    )
    assert not list(tmp_path.iterdir())


def test_flags_override_presets(tmp_path):
    (cell,) = make_cells(
        tmp_path, "--preset=minatar", "--frames=7", "--nodouble", games="MinAtar/Asterix-v1"
    )
    assert (cell.config.frames, cell.config.double) == (7, False)
    assert cell.config.environment == "MinAtar/Asterix-v1"
    assert cell.name == "minatar_asterix_v1/no_double/seed_1"


def test_threads_default_to_the_cpus(tmp_path):
    def threads(*arguments, **kwargs):
        return make_cells(tmp_path, *arguments, **kwargs)[0].config.threads

    assert threads() == 1
    assert threads(games="qbert") == 2
    assert threads(games="qbert", cpus=3) == 3
    assert threads("--threads=5", games="qbert", cpus=3) == 5


def test_two_presets_of_the_same_agent_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"rainbow on qbert and sticky on qbert .*leave one out"):
        make_cells(tmp_path, games="qbert", presets="rainbow,sticky")


def test_a_folder_with_other_settings_is_rejected(tmp_path):
    (cell,) = make_cells(tmp_path)
    (cell.config.folder).mkdir(parents=True)
    (cell.config.folder / "config.json").write_text(cell.config.to_json())
    make_cells(tmp_path, "--frames=9")
    with pytest.raises(ConfigError, match=r"--batch_size=32.*--batch_size=8.*another --out"):
        make_cells(tmp_path, "--batch_size=8")


# Resource requests.


@pytest.mark.parametrize(
    ("kwargs", "arguments", "cpus", "memory"),
    [
        # A million frames of 84 x 84 bytes, with 23 bytes beside each.
        ({"games": "qbert"}, [], 2, 7_079_000_000 + 1_500_000_000),
        # 0.27 x 7056 = 1905 compressed, 33 for the bytes object, 23 beside it.
        ({"games": "qbert"}, ["--replay_compression=lz4"], 2, 1_961_000_000 + 1_500_000_000),
        ({"games": "qbert", "presets": "baselines/a3c", "cpus": 16}, [], 16, 1_500_000_000),
        # Four floats of four bytes, and 23.
        ({}, ["--replay_capacity=1000"], 1, 39_000 + 1_500_000_000),
    ],
)
def test_requested_cpus_and_memory(tmp_path, kwargs, arguments, cpus, memory):
    (cell,) = make_cells(tmp_path, *arguments, **kwargs)
    assert cell.request == Resources(cpus=cpus, gpus=0, memory=memory)


def test_atari_gets_a_gpu_by_default_if_there_is_one(tmp_path):
    cells = make_cells(tmp_path, games="CartPole-v1,qbert")

    def gpus(nodes, wanted):
        return [cell.request.gpus for cell in cells_module.with_gpus(cells, nodes, wanted)]

    without, with_two = Resources(2, 0, 8e9), Resources(2, 2, 8e9)
    assert gpus([without], None) == [0, 0]
    assert gpus([without, with_two], None) == [0, 1]
    assert gpus([with_two], 0.5) == [0.5, 0.5]
    assert gpus([with_two], 0) == [0, 0]


def test_how_many_cells_fit_a_node():
    node = Resources(cpus=16, gpus=1, memory=40e9)
    assert node.room_for(Resources(2, 0, 8.6e9)) == 4  # limited by memory
    assert node.room_for(Resources(4, 0, 1e9)) == 4  # by CPUs
    assert node.room_for(Resources(2, 0.25, 1e9)) == 4  # by the GPU
    assert node.room_for(Resources(2, 2, 1e9)) == 0


def test_no_room_is_an_error_locally_and_a_warning_on_a_cluster(tmp_path, capsys):
    cells = make_cells(tmp_path, games="qbert")
    small, large = Resources(1, 0, 64e9), Resources(2, 0, 8_579_000_000)
    check_room(cells, [small, large], is_local=True)
    with pytest.raises(ConfigError, match=r"2 CPUs, 0 GPUs and 8.6 GB.*has 1 CPU.*--cpus_per_run"):
        check_room(cells, [small], is_local=True)
    assert capsys.readouterr().out == ""
    check_room(cells, [small], is_local=False)
    assert "qbert/rainbow/seed_1 needs 2 CPUs" in capsys.readouterr().out


# Progress, read from the run folders.


def write_checkpoint(config, frames, *, evaluated=None):
    evaluator = {"best": None, "evaluated": frames if evaluated is None else evaluated}
    CheckpointStore(config.folder / CHECKPOINTS).write(
        state={"frames": frames, "evaluator": evaluator}, new={}, old={}
    )


def test_progress_of_a_run_folder(tmp_path):
    (cell,) = make_cells(tmp_path, "--frames=1000", "--eval_period_frames=500")
    config = cell.config
    assert read_state(config)[:5] == (0, 0, False, None, None)
    write_checkpoint(config, 600)
    assert read_state(config)[:5] == (600, 600, False, None, None)
    train = config.folder / "train.csv"
    train.write_text("frames,return_mean_100,frames_per_second\n")
    assert read_state(config)[:5] == (600, 600, False, None, None)
    train.write_text(train.read_text() + "650,,90.5\n700,21.5,88.5\n750,3")
    assert read_state(config)[:5] == (700, 600, False, 88.5, 21.5), (
        "an incomplete row does not count"
    )
    (config.folder / "eval.csv").write_text("frames,score_mean\n500,0.0\n")
    assert read_state(config).score == 0.0, (
        "an evaluation replaces the training score, even if it is 0"
    )
    write_checkpoint(config, 1000, evaluated=500)
    assert not read_state(config).is_finished, "an evaluation is due"
    write_checkpoint(config, 1000)
    assert read_state(config).is_finished
    assert not read_state(dataclasses.replace(config, frames=1001)).is_finished


def test_last_row_of_a_long_file(tmp_path):
    (cell,) = make_cells(tmp_path, "--frames=100000")
    rows = "".join(f"{frames},{frames / 2}\n" for frames in range(10_000))
    cell.config.folder.mkdir(parents=True)
    (cell.config.folder / "train.csv").write_text(f"frames,frames_per_second\n{rows}")
    assert read_state(cell.config)[:4] == (9_999, 0, False, 4_999.5)


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path):
    (cell,) = make_cells(tmp_path)
    write_checkpoint(cell.config, 600)
    write_checkpoint(cell.config, 800)
    (cell.config.folder / CHECKPOINTS / "000002" / "manifest.json").write_text("{")
    assert read_state(cell.config).saved_frames == 600


# Training one cell.


@pytest.fixture
def trained(tmp_path, monkeypatch, capfd):
    """A function that trains a cell with a given `_train`; returns the outcome and the log."""
    (cell,) = make_cells(tmp_path, "--frames=100", "--eval_period_frames=0")
    monkeypatch.setattr(cells_module, "load_tensorflow", lambda threads: None)

    def train(run):
        monkeypatch.setattr(cells_module, "_train", run)
        saved = [os.dup(descriptor) for descriptor in (1, 2)]
        try:
            with capfd.disabled():  # the cell redirects the file descriptors
                outcome = cells_module.train_cell(cell)
        finally:
            for descriptor, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
        return outcome, (cell.config.folder / cells_module.OUTPUT).read_text()

    return train


def raising(error):
    def run(config):
        raise error

    return run


def test_outcome_and_log_of_a_cell(trained):
    outcome, output = trained(lambda config: os.system("echo native output"))
    assert outcome[:2] == (Status.WAITING, "ended before it was done")
    assert f"Process {os.getpid()} on " in output
    assert "native output" in output
    outcome, output = trained(lambda config: write_checkpoint(config, 100))
    assert outcome == Outcome(Status.DONE)
    assert output.count("Process") == 2, "a second process appends"
    assert trained(raising(KeyboardInterrupt()))[0].status is Status.WAITING


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ConfigError("--x is bad; give y."), Status.FAILED, "--x is bad; give y."),
        (CheckpointError("It is damaged."), Status.FAILED, "It is damaged."),
        (FolderBusyError("Another process."), Status.WAITING, "Another process."),
        (OSError(5, "Input/output error"), Status.WAITING, "OSError: [Errno 5] Input/output error"),
        (KeyError("odd"), Status.WAITING, "KeyError: 'odd'"),
    ],
)
def test_outcome_of_an_error(trained, error, status, reason):
    outcome, output = trained(raising(error))
    assert outcome[:2] == (status, reason)
    assert (outcome.retry_seconds > 0) == isinstance(error, FolderBusyError)
    assert reason in output
    assert ("Traceback" in output) == ("Error: " in reason)


def test_a_locked_folder_raises_its_own_error(tmp_path):
    config = Config(game="qbert", run_dir=str(tmp_path))
    with RunFolder(config) as folder:
        folder.lock()
        with pytest.raises(FolderBusyError):
            RunFolder(config).lock()


# The scheduler.


class ScriptedPool:
    """Room for two cells; a cell's tasks end as its script says, one after another."""

    def __init__(self, **scripts):
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.submitted = []
        self.cancelled = []
        self.most_at_once = 0
        self.clock = 0.0
        self.waits_for_cancel = False

    def nodes(self):
        return [Resources(2, 0, 64e9)]

    def submit(self, cell):
        self.submitted.append(cell.config.agent)
        return (cell, len(self.submitted))

    def ended(self, tasks):
        self.clock += 1
        self.most_at_once = max(self.most_at_once, len(tasks))
        if self.waits_for_cancel:  # one at a time
            return [task for task in tasks if task in self.cancelled][:1]
        return tasks

    def outcome(self, task):
        cell = task[0]
        step = self.scripts[cell.config.agent].pop(0)
        if isinstance(step, int):  # killed after a checkpoint at this frame
            write_checkpoint(cell.config, step)
            return Outcome(Status.WAITING, "killed")
        if step.status is Status.DONE:
            write_checkpoint(cell.config, cell.config.frames)
        return step

    def cancel(self, task):
        self.cancelled.append(task)


class RecordedView:
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line.removeprefix("cartpole_v1/").replace("/seed_1", ""))

    def show(self, jobs):
        pass


DONE = Outcome(Status.DONE)
LOST = Outcome(Status.WAITING, "killed")
BAD = Outcome(Status.FAILED, "It diverged.")
BUSY = Outcome(Status.WAITING, "Another process trains there.", retry_seconds=10.0)


def scheduled(tmp_path, *, max_retries=3, is_stopping=lambda pool: False, **scripts):
    """Schedules cells with scripted outcomes until they end."""
    names = {"rainbow": "rainbow", "dqn": "baselines/dqn", "no_double": "ablations/no_double"}
    presets = ",".join(names[agent] for agent in scripts)
    cells = make_cells(tmp_path, "--frames=1000", "--eval_period_frames=0", presets=presets)
    pool, notes = ScriptedPool(**scripts), RecordedView()
    scheduler = Scheduler(
        cells=cells,
        pool=pool,
        say=notes.say,
        show=notes.show,
        max_retries=max_retries,
        may_grow=False,
        is_stopping=lambda: is_stopping(pool),
        clock=lambda: pool.clock,
    )
    scheduler.run()
    return {job.cell.config.agent: job for job in scheduler.jobs}, pool, notes.lines


def test_all_cells_are_trained_two_at_a_time(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[DONE], dqn=[DONE], no_double=[DONE])
    assert {job.status for job in jobs.values()} == {Status.DONE}
    assert pool.submitted == ["rainbow", "dqn", "no_double"]
    assert pool.most_at_once == 2
    assert lines == ["rainbow done", "dqn done", "no_double done"]


def test_finished_cells_are_not_trained_again(tmp_path):
    scheduled(tmp_path, rainbow=[DONE])
    jobs, pool, _ = scheduled(tmp_path, rainbow=[], dqn=[DONE])
    assert pool.submitted == ["dqn"]
    assert jobs["rainbow"].status is Status.DONE


def test_a_lost_cell_is_retried_up_to_the_limit(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[LOST] * 9, dqn=[DONE], max_retries=3)
    assert pool.submitted.count("rainbow") == 4
    assert jobs["rainbow"].status is Status.FAILED
    assert jobs["rainbow"].reason == "gave up after 4 attempts; last error: killed"
    assert jobs["dqn"].status is Status.DONE
    assert lines.count("rainbow lost, resumes from 0 frames: killed") == 3


def test_a_new_checkpoint_resets_the_retry_count(tmp_path):
    script = [LOST, LOST, 100, LOST, 200, LOST, LOST]
    jobs, pool, lines = scheduled(tmp_path, rainbow=[*script, DONE], max_retries=3)
    assert jobs["rainbow"].status is Status.DONE
    assert pool.submitted.count("rainbow") == 8
    assert "rainbow lost, resumes from 200 frames: killed" in lines
    # The same checkpoint again is no progress.
    jobs, pool, _ = scheduled(tmp_path / "b", rainbow=[100, LOST, LOST, DONE], max_retries=2)
    assert jobs["rainbow"].status is Status.FAILED


def test_a_failed_cell_is_not_retried_and_others_continue(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[BAD], dqn=[DONE], no_double=[LOST, DONE])
    assert pool.submitted.count("rainbow") == 1
    assert (jobs["rainbow"].status, jobs["rainbow"].reason) == (Status.FAILED, "It diverged.")
    assert jobs["dqn"].status is jobs["no_double"].status is Status.DONE
    assert "rainbow failed: It diverged." in lines


def test_a_locked_folder_is_retried_after_a_delay(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[BUSY, BUSY, DONE])
    assert jobs["rainbow"].status is Status.DONE
    assert pool.submitted.count("rainbow") == 3
    assert pool.clock >= 20
    assert lines[0] == "rainbow waits at 0 frames: Another process trains there."


def test_a_stop_cancels_running_cells_and_starts_no_others(tmp_path):
    def is_stopping(pool):
        pool.waits_for_cancel = True
        return pool.clock >= 3

    stopped = Outcome(Status.WAITING, "stopped")
    jobs, pool, lines = scheduled(
        tmp_path, rainbow=[stopped], dqn=[LOST], no_double=[], is_stopping=is_stopping
    )
    assert [cell.config.agent for cell, _ in pool.cancelled] == ["rainbow", "dqn"]
    assert pool.submitted == ["rainbow", "dqn"]
    assert {job.status for job in jobs.values()} == {Status.WAITING}
    assert lines[0].startswith("Stopping: ")
    assert lines[1:] == ["rainbow stopped at 0 frames", "dqn stopped at 0 frames"]


def test_a_growing_cluster_is_given_waiting_cells(tmp_path):
    cells = make_cells(tmp_path, seeds="100")
    pool = ScriptedPool()
    scheduler = Scheduler(
        cells=cells,
        pool=pool,
        say=print,
        show=print,
        max_retries=0,
        may_grow=True,
        is_stopping=lambda: False,
    )
    scheduler._submit()
    assert len(pool.submitted) == 2 + schedule._AHEAD


def test_a_cell_is_running_once_it_prints(tmp_path):
    (cell,) = make_cells(tmp_path)
    output = cell.config.folder / cells_module.OUTPUT
    output.parent.mkdir(parents=True)
    output.write_text("of an earlier process")
    pool, notes = ScriptedPool(), RecordedView()
    scheduler = Scheduler(
        cells=[cell],
        pool=pool,
        say=notes.say,
        show=notes.show,
        max_retries=0,
        may_grow=False,
        is_stopping=lambda: False,
    )
    scheduler._submit()
    scheduler._update()
    assert scheduler.jobs[0].status is Status.WAITING
    output.write_text("of an earlier process and this one")
    scheduler._update()
    assert scheduler.jobs[0].status is Status.RUNNING
    assert notes.lines == ["rainbow started from 0 frames"]


# The views.


def example_jobs(tmp_path, running, failed, waiting):
    (cell,) = make_cells(tmp_path, "--frames=10000", games="MinAtar/SpaceInvaders-v1")
    state = cells_module.State(2_500, 2_000, False, 100.0, 12.34)
    counts = {Status.RUNNING: running, Status.FAILED: failed, Status.WAITING: waiting}
    return [
        Job(cell=cell, state=state, status=status, reason="It diverged.")
        for status, count in counts.items()
        for _ in range(count)
    ]


@pytest.mark.parametrize("counts", [(2, 0, 1), (30, 0, 0), (500, 90, 3_400)])
def test_the_table_fits_the_screen(tmp_path, monkeypatch, counts):
    jobs = example_jobs(tmp_path, *counts)
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24, force_terminal=True)
    monkeypatch.setattr(views, "Console", lambda **_: console)
    table = views.LiveTable()
    for number in range(8):
        table.say(f"event {number} {'long ' * 40}")
    table.show(jobs)
    table.console.print(table.renderable)
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 23
    running, _, waiting = counts
    assert f"{sum(counts):,} runs: 0 done, {running} running, {waiting:,} waiting" in lines[0]
    # 7,500 frames at 100 a second are 75 seconds.
    assert "2,500  25%       100   12.3       0:01" in lines[2]
    assert any("event 7" in line for line in lines)
    assert not any("event 0" in line for line in lines)
    rows = sum("0:01" in line for line in lines)
    more = [line for line in lines if "more active" in line]
    assert more == ([] if rows == running else [f"and {running - rows} more active"])


def test_the_log_has_a_summary_per_minute(tmp_path, capsys, monkeypatch):
    jobs = example_jobs(tmp_path, 1, 2, 3)
    now = 0.0
    monkeypatch.setattr(views, "time", SimpleNamespace(monotonic=lambda: now))
    lines = views.PlainLines()
    for now in (1.0, 59.0, 60.0, 61.0, 119.0, 121.0):  # noqa: B007
        lines.show(jobs)
    line = "6 runs: 0 done, 1 running, 3 waiting, 2 failed.\n"
    assert capsys.readouterr().out == 2 * line


# Cells as tasks of Ray.


def test_a_task_requests_what_its_cell_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "train_cell", lambda cell: DONE)
    ray = FakeRay()
    pool = schedule.RayPool(ray)
    assert pool.nodes() == [Resources(4, 0, 8e9)]
    (cell,) = make_cells(tmp_path, games="qbert")
    pool.submit(cell)
    (options,) = ray.tasks
    assert options == {
        "num_cpus": 2,
        "num_gpus": 0,
        "memory": 8_579_000_000,
        "name": "qbert/rainbow/seed_1",
    }
    # A cell gets a fresh process, and a lost one is the scheduler's to retry.
    assert ray.function_options == {"max_retries": 0, "max_calls": 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TaskCancelledError("Cancelled."), Outcome(Status.WAITING, "Cancelled")),
        (
            WorkerCrashedError("The worker died.\nMany details."),
            Outcome(Status.WAITING, "The worker died"),
        ),
        (WorkerCrashedError("Out of memory. Details."), Outcome(Status.WAITING, "Out of memory")),
    ],
)
def test_outcome_of_a_task_that_ray_ended(error, outcome):
    assert schedule.RayPool(FakeRay()).outcome(Ref(error=error)) == outcome


# The command.


@pytest.fixture
def run_sweep(run_command, tmp_path, monkeypatch):
    """A function that runs the command in an empty folder; it has no Ray but what a test gives."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cluster._LOOPBACK, "")  # restored after the test
    return lambda *arguments: run_command("sweep", *arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--games=qbert", "--cpus_per_run=0"], ["--cpus_per_run=0", "range [1, 1024]"]),
        (["--games=qbert", "--n_step=0"], ["--n_step=0"]),
        (["--games=CartPole-v9"], ["CartPole-v9"]),
        (["--games=qbert", "--preset=minatar"], ["--game=qbert", "MinAtar/Breakout-v1"]),
        (["--games=qbert", "--preset=nothing"], ["--preset=nothing is not a preset"]),
        (["--game=qbert"], ["--game is not a flag", "--games"]),
        (["--games=qbert", "--run_dir=x"], ["--run_dir is not a flag"]),
        (["--games=qbert", "--actors=2"], ["--actors is not a flag"]),
        (["--games=qbert", "--address=127.0.0.1:9"], ["--address=127.0.0.1:9", "running Ray"]),
        (["qbert"], ["'qbert' is not a flag"]),
    ],
)
def test_invalid_input_is_one_sentence(run_sweep, tmp_path, arguments, named):
    ended = run_sweep(*arguments)
    assert ended.status == 1
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("rainbow_tf: ")
    for part in named:
        assert part in ended.stderr
    assert not list(tmp_path.iterdir()), "a rejected sweep writes nothing"


def test_without_ray_the_error_says_what_to_install(run_sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = run_sweep(*TINY)
    assert ended.status == 1
    assert ended.stderr == (
        "rainbow_tf: A sweep needs packages that are not installed; pip install "
        "'rainbow_tf[ray]', or from a clone pip install -e '.[ray]'.\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch):
    def init(**options):
        raise Exception("The current node\ntimed out.")  # as Ray says on a busy machine

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(cluster, "import_ray", lambda wanted_by: ray)
    monkeypatch.setenv(cluster._LOOPBACK, "")
    with pytest.raises(ConfigError, match=r"A sweep could not start Ray .*node timed out\."):
        cluster.connect(None, wanted_by="A sweep", object_bytes=0)


def test_a_dry_run_needs_no_ray_and_writes_nothing(run_sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    tf.config.run_functions_eagerly(True)  # the speed that it measures does not matter here
    try:
        ended = run_sweep(*TINY, "--presets=baselines/dqn", "--seeds=3", "--dry_run")
    finally:
        tf.config.run_functions_eagerly(False)
    assert ended.status == 0, ended.stderr
    assert "3 runs, 0 of them finished: 1 agent, 1 environment, 3 seeds" in ended.stdout
    assert "1 CPU, 0 GPUs and 1.5 GB" in ended.stdout
    assert "Measuring dqn on cartpole_v1" in ended.stdout
    assert "run-hours" in ended.stdout
    assert "Disk: " in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.fixture
def fake_training(monkeypatch):
    """A function that has cells trained by `FakeRay` and a given function of a cell."""

    def use(train_cell):
        monkeypatch.setattr(schedule, "train_cell", train_cell)
        monkeypatch.setattr(sweep, "connect", lambda *arguments, **options: FakeRay())

    return use


def finish(cell):
    write_checkpoint(cell.config, cell.config.frames)
    return DONE


def test_a_sweep_trains_all_cells_and_names_the_next_command(run_sweep, fake_training):
    fake_training(finish)
    ended = run_sweep(*TINY)
    assert ended.status == 0, ended.stderr
    assert "cartpole_v1/rainbow/seed_1 done\n" in ended.stdout
    assert "cartpole_v1/dqn/seed_1 done\n" in ended.stdout
    assert "2 runs: 2 done, 0 running, 0 waiting, 0 failed." in ended.stdout
    assert "python -m rainbow_tf.report --runs=runs --out=report/" in ended.stdout


def test_a_killed_worker_is_retried(run_sweep, fake_training):
    kills = iter([100, 200])

    def train_cell(cell):
        frames = next(kills, None)
        if frames is None:
            return finish(cell)
        write_checkpoint(cell.config, frames)
        raise WorkerCrashedError("The worker died unexpectedly.")

    fake_training(train_cell)
    ended = run_sweep(*TINY, "--presets=rainbow")
    assert ended.status == 0, ended.stderr
    died = "lost, resumes from 200 frames: The worker died unexpectedly"
    assert f"cartpole_v1/rainbow/seed_1 {died}" in ended.stdout
    assert "1 run: 1 done" in ended.stdout


def test_a_failed_cell_is_reported_with_its_log(run_sweep, fake_training):
    fake_training(lambda cell: BAD if cell.config.agent == "rainbow" else finish(cell))
    ended = run_sweep(*TINY)
    assert ended.status == 1
    assert "2 runs: 1 done, 0 running, 0 waiting, 1 failed." in ended.stdout
    assert "cartpole_v1/rainbow/seed_1 failed: It diverged." in ended.stdout
    assert str(Path("runs/cartpole_v1/rainbow/seed_1/output.log").absolute()) in ended.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_says_how_to_resume_and_resumes(
    run_sweep, fake_training, monkeypatch, number
):
    def interrupted(cell):
        write_checkpoint(cell.config, 100)
        if cell.config.seed == 1:
            signal.raise_signal(number)
        return Outcome(Status.WAITING, "stopped")

    fake_training(interrupted)
    monkeypatch.setattr(sys, "argv", ["sweep", *TINY])
    ended = run_sweep(*TINY, "--presets=rainbow", "--seeds=3")
    assert ended.status == 0, ended.stderr
    assert "3 runs: 0 done, 0 running, 3 waiting, 0 failed." in ended.stdout
    assert "python -m rainbow_tf.sweep --games=CartPole-v1" in ended.stdout
    fake_training(finish)
    ended = run_sweep(*TINY, "--presets=rainbow", "--seeds=3")
    assert "3 runs: 3 done" in ended.stdout


# Ray itself.


def start_sweep(*arguments, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "rainbow_tf.sweep", *TINY, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def wait_for(condition, process, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def assert_whole(folder, frames):
    """The run is finished, and its CSV files have every row once and in order."""
    config = Config.from_dict(json.loads((folder / "config.json").read_text()))
    checkpoint, problems = CheckpointStore(folder / CHECKPOINTS).newest_whole()
    assert problems == []
    assert is_finished(config, checkpoint)
    for name, period in (("train.csv", 100), ("eval.csv", 200)):
        with (folder / name).open() as file:
            rows = [int(row["frames"]) // period for row in csv.DictReader(file)]
        assert rows == list(range(1, frames // period + 1)), name


def public_addresses(process):
    """Addresses other than loopback on which the process or its children listen."""
    addresses = []
    for member in (process, *process.children(recursive=True)):
        listening = [c for c in member.net_connections() if c.status == psutil.CONN_LISTEN]
        addresses += [ipaddress.ip_address(connection.laddr.ip) for connection in listening]
    assert addresses, "Ray's processes listen somewhere"
    mapped = (getattr(address, "ipv4_mapped", None) or address for address in addresses)
    return [address for address in mapped if not address.is_loopback]


@pytest.mark.xdist_group("ray")
def test_a_sweep_of_one_cell_on_ray(tmp_path):
    process = start_sweep("--presets=baselines/dqn", "--out=runs", cwd=tmp_path)
    folder = tmp_path / "runs" / "cartpole_v1" / "dqn" / "seed_1"
    wait_for(lambda: (folder / "config.json").exists(), process)
    assert public_addresses(psutil.Process(process.pid)) == []
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    assert "cartpole_v1/dqn/seed_1 done, last score" in stdout
    assert "1 run: 1 done, 0 running, 0 waiting, 0 failed." in stdout
    assert "python -m rainbow_tf.report --runs=runs --out=report/" in stdout
    assert stderr == ""
    assert_whole(folder, 400)
    assert "Resuming" not in (folder / "output.log").read_text()


def workers(process):
    """Processes that train a cell, recognised by the names that Ray gives them."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "cartpole" in " ".join(child.cmdline())]


def frames_saved(folder):
    checkpoint = CheckpointStore(folder / CHECKPOINTS).newest()
    return 0 if checkpoint is None else checkpoint.frames


LONG = ["--frames=4000", "--presets=rainbow", "--seeds=2"]


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_killed_workers_and_a_killed_driver_lose_nothing_on_ray(tmp_path):
    folders = [tmp_path / "cartpole_v1" / "rainbow" / f"seed_{seed}" for seed in (1, 2)]
    process = start_sweep(*LONG, f"--out={tmp_path}")
    wait_for(lambda: min(map(frames_saved, folders)) > 300, process)
    for worker in workers(process):
        worker.kill()
    wait_for(
        lambda: all(f.joinpath("output.log").read_text().count("Process") > 1 for f in folders),
        process,
    )
    wait_for(lambda: "Resuming" in folders[0].joinpath("output.log").read_text(), process)
    orphans = workers(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(orphans, timeout=30)
    assert not any(orphan.is_running() for orphan in orphans)
    process = start_sweep(*LONG, f"--out={tmp_path}")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    for folder in folders:
        assert_whole(folder, 4_000)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_and_resumes_on_ray(tmp_path, number):
    folders = [tmp_path / "cartpole_v1" / "rainbow" / f"seed_{seed}" for seed in (1, 2)]
    process = start_sweep(*LONG, f"--out={tmp_path}", "--checkpoint_period_frames=100_000")
    wait_for(lambda: all((folder / "eval.csv").exists() for folder in folders), process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stdout + stderr
    assert "2 runs: 0 done, 0 running, 2 waiting, 0 failed." in stdout
    assert "python -m rainbow_tf.sweep --games=CartPole-v1" in stdout
    assert min(map(frames_saved, folders)) > 0, "a stop writes a checkpoint"
    process = start_sweep(*LONG, f"--out={tmp_path}")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    assert "begun from 0 frames" not in stdout
    for folder in folders:
        assert_whole(folder, 4_000)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_cells_that_fail_are_reported_on_ray(tmp_path):
    folder = tmp_path / "cartpole_v1"
    process = start_sweep(f"--out={tmp_path}", "--network=nature", "--games=CartPole-v1")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "2 runs: 0 done, 0 running, 0 waiting, 2 failed." in stdout, stderr
    assert "--network=nature" in stdout
    assert str(folder / "dqn_nature" / "seed_1" / "output.log") in stdout
