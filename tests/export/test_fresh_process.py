"""Exported models in a process that has TensorFlow and NumPy, and nothing of this package."""

import subprocess
import sys

import numpy as np
import pytest
from small_agents import CARTPOLE, CONFIGS, QBERT, make_agent, to_client

from rainbow_tf.environments.atari import SCREEN_SHAPE
from rainbow_tf.export.saved_model import export_policy
from rainbow_tf.runs.weights import make_policy

# Loads the models as TensorFlow Serving does and calls every signature twice.
SCRIPT = """
import sys
import numpy as np
import tensorflow as tf

inputs, outputs = dict(np.load(sys.argv[1])), {}
for argument in sys.argv[3:]:
    name, folder = argument.split("=", 1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        for key, signature in model.signature_def.items():
            if key.startswith("__"):
                continue
            feed = {v.name: inputs[f"{name}/{k}"] for k, v in signature.inputs.items()}
            names = {k: v.name for k, v in signature.outputs.items()}
            for call in ("first", "second"):
                for k, v in session.run(names, feed).items():
                    is_text = v.dtype == object
                    outputs[f"{name}/{key}/{k}/{call}"] = v.astype(bytes) if is_text else v
assert not any(name.startswith("rainbow_tf") for name in sys.modules)
np.savez(sys.argv[2], **outputs)
"""


def in_a_fresh_process(models, agents, folder):
    """The outputs of all models, by model/signature/output/call."""
    inputs = {}
    for name, (_, spec, stacks) in agents.items():
        screens = (2, spec.frame_stack, 2, *SCREEN_SHAPE, 3)
        inputs[f"{name}/observations"] = to_client(stacks, spec)
        inputs[f"{name}/alpha"] = np.linspace(0.1, 1, len(stacks), dtype=np.float32)
        inputs[f"{name}/query"] = np.zeros(1, np.int32)
        inputs[f"{name}/frames"] = np.random.default_rng(1).integers(0, 256, screens, np.uint8)
    np.savez(folder / "inputs.npz", **inputs)
    arguments = [f"{name}={path}" for name, path in models.items()]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, "inputs.npz", "outputs.npz", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    with np.load(folder / "outputs.npz") as arrays:
        return dict(arrays)


def assert_acts_as_the_actor(outputs, name, config, agent):
    network, _, stacks = agent
    actor = make_policy(config, network, noise=False, rng=np.random.default_rng(0))
    decision = actor.decide(stacks)
    answers = {
        output: outputs[f"{name}/serving_default/{output}/first"]
        for output in ("actions", "q_values")
    }
    np.testing.assert_array_equal(answers["actions"], decision.actions)
    np.testing.assert_allclose(answers["q_values"], decision.values, rtol=1e-5, atol=1e-5)
    if config.has_support:
        probabilities = outputs[f"{name}/serving_default/probabilities/first"]
        np.testing.assert_allclose(probabilities, decision.probs, atol=1e-5)
    if config.has_quantiles:
        quantiles = outputs[f"{name}/serving_default/quantiles/first"]
        np.testing.assert_allclose(quantiles.mean(axis=-1), decision.values, rtol=1e-5, atol=1e-5)
    if config.distributional:
        # The last example's alpha is 1, the mean.
        risk = outputs[f"{name}/risk/action_values/first"][-1]
        np.testing.assert_array_equal(risk, answers["q_values"][-1])
    first, second = (
        outputs[f"{name}/serving_default/q_values/{call}"] for call in ("first", "second")
    )
    np.testing.assert_array_equal(first, second)


def test_exports_act_exactly_as_the_actor(cartpole_model, qbert_model, qbert, tmp_path):
    agents = {"cartpole": make_agent(CARTPOLE), "qbert": qbert}
    models = {"cartpole": cartpole_model / "1", "qbert": qbert_model / "1"}
    outputs = in_a_fresh_process(models, agents, tmp_path)
    for name, config in (("cartpole", CARTPOLE), ("qbert", QBERT)):
        assert_acts_as_the_actor(outputs, name, config, agents[name])
    assert outputs["cartpole/metadata/game/first"] == b"CartPole-v1"


@pytest.mark.slow
def test_every_kind_of_agent_acts_exactly_as_its_actor(tmp_path):
    agents = {name: make_agent(config) for name, config in CONFIGS.items()}
    models = {}
    for name, config in CONFIGS.items():
        network, spec, _ = agents[name]
        settings = {"config": config, "spec": spec}
        models[name] = export_policy(network, output_dir=tmp_path / name, **settings).folder
    outputs = in_a_fresh_process(models, agents, tmp_path)
    for name, config in CONFIGS.items():
        assert_acts_as_the_actor(outputs, name, config, agents[name])
