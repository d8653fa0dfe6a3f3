"""The benchmark's arithmetic and command, and ratios that must not get worse."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rainbow_tf import benchmark
from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config


def test_figures_are_medians_with_quartiles(run_command, tmp_path, monkeypatch):
    speed = benchmark.Figure("speed", "ms", [4.0, 1.0, 2.0, 3.0, 100.0])
    monkeypatch.setitem(benchmark.SECTIONS, "speed", lambda config, repeats: [speed])
    path = tmp_path / "figures.json"
    assert run_command("benchmark", "--only=speed", f"--out={path}").status == 0
    expected = {"name": "speed", "unit": "ms", "median": 3.0, "low": 2.0, "high": 4.0}
    assert json.loads(path.read_text()) == [expected]


def test_measured_in_turns():
    calls = []
    seconds = benchmark.seconds_in_turns(2, lambda: calls.append("a"), lambda: calls.append("b"))
    assert "".join(calls) == "ababab"  # the first turn warms up
    assert seconds.shape == (2, 2)
    assert (seconds > 0).all()


def test_flops_of_an_update_by_hand():
    config = Config(game="qbert")
    network = make_network(config, benchmark.ATARI_SPEC, seed=1, name="online")
    # Multiplications of one example: convolutions 20*20*32*(8*8*4) = 3,276,800,
    # 9*9*64*(4*4*32) = 2,654,208 and 7*7*64*(3*3*64) = 1,806,336; hidden 2 * 3136*512 =
    # 3,211,264; value 512*51 = 26,112; advantage 512*6*51 = 156,672.
    forward = 3_276_800 + 2_654_208 + 1_806_336 + 3_211_264 + 26_112 + 156_672
    flops = 2 * 32 * (3 * forward + 2 * forward - 3_276_800)
    assert benchmark.update_flops(network, 32, double=True) == flops
    assert flops == pytest.approx(3.35e9, rel=0.002)


def test_unknown_section_is_refused(run_command):
    result = run_command("benchmark", "--only=learnr")
    assert result.status == 1
    assert "--only=learnr" in result.stderr
    assert "learner" in result.stderr
    assert "Traceback" not in result.stderr


def test_environment_figures_as_json(run_command, tmp_path):
    path = tmp_path / "figures.json"
    result = run_command(
        "benchmark", "--only=environment", "--repeats=3", f"--out={path}", "--game=pong"
    )
    assert result.status == 0, result.stderr
    figures = json.loads(path.read_text())
    assert [figure["name"] for figure in figures] == [
        f"environment, {lanes} lanes" for lanes in (1, 4, 8, 16)
    ]
    assert all(0 < figure["low"] <= figure["median"] <= figure["high"] for figure in figures)
    for figure in figures:
        assert figure["name"] in result.stdout


@pytest.mark.slow
def test_an_update_has_not_become_twice_as_slow():
    config = Config(game="qbert")
    figures = {figure.name: figure for figure in benchmark.measure_learner(config, 15)}
    # 42 % where it was written; half of that is a doubling.
    assert np.median(figures["learner step, share of matmul"].samples) > 24


@pytest.mark.slow
def test_lanes_act_together_much_faster_than_alone():
    figures = list(benchmark.measure_acting(Config(game="qbert"), 15))
    assert figures[-1].name == "8 single calls against one of 8 lanes"
    assert np.median(figures[-1].samples) > 2.5


@pytest.mark.slow
def test_memory_stays_flat():
    code = """
import dataclasses
import psutil
from rainbow_tf.process import load_tensorflow
load_tensorflow()
from rainbow_tf.config import Config
from rainbow_tf.training.loop import train
from rainbow_tf.training.build import build_parts
config = Config(environment="CartPole-v1", frames=40_000, min_history_frames=100,
                replay_capacity=1_000, updates_per_step=0.25)
process = psutil.Process()
sizes = [process.memory_info().rss for k, _ in enumerate(train(config, build_parts(config)))
         if k % 1_000 == 999]
print(*sizes)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    sizes = np.array(result.stdout.split(), float) / 1e6
    # After the replay is full and everything compiled: under 0.5 KB for each of 7,000 updates.
    assert sizes[-1] - sizes[2] < 3.5
