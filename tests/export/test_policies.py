"""The trained policies in results/policies, which `make demo` plays."""

import re
from pathlib import Path

import pytest

POLICIES = Path(__file__).parents[2] / "results/policies"


def test_they_are_small():
    for folder in POLICIES.iterdir():
        size = sum(path.stat().st_size for path in folder.rglob("*"))
        assert size < 10_000_000, folder


@pytest.mark.parametrize(("name", "score"), [("cartpole", 450), ("minatar_breakout", 5)])
def test_they_play_well(run_command, name, score):
    result = run_command("play", f"--model_dir={POLICIES / name}", "--episodes=5")
    assert result.status == 0, result.stderr
    mean = float(re.search(r"mean score ([\d.]+)", result.stdout)[1])
    assert mean >= score
