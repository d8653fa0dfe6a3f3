"""The network that a run kept, and an actor that plays with it."""

import numpy as np

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.networks import Network, make_network
from rainbow_tf.baselines.a3c import PolicyActor
from rainbow_tf.config import Config
from rainbow_tf.training.parts import make_actor
from rainbow_tf.training.snapshot import restore_best, restore_online
from rainbow_tf.training.storage import Best
from rainbow_tf.types import WorldSpec


def load_network(
    config: Config, spec: WorldSpec, *, is_best: bool, checkpoint: int | None, seed: int
) -> tuple[Network, int, Best | None]:
    """The run's network, the frames that it was trained for, and its score if it is the best."""
    network = make_network(config, spec, seed=seed, name="online")
    if is_best:
        best = restore_best(config.folder, network)
        return network, best.frames, best
    return network, restore_online(config.folder, network, checkpoint), None


def load_actor(
    config: Config, spec: WorldSpec, *, is_best: bool, checkpoint: int | None, seed: int
) -> tuple[Actor | PolicyActor, int]:
    """The run's policy, with noise if `eval_noise`, and the frames that it was trained for."""
    network, frames, _ = load_network(
        config, spec, is_best=is_best, checkpoint=checkpoint, seed=seed
    )
    rng = np.random.default_rng(seed)
    return make_actor(config, network, spec, noise=config.eval_noise, rng=rng), frames
