"""Small agents to export: settings, networks and observations."""

import dataclasses

import numpy as np

from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment

CARTPOLE = Config(environment="CartPole-v1", v_min=0, v_max=100)
QBERT = Config(game="qbert", network="data_efficient")
OFF = {
    "double": False,
    "prioritized": False,
    "dueling": False,
    "distributional": False,
    "noisy": False,
    "n_step": 1,
}
CONFIGS = {
    "cartpole": CARTPOLE,
    **{f"cartpole_no_{k}": dataclasses.replace(CARTPOLE, **{k: v}) for k, v in OFF.items()},
    "cartpole_dqn": dataclasses.replace(CARTPOLE, **OFF),
    "cartpole_quantile": dataclasses.replace(CARTPOLE, returns="quantile"),
    "cartpole_stack": dataclasses.replace(CARTPOLE, frame_stack=3),
    "minatar": Config(environment="MinAtar/Breakout-v1"),
    "minatar_stack": Config(environment="MinAtar/Breakout-v1", frame_stack=2, dueling=False),
    "qbert": QBERT,
    "qbert_nature": Config(game="qbert"),
    "pong_dqn": Config(game="pong", network="data_efficient", **OFF),
    "breakout_stack": Config(game="breakout", frame_stack=2, network="data_efficient"),
}


def make_agent(config, name="online"):
    """A network with weights other than its initial ones, the spec, and stacks [12, S, *frame]."""
    environment = make_environment(config, num_envs=2, seed=7)
    spec = environment.spec
    network = make_network(config, spec, seed=3, name=name)
    rng = np.random.default_rng(0)
    for variable in network.trainable_variables:
        variable.assign(variable + rng.normal(0, 0.03, variable.shape))
    stacks = [environment.reset().observation]
    for _ in range(5):
        stacks.append(environment.step(rng.integers(spec.num_actions, size=2)).observation)
    environment.close()
    return network, spec, np.concatenate(stacks)


def to_client(stacks, spec):
    """Stacks [B, S, *frame] as a client sends them, computed in another way than in the graph."""
    if len(spec.frame_shape) > 1:
        frames = [
            stacks[:, i].reshape((*stacks[:, i].shape, -1)[:4]) for i in range(len(stacks[0]))
        ]
        frames = [f if f.ndim == 4 else f[..., None] for f in frames]
        return np.concatenate(frames, axis=-1)
    return stacks[:, 0] if spec.frame_stack == 1 else stacks
