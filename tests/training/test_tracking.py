"""Weights & Biases: offline, resumed, and missing."""

import sys

import pytest
import wandb
from stub_run import train_stub

from rainbow_tf.config import ConfigError
from rainbow_tf.training.metrics import Metrics

DRAW = Metrics._draw
pytestmark = pytest.mark.usefixtures("stub_runs")


def test_a_resumed_run_continues_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(Metrics, "_draw", DRAW)
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged, log = [], wandb.Run.log

    def noted(page, row, step):
        logged.append((page.id, step, row))
        log(page, row, step=step)

    monkeypatch.setattr(wandb.Run, "log", noted)
    for frames in (80, 160):
        train_stub(tmp_path, frames=frames, wandb=True)
    assert {page for page, *_ in logged} == {(tmp_path / "wandb_id").read_text()}
    assert [step for _, step, row in logged if "train/loss" in row] == [60, 120]
    scores = {step: row["eval/score_mean"] for _, step, row in logged if "eval/score_mean" in row}
    assert scores == pytest.approx({80: 1.0, 160: 3.0})
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_a_missing_package_or_account_is_one_sentence(tmp_path, monkeypatch):
    def logged_out(**settings):
        raise wandb.Error("No API key configured.")

    monkeypatch.setattr(wandb, "init", logged_out)
    with pytest.raises(ConfigError, match=r"--wandb .*WANDB_MODE=offline"):
        train_stub(tmp_path / "account", wandb=True)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"--wandb .*rainbow_tf\[wandb\]"):
        train_stub(tmp_path / "package", wandb=True)
    assert not (tmp_path / "package").exists()
