"""An actor with the weights that a run kept."""

import numpy as np

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config
from rainbow_tf.training.snapshot import restore_best, restore_online
from rainbow_tf.types import WorldSpec


def load_actor(
    config: Config, spec: WorldSpec, *, is_best: bool, checkpoint: int | None, seed: int
) -> tuple[Actor, int]:
    """The run's policy, with noise if `eval_noise`, and the frames that it was trained for."""
    network = make_network(config, spec, seed=seed, name="online")
    if is_best:
        frames = restore_best(config.folder, network).frames
    else:
        frames = restore_online(config.folder, network, checkpoint)
    actor = Actor(
        network=network,
        support=make_support(config),
        num_actions=spec.num_actions,
        noise=config.eval_noise and config.noisy,
        rng=np.random.default_rng(seed),
    )
    return actor, frames
