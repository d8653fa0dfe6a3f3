"""Exports the policy that a run kept."""

from pathlib import Path

from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.export.saved_model import Export, Training, export_policy
from rainbow_tf.runs.weights import load_network


def export_run(
    config: Config,
    output_dir: Path,
    *,
    is_best: bool,
    checkpoint: int | None = None,
    noisy: bool = False,
    lite: bool = False,
) -> Export:
    """Writes a run's best policy, or that of its newest checkpoint or of one by its number."""
    environment = make_environment(config, num_envs=1, seed=config.seed, training=False)
    environment.close()
    network, frames, best = load_network(
        config, environment.spec, is_best=is_best, checkpoint=checkpoint, seed=config.seed
    )
    training = Training(frames)
    if best is not None:
        training = Training(frames, best.score_mean, best.protocol)
    return export_policy(
        network,
        config=config,
        spec=environment.spec,
        training=training,
        output_dir=output_dir,
        noisy=noisy,
        lite=lite,
    )
