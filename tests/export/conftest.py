import contextlib
import json

import numpy as np
import pytest
import tensorflow as tf
from model_server import ModelServer
from small_agents import CARTPOLE, QBERT, make_agent

from rainbow_tf.export.client import GrpcPolicy, RestPolicy
from rainbow_tf.export.saved_model import export_policy
from rainbow_tf.runs.store import Best

ATOMS = np.linspace(-1, 1, 3, dtype=np.float32)


class LinearPolicy(tf.Module):
    """A policy with one weight matrix and the signatures of an exported model."""

    def __init__(self, *, game, observations, weights, preprocessing, actions):
        super().__init__()
        self._weights = tf.Variable(weights, trainable=False)
        self._spec = tf.TensorSpec([None, *observations.shape], observations.dtype, "observations")
        self._about = {
            "game": game,
            "action_meanings": actions,
            "agent": "rainbow",
            "preprocessing": json.dumps(preprocessing),
            "score_protocol": "no-op starts",
            "versions": json.dumps({"rainbow_tf": "0.1.0"}),
            "support": ATOMS,
            "frames_trained": np.int64(400),
            "score": np.float32(500.0),
        }

    def _q_values(self, observations):
        # A server does not check shapes before it runs the graph.
        observations = tf.ensure_shape(observations, self._spec.shape)
        flat = tf.reshape(tf.cast(observations, tf.float32), [tf.shape(observations)[0], -1])
        return tf.matmul(flat, self._weights)  # [B, A]

    def greedy(self, observations):
        q_values = self._q_values(observations)
        return {
            "actions": tf.argmax(q_values, axis=1, output_type=tf.int32),
            "q_values": q_values,
            "probabilities": tf.nn.softmax(q_values[..., None] * ATOMS),  # [B, A, N]
        }

    def risk(self, observations, alpha):
        values = self._q_values(observations) * alpha[:, None]
        return {
            "actions": tf.argmin(values, axis=1, output_type=tf.int32),
            "values": tf.reduce_min(values, axis=1),
            "action_values": values,
        }

    def about(self, query):
        rows = {name: tf.constant(value)[None] for name, value in self._about.items()}
        return {name: tf.repeat(row, tf.shape(query)[0], axis=0) for name, row in rows.items()}

    def save(self, folder):
        alpha = tf.TensorSpec([None], tf.float32, "alpha")
        signatures = {
            "serving_default": tf.function(self.greedy, [self._spec]),
            "risk": tf.function(self.risk, [self._spec, alpha]),
            "metadata": tf.function(self.about, [tf.TensorSpec([None], tf.int32, "query")]),
        }
        tf.saved_model.save(self, str(folder), signatures)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Model folders by name: CartPole policies that balance and that wobble, Q*bert, MinAtar."""
    folder = tmp_path_factory.mktemp("models")
    # Pushing by angle plus angular velocity balances the pole; by angle alone it soon falls.
    balance, wobble = np.zeros((2, 4, 2), np.float32)
    balance[2:, 1] = 1.0
    wobble[2, 1] = 1.0
    for path, weights in (
        ("cartpole_v1/9", wobble),
        ("cartpole_v1/10", balance),
        ("wobbly/1", wobble),
    ):
        LinearPolicy(
            game="CartPole-v1",
            observations=np.zeros(4, np.float32),
            weights=weights,
            preprocessing={"frame_stack": 1},
            actions=["0", "1"],
        ).save(folder / path)
    rng = np.random.default_rng(1)
    LinearPolicy(
        game="qbert",
        observations=np.zeros((84, 84, 4), np.uint8),
        weights=rng.normal(size=(84 * 84 * 4, 6)).astype(np.float32),
        preprocessing={"frame_stack": 4, "action_repeat": 4},
        actions=["NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN"],
    ).save(folder / "qbert" / "1")
    LinearPolicy(
        game="MinAtar/Breakout-v1",
        observations=np.zeros((10, 10, 4), np.bool_),
        weights=rng.normal(size=(400, 6)).astype(np.float32),
        preprocessing={"frame_stack": 1},
        actions=list("nlurdf"),
    ).save(folder / "minatar_breakout_v1" / "1")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="session")
def shared_server(models):
    server = ModelServer(models)
    yield server
    server.stop()


@pytest.fixture
def server(shared_server):
    """A server of all models, with no faults set."""
    shared_server.faults.clear()
    shared_server.requests = 0
    shared_server.peers.clear()
    return shared_server


@pytest.fixture
def connect():
    """A function that makes a client of a server or an address, closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(transport, server, model="cartpole_v1", *, timeout=20.0, retry=False):
            is_grpc = transport == "grpc"
            if isinstance(server, ModelServer):
                server = server.address if is_grpc else server.url
            kind = GrpcPolicy if is_grpc else RestPolicy
            policy = kind(server, model=model, timeout=timeout, retry=retry)
            stack.callback(policy.close)
            return policy

        yield make


@pytest.fixture
def start_server(models):
    """A function that starts a server of its own with settings, stopped after the test."""
    with contextlib.ExitStack() as stack:

        def start(served=models, **settings):
            server = ModelServer(served, **settings)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture(scope="session")
def batching_server(models):
    """A server with --enable_batching, which splits every output along its first dimension."""
    server = ModelServer(models, batching=True)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cartpole():
    """A CartPole network and the other arguments of export_policy."""
    network, spec, _ = make_agent(CARTPOLE)
    return network, {"config": CARTPOLE, "spec": spec}


@pytest.fixture(scope="session")
def cartpole_model(cartpole, tmp_path_factory):
    """The folder of an exported CartPole policy with one version; not to be changed."""
    network, settings = cartpole
    folder = tmp_path_factory.mktemp("exported") / "cartpole_v1"
    export_policy(network, output_dir=folder, **settings)
    return folder


@pytest.fixture(scope="session")
def qbert():
    """A small Q*bert network, its spec and stacks of frames."""
    return make_agent(QBERT)


@pytest.fixture(scope="session")
def qbert_model(qbert, tmp_path_factory):
    """The folder of an exported Q*bert policy with one version; not to be changed."""
    network, spec, _ = qbert
    best = Best(1_000, 12.5, 3, "no-op starts")
    folder = tmp_path_factory.mktemp("exported") / "qbert"
    export_policy(
        network, config=QBERT, spec=spec, output_dir=folder, frames=best.frames, best=best
    )
    return folder
