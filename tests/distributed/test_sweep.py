"""Sweeps: their cells, their schedule, what is shown of them, and a small one for real."""

import csv
import dataclasses
import io
import ipaddress
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from rainbow_tf import main, sweep
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.distributed import cluster
from rainbow_tf.distributed.sweep import cells as cells_module
from rainbow_tf.distributed.sweep import scheduler as schedule
from rainbow_tf.distributed.sweep.cells import Ending, Outcome, Resources, read_state
from rainbow_tf.distributed.sweep.scheduler import Job, Scheduler, Status, check_room
from rainbow_tf.distributed.sweep.table import LiveTable
from rainbow_tf.distributed.sweep.views import PlainLines
from rainbow_tf.runs.folder import FolderBusyError, RunFolder, is_finished
from rainbow_tf.runs.store import CHECKPOINTS, CheckpointStore

TINY = [
    "--games=CartPole-v1",
    "--presets=rainbow,baselines/dqn",
    "--frames=600",
    "--min_history_frames=100",
    "--replay_capacity=1000",
    "--log_period_frames=100",
    "--eval_period_frames=200",
    "--eval_frames=100",
    "--checkpoint_period_frames=100",
]


def make_cells(out, *arguments, games="CartPole-v1", presets="rainbow", seeds="1", cpus=None):
    return cells_module.make_cells(
        world_flags=cells_module.worlds(games),
        agent_names=cells_module.agents(presets),
        seed_numbers=cells_module.seeds(seeds),
        arguments=arguments,
        out=out,
        cpus=cpus,
        parse=sweep.parse,
    )


# Which cells.


def test_a_cell_has_no_actors(tmp_path):
    with pytest.raises(ConfigError, match=r"--preset=apex has --actors=4.*leave that preset out"):
        make_cells(tmp_path, presets="rainbow,apex", games="pong")


def test_games_by_name_and_by_group():
    assert len(cells_module.worlds("all")) == 57
    atari26 = cells_module.worlds("atari26")
    assert len(set(atari26)) == 26
    assert {"--game=pong", "--game=up_n_down"} <= set(atari26)
    assert "--game=tennis" not in atari26
    assert cells_module.worlds("qbert, pong,qbert,") == ["--game=qbert", "--game=pong"]
    assert cells_module.worlds("MinAtar/Breakout-v1,CartPole-v1,Own") == [
        "--environment=MinAtar/Breakout-v1",
        "--environment=CartPole-v1",
        "--environment=Own",
    ]


def test_presets_by_pattern():
    assert cells_module.agents("rainbow,ablations/*,rainbow")[:2] == [
        "rainbow",
        "ablations/no_distributional",
    ]
    assert len(cells_module.agents("rainbow,ablations/*,baselines/*")) == 14


@pytest.mark.parametrize(
    ("text", "numbers"), [("5", [1, 2, 3, 4, 5]), ("3,7", [3, 7]), ("7,", [7]), ("0,0,4", [0, 4])]
)
def test_seeds(text, numbers):
    assert cells_module.seeds(text) == numbers


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (cells_module.worlds, "qbertt", "--games has qbertt.*did you mean qbert?"),
        (cells_module.worlds, "al", "did you mean all?"),
        (cells_module.worlds, None, "--games names nothing; give it, such as"),
        (cells_module.agents, "dqn", "--presets has dqn.*did you mean baselines/dqn?"),
        (cells_module.agents, "ablation/*", "--presets has ablation/.*matches no preset"),
        (cells_module.agents, ",", "--presets names nothing"),
        (cells_module.seeds, "0", "--seeds=0 cannot be used"),
        (cells_module.seeds, "-1", "--seeds=-1 cannot be used"),
        (cells_module.seeds, "1,x", "--seeds=1,x cannot be used"),
    ],
)
def test_names_that_mean_nothing(read, text, said):
    with pytest.raises(ConfigError, match=said):
        read(text)


def test_a_cell_for_every_agent_world_and_seed(tmp_path):
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
    assert {cell.config.min_history_frames for cell in cells} == {2_000}, "minatar is after dqn"
    for cell in cells:
        assert sweep.parse(cell.arguments) == cell.config
    assert not list(tmp_path.iterdir())


def test_flags_win_over_presets(tmp_path):
    (cell,) = make_cells(
        tmp_path, "--preset=minatar", "--frames=7", "--nodouble", games="MinAtar/Asterix-v1"
    )
    assert (cell.config.frames, cell.config.double) == (7, False)
    assert cell.config.environment == "MinAtar/Asterix-v1"
    assert cell.name == "minatar_asterix_v1/no_double/seed_1"


def test_threads_are_the_cpus_unless_given(tmp_path):
    def threads(*arguments, **kwargs):
        return make_cells(tmp_path, *arguments, **kwargs)[0].config.threads

    assert threads() == 1
    assert threads(games="qbert") == 2
    assert threads(games="qbert", cpus=3) == 3
    assert threads("--threads=5", games="qbert", cpus=3) == 5


def test_two_presets_of_one_agent_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="rainbow and sticky, which are both the agent rainbow"):
        make_cells(tmp_path, games="qbert", presets="rainbow,sticky")


def test_a_folder_with_other_settings_is_refused(tmp_path):
    (cell,) = make_cells(tmp_path)
    RunFolder(cell.config).begin()
    make_cells(tmp_path, "--frames=9")
    with pytest.raises(ConfigError, match=r"--batch_size=32.*--batch_size=8.*another --out"):
        make_cells(tmp_path, "--batch_size=8")


# What they ask for.


@pytest.mark.parametrize(
    ("kwargs", "arguments", "cpus", "memory"),
    [
        # 84 x 84 bytes of a frame and 23 beside it, a million times.
        ({"games": "qbert"}, [], 2, 7_079_000_000 + 1_500_000_000),
        # 0.27 x 7056 = 1905, 33 of a bytes object, 23.
        ({"games": "qbert"}, ["--replay_compression=lz4"], 2, 1_961_000_000 + 1_500_000_000),
        ({"games": "qbert", "presets": "baselines/a3c", "cpus": 16}, [], 16, 1_500_000_000),
        # Four numbers of four bytes, and 23.
        ({}, ["--replay_capacity=1000"], 1, 39_000 + 1_500_000_000),
    ],
)
def test_requests(tmp_path, kwargs, arguments, cpus, memory):
    (cell,) = make_cells(tmp_path, *arguments, **kwargs)
    assert cell.request == Resources(cpus=cpus, gpus=0, memory=memory)


def test_gpus_by_default_for_atari_where_there_are_any(tmp_path):
    cells = make_cells(tmp_path, games="CartPole-v1,qbert")

    def gpus(nodes, wanted):
        return [cell.request.gpus for cell in cells_module.with_gpus(cells, nodes, wanted)]

    without, with_two = Resources(2, 0, 8e9), Resources(2, 2, 8e9)
    assert gpus([without], None) == [0, 0]
    assert gpus([without, with_two], None) == [0, 1]
    assert gpus([with_two], 0.5) == [0.5, 0.5]
    assert gpus([with_two], 0) == [0, 0]


def test_room():
    node = Resources(cpus=16, gpus=1, memory=40e9)
    assert node.room_for(Resources(2, 0, 8.6e9)) == 4  # the memory bounds it
    assert node.room_for(Resources(4, 0, 1e9)) == 4  # the CPUs
    assert node.room_for(Resources(2, 0.25, 1e9)) == 4  # the GPU
    assert node.room_for(Resources(2, 2, 1e9)) == 0


def test_no_room_is_an_error_here_and_a_warning_on_a_cluster(tmp_path, capsys):
    cells = make_cells(tmp_path, games="qbert")
    small, large = Resources(1, 0, 64e9), Resources(2, 0, 8_579_000_000)
    check_room(cells, [small, large], is_local=True)
    with pytest.raises(ConfigError, match=r"2 CPUs, 0 GPUs and 8.6 GB.*has 1 CPU.*--cpus_per_run"):
        check_room(cells, [small], is_local=True)
    assert capsys.readouterr().out == ""
    check_room(cells, [small], is_local=False)
    assert "qbert/rainbow/seed_1 asks for 2 CPUs" in capsys.readouterr().out


# What their folders say.


def write_checkpoint(config, frames, *, evaluated=None):
    evaluator = {"best": None, "evaluated": frames if evaluated is None else evaluated}
    CheckpointStore(config.folder / CHECKPOINTS).write(
        state={"frames": frames, "evaluator": evaluator}, new={}, old={}
    )


def test_state_of_a_folder(tmp_path):
    (cell,) = make_cells(tmp_path, "--frames=1000", "--eval_period_frames=500")
    config = cell.config
    assert read_state(config) == (0, 0, False, None, None)
    write_checkpoint(config, 600)
    assert read_state(config) == (600, 600, False, None, None)
    train = config.folder / "train.csv"
    train.write_text("frames,return_mean_100,frames_per_second\n")
    assert read_state(config) == (600, 600, False, None, None)
    train.write_text(train.read_text() + "650,,90.5\n700,21.5,88.5\n750,3")
    assert read_state(config) == (700, 600, False, 88.5, 21.5), "the cut-off row does not count"
    (config.folder / "eval.csv").write_text("frames,score_mean\n500,0.0\n")
    assert read_state(config).score == 0.0, "an evaluation counts more, though it is 0"
    write_checkpoint(config, 1000, evaluated=500)
    assert not read_state(config).is_finished, "an evaluation is due"
    write_checkpoint(config, 1000)
    assert read_state(config).is_finished
    assert not read_state(dataclasses.replace(config, frames=1001)).is_finished


def test_the_last_row_of_a_long_file(tmp_path):
    (cell,) = make_cells(tmp_path, "--frames=100000")
    rows = "".join(f"{frames},{frames / 2}\n" for frames in range(10_000))
    cell.config.folder.mkdir(parents=True)
    (cell.config.folder / "train.csv").write_text(f"frames,frames_per_second\n{rows}")
    assert read_state(cell.config)[:4] == (9_999, 0, False, 4_999.5)


def test_a_damaged_newest_manifest_is_passed_over(tmp_path):
    (cell,) = make_cells(tmp_path)
    write_checkpoint(cell.config, 600)
    write_checkpoint(cell.config, 800)
    (cell.config.folder / CHECKPOINTS / "000002" / "manifest.json").write_text("{")
    assert read_state(cell.config).saved_frames == 600


# How one is trained.


@pytest.fixture
def trained(tmp_path, monkeypatch, capfd):
    """A function that trains a cell by a made-up run, and gives the outcome and what it printed."""
    (cell,) = make_cells(tmp_path, "--frames=100", "--eval_period_frames=0")

    def train(run):
        monkeypatch.setattr(main, "run", run)
        monkeypatch.setattr(sys, "argv", [])
        kept = [os.dup(descriptor) for descriptor in (1, 2)]
        try:
            with capfd.disabled():  # prints to the descriptors, as a command does
                outcome = cells_module.train_cell(cell)
        finally:
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
        return outcome, (cell.config.folder / cells_module.OUTPUT).read_text()

    return train


def raising(error):
    def run(config):
        raise error

    return run


def test_done_and_stopped(trained):
    outcome, output = trained(lambda config: os.system("echo native words"))
    assert outcome == (Ending.STOPPED, "it ended before it was finished")
    assert f"Process {os.getpid()} on " in output
    assert "native words" in output
    outcome, output = trained(lambda config: write_checkpoint(config, 100))
    assert outcome == (Ending.DONE, "")
    assert output.count("Process") == 2, "a second process writes after the first"
    assert trained(raising(KeyboardInterrupt()))[0].ending is Ending.STOPPED


@pytest.mark.parametrize(
    ("error", "ending", "reason"),
    [
        (ConfigError("--x is bad; give y."), Ending.FAILED, "--x is bad; give y."),
        (SystemExit("rainbow_tf: The loss is nan."), Ending.FAILED, "The loss is nan."),
        (FolderBusyError("Another process."), Ending.BUSY, "Another process."),
        (OSError(5, "Input/output error"), Ending.LOST, "OSError: [Errno 5] Input/output error"),
        (KeyError("odd"), Ending.LOST, "KeyError: 'odd'"),
    ],
)
def test_an_error_is_an_outcome(trained, error, ending, reason):
    outcome, output = trained(raising(error))
    assert outcome == (ending, reason)
    assert reason in output
    assert ("Traceback" in output) == (ending is Ending.LOST)


def test_another_process_in_the_folder_is_its_own_error(tmp_path):
    config = Config(game="qbert", run_dir=str(tmp_path))
    folder = RunFolder(config)
    folder.lock()
    with pytest.raises(FolderBusyError):
        RunFolder(config).lock()


# The schedule.


class MadeUpPool:
    """Two places; a cell's tasks end as its script says, one after another."""

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
        if self.waits_for_cancel:  # one after another
            return [task for task in tasks if task in self.cancelled][:1]
        return tasks

    def outcome(self, task):
        cell = task[0]
        step = self.scripts[cell.config.agent].pop(0)
        if isinstance(step, int):  # a checkpoint, and then the process is killed
            write_checkpoint(cell.config, step)
            return Outcome(Ending.LOST, "killed")
        if step.ending is Ending.DONE:
            write_checkpoint(cell.config, cell.config.frames)
        return step

    def cancel(self, task):
        self.cancelled.append(task)


class Notes:
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line.removeprefix("cartpole_v1/").replace("/seed_1", ""))

    def show(self, jobs):
        pass


DONE = Outcome(Ending.DONE)
LOST = Outcome(Ending.LOST, "killed")
BAD = Outcome(Ending.FAILED, "It diverged.")
BUSY = Outcome(Ending.BUSY, "Another process trains there.")


def scheduled(tmp_path, *, max_retries=3, is_stopping=lambda pool: False, **scripts):
    """Runs made-up cells to their end."""
    names = {"rainbow": "rainbow", "dqn": "baselines/dqn", "no_double": "ablations/no_double"}
    presets = ",".join(names[agent] for agent in scripts)
    cells = make_cells(tmp_path, "--frames=1000", "--eval_period_frames=0", presets=presets)
    pool, notes = MadeUpPool(**scripts), Notes()
    scheduler = Scheduler(
        cells=cells,
        pool=pool,
        view=notes,
        max_retries=max_retries,
        may_grow=False,
        is_stopping=lambda: is_stopping(pool),
        clock=lambda: pool.clock,
    )
    scheduler.run()
    return {job.cell.config.agent: job for job in scheduler.jobs}, pool, notes.lines


def test_all_are_brought_to_their_end_two_at_a_time(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[DONE], dqn=[DONE], no_double=[DONE])
    assert {job.status for job in jobs.values()} == {Status.DONE}
    assert pool.submitted == ["rainbow", "dqn", "no_double"]
    assert pool.most_at_once == 2
    assert lines == ["rainbow done", "dqn done", "no_double done"]


def test_what_is_finished_is_not_trained_again(tmp_path):
    scheduled(tmp_path, rainbow=[DONE])
    jobs, pool, _ = scheduled(tmp_path, rainbow=[], dqn=[DONE])
    assert pool.submitted == ["dqn"]
    assert jobs["rainbow"].status is Status.DONE


def test_a_lost_cell_is_tried_so_often_and_no_more(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[LOST] * 9, dqn=[DONE], max_retries=3)
    assert pool.submitted.count("rainbow") == 4
    assert jobs["rainbow"].status is Status.FAILED
    assert jobs["rainbow"].reason == "tried 4 times in vain, at last: killed"
    assert jobs["dqn"].status is Status.DONE
    assert lines.count("rainbow lost, goes on from 0 frames: killed") == 3


def test_a_new_checkpoint_starts_the_count_again(tmp_path):
    script = [LOST, LOST, 100, LOST, 200, LOST, LOST]
    jobs, pool, lines = scheduled(tmp_path, rainbow=[*script, DONE], max_retries=3)
    assert jobs["rainbow"].status is Status.DONE
    assert pool.submitted.count("rainbow") == 8
    assert "rainbow lost, goes on from 200 frames: killed" in lines
    # The same checkpoint seen again is no progress.
    jobs, pool, _ = scheduled(tmp_path / "b", rainbow=[100, LOST, LOST, DONE], max_retries=2)
    assert jobs["rainbow"].status is Status.FAILED


def test_a_sentence_is_final_and_others_go_on(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[BAD], dqn=[DONE], no_double=[LOST, DONE])
    assert pool.submitted.count("rainbow") == 1
    assert (jobs["rainbow"].status, jobs["rainbow"].reason) == (Status.FAILED, "It diverged.")
    assert jobs["dqn"].status is jobs["no_double"].status is Status.DONE
    assert "rainbow failed: It diverged." in lines


def test_a_busy_folder_is_tried_again_after_a_while(tmp_path):
    jobs, pool, lines = scheduled(tmp_path, rainbow=[BUSY, BUSY, DONE])
    assert jobs["rainbow"].status is Status.DONE
    assert pool.submitted.count("rainbow") == 3
    assert pool.clock >= 20
    assert lines[0] == "rainbow waits at 0 frames: Another process trains there."


def test_a_stop_cancels_what_runs_and_starts_nothing(tmp_path):
    def is_stopping(pool):
        pool.waits_for_cancel = True
        return pool.clock >= 3

    stopped = Outcome(Ending.STOPPED, "it was stopped")
    jobs, pool, lines = scheduled(
        tmp_path, rainbow=[stopped], dqn=[LOST], no_double=[], is_stopping=is_stopping
    )
    assert [cell.config.agent for cell, _ in pool.cancelled] == ["rainbow", "dqn"]
    assert pool.submitted == ["rainbow", "dqn"]
    assert {job.status for job in jobs.values()} == {Status.WAITING}
    assert lines[0].startswith("Stopping: ")
    assert lines[1:] == ["rainbow stopped at 0 frames", "dqn stopped at 0 frames"]


def test_a_cluster_that_may_grow_sees_what_waits(tmp_path):
    cells = make_cells(tmp_path, seeds="100")
    pool = MadeUpPool()
    arguments = {"cells": cells, "pool": pool, "view": Notes(), "max_retries": 0}
    scheduler = Scheduler(may_grow=True, is_stopping=lambda: False, **arguments)
    scheduler._submit()
    assert len(pool.submitted) == 2 + schedule._AHEAD


def test_a_cell_has_begun_when_it_prints(tmp_path):
    (cell,) = make_cells(tmp_path)
    output = cell.config.folder / cells_module.OUTPUT
    output.parent.mkdir(parents=True)
    output.write_text("of an earlier process")
    pool, notes = MadeUpPool(), Notes()
    scheduler = Scheduler(
        cells=[cell],
        pool=pool,
        view=notes,
        max_retries=0,
        may_grow=False,
        is_stopping=lambda: False,
    )
    scheduler._submit()
    scheduler._look()
    assert scheduler.jobs[0].status is Status.QUEUED
    output.write_text("of an earlier process and this one")
    scheduler._look()
    assert scheduler.jobs[0].status is Status.RUNNING
    assert notes.lines == ["rainbow begun from 0 frames"]


# What is shown.


def made_up_jobs(tmp_path, running, failed, waiting):
    (cell,) = make_cells(tmp_path, "--frames=10000", games="MinAtar/SpaceInvaders-v1")
    state = cells_module.State(2_500, 2_000, False, 100.0, 12.34)
    counts = {Status.RUNNING: running, Status.FAILED: failed, Status.WAITING: waiting}
    return [
        Job(cell=cell, state=state, status=status, reason="It diverged.")
        for status, count in counts.items()
        for _ in range(count)
    ]


@pytest.mark.parametrize("counts", [(2, 0, 1), (30, 0, 0), (500, 90, 3_400)])
def test_the_table_fits_the_screen(tmp_path, counts):
    jobs = made_up_jobs(tmp_path, *counts)
    screen = io.StringIO()
    table = LiveTable(Console(file=screen, width=80, height=24, force_terminal=True))
    for number in range(5):
        table.say(f"event {number} {'long ' * 40}")
    table._console.print(table._drawn(jobs))
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 23
    running, _, waiting = counts
    assert f"{sum(counts):,} cells: 0 done, {running} running, {waiting:,} waiting" in lines[0]
    # 7,500 frames at 100 a second are 75 seconds.
    assert "2,500  25%       100   12.3       0:01" in lines[2]
    assert any("event 4" in line for line in lines)
    assert not any("event 0" in line for line in lines)
    rows = sum("0:01" in line for line in lines)
    more = [line for line in lines if "more that run" in line]
    assert more == ([] if rows == running else [f"and {running - rows} more that run"])


def test_a_log_has_a_line_a_minute(tmp_path, capsys):
    jobs = made_up_jobs(tmp_path, 1, 2, 3)
    now = 0.0
    lines = PlainLines(clock=lambda: now)
    for now in (1.0, 59.0, 60.0, 61.0, 119.0, 121.0):  # noqa: B007
        lines.show(jobs)
    line = "6 cells: 0 done, 1 running, 3 waiting, 2 failed.\n"
    assert capsys.readouterr().out == 2 * line


# The command.

NO_RAY = "import sys; sys.modules['ray'] = None; "
RUN = "import runpy; runpy.run_module('rainbow_tf.sweep', run_name='__main__', alter_sys=True)"


def run_sweep(*arguments, without_ray=False, **kwargs):
    code = (NO_RAY if without_ray else "") + RUN
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--games=qbert", "--cpus_per_run=0"], ["--cpus_per_run=0", "at least 1"]),
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
def test_bad_input_is_one_sentence(tmp_path, arguments, named):
    result = run_sweep(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("rainbow_tf: ")
    for part in named:
        assert part in result.stderr
    assert not list(tmp_path.iterdir()), "a refused sweep leaves nothing behind"


def test_without_ray_it_says_what_to_install(tmp_path):
    result = run_sweep(*TINY, without_ray=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        'rainbow_tf: A sweep needs Ray; install it with pip install "rainbow_tf[ray]", or from a '
        'clone with pip install -e ".[ray]".\n'
    )
    assert not list(tmp_path.iterdir())


def test_a_ray_that_does_not_start_is_a_sentence(monkeypatch):
    def init(**options):
        raise Exception("The current node\ntimed out.")  # so says Ray on a machine that is busy

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(cluster, "import_ray", lambda wanted_by: ray)
    monkeypatch.setenv(cluster._LOOPBACK, "")
    with pytest.raises(ConfigError, match=r"A sweep could not start Ray .*node timed out\."):
        cluster.connect(None, wanted_by="A sweep", object_bytes=0)


def test_a_dry_run_needs_no_ray_and_writes_nothing(tmp_path):
    arguments = [*TINY, "--presets=baselines/dqn", "--seeds=3", "--dry_run"]
    result = run_sweep(*arguments, without_ray=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = result.stdout
    assert "3 cells, 0 of them finished: 1 agent, 1 world, 3 seeds" in said
    assert "1 CPU, 0 GPUs and 1.5 GB" in said
    assert "Trying dqn on cartpole_v1" in said
    assert "cell-hours" in said
    assert "Disk: " in said
    assert not list(tmp_path.iterdir())


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
    """A finished run, every row of which is there once and in order."""
    config = Config.from_json((folder / "config.json").read_text())
    checkpoint, problems = CheckpointStore(folder / CHECKPOINTS).newest_whole()
    assert problems == []
    assert is_finished(config, checkpoint)
    for name, period in (("train.csv", 100), ("eval.csv", 200)):
        with (folder / name).open() as file:
            rows = [int(row["frames"]) // period for row in csv.DictReader(file)]
        assert rows == list(range(1, frames // period + 1)), name


def reached_beyond_this_machine(process):
    """Addresses but loopback on which the process and those that it started listen."""
    addresses = []
    for member in (process, *process.children(recursive=True)):
        listening = [c for c in member.net_connections() if c.status == psutil.CONN_LISTEN]
        addresses += [ipaddress.ip_address(connection.laddr.ip) for connection in listening]
    assert addresses, "Ray's processes listen somewhere"
    mapped = (getattr(address, "ipv4_mapped", None) or address for address in addresses)
    return [address for address in mapped if not address.is_loopback]


def test_a_small_sweep_for_real(tmp_path):
    process = start_sweep("--out=runs", cwd=tmp_path)
    folders = [tmp_path / "runs" / "cartpole_v1" / agent / "seed_1" for agent in ("rainbow", "dqn")]
    wait_for(lambda: any((folder / "config.json").exists() for folder in folders), process)
    assert reached_beyond_this_machine(psutil.Process(process.pid)) == []
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    assert "cartpole_v1/dqn/seed_1 done, last score" in stdout
    assert "2 cells: 2 done, 0 running, 0 waiting, 0 failed." in stdout
    assert "python -m rainbow_tf.report --runs=runs --out=report/" in stdout
    assert stderr == ""
    for folder in folders:
        assert_whole(folder, 600)
        assert "Done after" in (folder / "output.log").read_text()


def workers(process):
    """Processes that train a cell, by the names that Ray gives them."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "cartpole" in " ".join(child.cmdline())]


def frames_saved(folder):
    checkpoint = CheckpointStore(folder / CHECKPOINTS).newest()
    return 0 if checkpoint is None else checkpoint.state["frames"]


LONG = ["--frames=4000", "--presets=rainbow", "--seeds=2"]


@pytest.mark.slow
def test_killed_workers_and_a_killed_driver_lose_nothing(tmp_path):
    folders = [tmp_path / "cartpole_v1" / "rainbow" / f"seed_{seed}" for seed in (1, 2)]
    process = start_sweep(*LONG, f"--out={tmp_path}")
    wait_for(lambda: min(map(frames_saved, folders)) > 300, process)
    for worker in workers(process):
        worker.kill()
    wait_for(
        lambda: all(f.joinpath("output.log").read_text().count("Process") > 1 for f in folders),
        process,
    )
    wait_for(lambda: "Going on" in folders[0].joinpath("output.log").read_text(), process)
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_and_goes_on(tmp_path, number):
    folders = [tmp_path / "cartpole_v1" / "rainbow" / f"seed_{seed}" for seed in (1, 2)]
    process = start_sweep(*LONG, f"--out={tmp_path}", "--checkpoint_period_frames=100_000")
    wait_for(lambda: all((folder / "eval.csv").exists() for folder in folders), process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stdout + stderr
    assert "2 cells: 0 done, 0 running, 2 waiting, 0 failed." in stdout
    assert "python -m rainbow_tf.sweep --games=CartPole-v1" in stdout
    assert min(map(frames_saved, folders)) > 0, "a stop writes a checkpoint"
    process = start_sweep(*LONG, f"--out={tmp_path}")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    assert "begun from 0 frames" not in stdout
    for folder in folders:
        assert_whole(folder, 4_000)


@pytest.mark.slow
def test_one_that_fails_does_not_stop_the_others(tmp_path):
    folder = tmp_path / "cartpole_v1"
    process = start_sweep(f"--out={tmp_path}", "--network=nature", "--games=CartPole-v1")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "2 cells: 0 done, 0 running, 0 waiting, 2 failed." in stdout, stderr
    assert "--network=nature" in stdout
    assert str(folder / "dqn_nature" / "seed_1" / "output.log") in stdout
