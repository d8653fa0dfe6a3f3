import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from small_agents import CARTPOLE, CONFIGS

from rainbow_tf.agent.networks import make_support
from rainbow_tf.export.client import SavedModelPolicy
from rainbow_tf.export.saved_model import export_run
from rainbow_tf.runs.store import CHECKPOINTS, Best, CheckpointStore
from rainbow_tf.runs.weights import AGENT_FILE, load_network, named, values, write_best
from rainbow_tf.training import progress

OBSERVATIONS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
QUERY = {"query": np.int32([0])}


@pytest.fixture
def run_dir(cartpole, tmp_path):
    """A run's folder with best weights."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(CARTPOLE.to_json())
    write_best(folder, cartpole[0], Best(4_000, 20.5, 3, "500 steps"))
    return folder


def assert_answers_as(network, policy):
    probs = tf.nn.softmax(network(OBSERVATIONS[:, None])).numpy()
    answers = policy.predict({"observations": OBSERVATIONS})
    np.testing.assert_allclose(answers["probabilities"], probs, rtol=1e-5)
    np.testing.assert_allclose(answers["q_values"], probs @ make_support(CARTPOLE), rtol=1e-5)


def test_the_command_exports_the_best_weights(cartpole, run_dir, tmp_path, run_command):
    result = run_command("export", f"--run_dir={run_dir}", f"--out={tmp_path / 'models'}")
    assert result.status == 0, result.stderr
    assert result.stderr == ""
    folder = tmp_path / "models" / "1"
    assert str(folder) in result.stdout
    policy = SavedModelPolicy(folder)
    facts = policy.predict(QUERY, "metadata")
    assert (facts["frames_trained"], facts["score"]) == (4_000, 20.5)
    assert facts["score_protocol"] == b"500 steps"
    assert_answers_as(cartpole[0], policy)


@pytest.mark.parametrize("snapshot", ["latest", 1])
def test_a_checkpoint_is_exported(cartpole, run_dir, tmp_path, snapshot):
    arrays = values(named("online", cartpole[0].variables))
    store = CheckpointStore(run_dir / CHECKPOINTS)
    store.write(state={"frames": 777}, new={AGENT_FILE: lambda: arrays}, old={})
    config = dataclasses.replace(CARTPOLE, run_dir=str(run_dir))
    export = export_run(config, tmp_path / "m", snapshot)
    policy = SavedModelPolicy(export.folder)
    facts = policy.predict(QUERY, "metadata")
    assert facts["frames_trained"] == 777
    assert np.isnan(facts["score"])
    assert_answers_as(cartpole[0], policy)


def test_training_exports_its_best_policy(cartpole, tmp_path, monkeypatch, run_command):
    # The run ends before it learns; the speed test would compile the learner.
    monkeypatch.setattr(progress, "measure_speed", lambda *arguments: (1.0, 1.0))
    run, models = tmp_path / "run", tmp_path / "models"
    result = run_command(
        "train",
        *("--environment=CartPole-v1", "--v_min=0", "--v_max=100", "--frames=40"),
        "--min_history_frames=20",
        *("--replay_capacity=1000", "--num_envs=1"),
        *("--eval_period_frames=20", "--eval_frames=60"),
        *(f"--run_dir={run}", f"--export_dir={models}"),
    )
    assert result.status == 0, result.stderr
    assert f"best policy is in {models / '1'}" in result.stdout
    best = json.loads((run / "best" / "score.json").read_text())
    policy = SavedModelPolicy(models)
    facts = policy.predict(QUERY, "metadata")
    assert facts["frames_trained"] == best["frames"]
    assert facts["score"] == pytest.approx(best["score_mean"])
    config = dataclasses.replace(CARTPOLE, run_dir=str(run))
    network, _, _ = load_network(config, "best")
    assert_answers_as(network, policy)


BOTH = ["--run_dir={run}", "--out={out}"]


@pytest.mark.parametrize(
    ("prepare", "arguments", "named"),
    [
        (None, ["--run_dir={run}"], ["--out,"]),
        (None, ["--out={out}"], ["--run_dir"]),
        (None, ["qbert"], ["'qbert' is not a flag"]),
        (None, ["--run_dir={run}/best", "--out={out}"], ["--run_dir", "config.json"]),
        (None, [*BOTH, "--snapshot=best", "--checkpoint=3"], ["--checkpoint", "--snapshot=best"]),
        (None, [*BOTH, "--noisy", "--tflite"], ["--noisy", "--tflite"]),
        (
            lambda run: (run / "config.json").write_text(CONFIGS["cartpole_dqn"].to_json()),
            [*BOTH, "--noisy"],
            ["--noisy", "no noisy layers"],
        ),
        (lambda run: (run / "config.json").write_text("damaged"), BOTH, ["config.json"]),
        (
            lambda run: (run / "best" / "online.npz").unlink(),
            BOTH,
            ["no best weights", "--snapshot=latest"],
        ),
        (
            lambda run: (run / "best" / "online.npz").write_bytes(b"damaged"),
            BOTH,
            ["online.npz", "--snapshot=latest"],
        ),
        (None, [*BOTH, "--checkpoint=7"], ["has no intact checkpoint", "--checkpoint"]),
    ],
)
def test_bad_input_is_one_sentence(run_dir, tmp_path, run_command, prepare, arguments, named):
    if prepare is not None:
        prepare(run_dir)
    output = tmp_path / "out"
    arguments = [text.format(run=run_dir, out=output) for text in arguments]
    result = run_command("export", *arguments)
    assert result.status != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert not output.exists(), "a refused export leaves nothing behind"
