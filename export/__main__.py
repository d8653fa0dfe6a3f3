"""Exports a run's policy: python -m rainbow_tf.export --run_dir=... --output_dir=models/qbert."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import app, flags

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.startup import load_tensorflow

if TYPE_CHECKING:
    from rainbow_tf.agent.networks import Network
    from rainbow_tf.export.saved_model import Export, Training

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string("run_dir", None, "Folder of the run to export.")
    flags.DEFINE_string(
        "output_dir", None, "Folder of the model; the export becomes its next version, 1, 2, ..."
    )
    flags.DEFINE_enum(
        "snapshot",
        None,
        ["best", "latest"],
        "best: the weights with the highest evaluation, the default. latest: the newest "
        "checkpoint.",
    )
    flags.DEFINE_integer(
        "checkpoint", None, "Number of a checkpoint to export instead of the best weights."
    )
    flags.DEFINE_bool(
        "noisy", False, "Keep the noise of the noisy layers: every answer draws its own."
    )
    flags.DEFINE_bool(
        "tflite", False, "Add assets.extra/policy.tflite: the default signature for LiteRT."
    )


def main(arguments: list[str]) -> None:
    """Checks the flags, then exports; what a user can mend ends in one sentence."""
    try:
        if len(arguments) > 1:
            raise ConfigError(f"'{arguments[1]}' is not a flag; give --run_dir and --output_dir.")
        if FLAGS.run_dir is None or FLAGS.output_dir is None:
            raise ConfigError("Give --run_dir, the run to export, and --output_dir, where to.")
        if FLAGS.checkpoint is not None and FLAGS.snapshot == "best":
            raise ConfigError(
                "--checkpoint and --snapshot=best exclude each other; give one of them."
            )
        run_dir = Path(FLAGS.run_dir)
        config = read_config(run_dir)
        if FLAGS.noisy and not config.noisy:
            raise ConfigError("--noisy has nothing to keep: this agent has no noisy layers.")
        if FLAGS.noisy and FLAGS.tflite:
            raise ConfigError("--tflite and --noisy exclude each other; LiteRT draws no noise.")
        is_best = FLAGS.checkpoint is None and FLAGS.snapshot != "latest"
        if is_best and not best_weights(run_dir).is_file():
            raise ConfigError(
                f"{best_weights(run_dir)} is missing: the run was never evaluated; give "
                "--snapshot=latest."
            )
        export = run(
            config,
            run_dir,
            Path(FLAGS.output_dir),
            is_best=is_best,
            checkpoint=FLAGS.checkpoint,
            noisy=FLAGS.noisy,
            lite=FLAGS.tflite,
        )
    except ConfigError as error:
        sys.exit(f"rainbow_tf: {error}")
    except KeyboardInterrupt:
        sys.exit("rainbow_tf: interrupted; nothing was written.")
    print(f"Wrote {export.folder} with the signatures {', '.join(export.signatures)}.")
    if export.num_warmup_requests == 0:
        print("Warm-up requests were left out; for them, pip install 'rainbow_tf[serving]'.")


def best_weights(run_dir: Path) -> Path:
    """Where a run keeps the weights with the highest evaluation."""
    return run_dir / "best" / "online.weights.h5"


def read_config(run_dir: Path) -> Config:
    """The settings of the run."""
    path = run_dir / "config.json"
    try:
        return Config.from_json(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"--run_dir={run_dir} is not the folder of a run: {path} cannot be read "
            f"({error.strerror})."
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no settings of this version ({error}).") from error


def run(
    config: Config,
    run_dir: Path,
    output_dir: Path,
    *,
    is_best: bool,
    checkpoint: int | None,
    noisy: bool,
    lite: bool,
) -> "Export":
    """Makes the network, fills it and writes it."""
    # TensorFlow takes seconds to load: flags are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.agent.networks import make_network
    from rainbow_tf.environments.worlds import make_world
    from rainbow_tf.export.saved_model import Training, export_policy

    world = make_world(config, num_envs=1, seed=config.seed, training=False)
    network = make_network(config, world.spec, seed=config.seed, name="online")
    world.close()
    if is_best:
        training = load_best(network, run_dir)
    else:
        from rainbow_tf.training.checkpoint import restore_online

        training = Training(frames=restore_online(run_dir, network, checkpoint))
    return export_policy(
        network,
        config=config,
        spec=world.spec,
        training=training,
        output_dir=output_dir,
        noisy=noisy,
        lite=lite,
    )


def load_best(network: "Network", run_dir: Path) -> "Training":
    """Fills the network with the best weights; says how they were measured."""
    from rainbow_tf.export.saved_model import Training

    path = best_weights(run_dir)
    try:
        network.load_weights(path)
    except Exception as error:  # Keras and HDF5 raise what they like.
        raise ConfigError(
            f"{path} does not hold the weights of this run's network; give --snapshot=latest."
        ) from error
    score = path.with_name("score.json")
    if not score.exists():
        return Training()
    try:
        facts = json.loads(score.read_text())
        return Training(int(facts["frames"]), float(facts["score_mean"]), str(facts["protocol"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{score} is damaged; delete it to export without a score.") from error


if __name__ == "__main__":
    define_flags()
    app.run(main)
