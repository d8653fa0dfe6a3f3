"""Exports a run's policy: python -m rainbow_tf.export --run_dir=... --output_dir=models/qbert."""

from pathlib import Path

from absl import flags

from rainbow_tf import config as config_module
from rainbow_tf.command import errors_as_sentences, load_tensorflow, run_command
from rainbow_tf.config import ConfigError, define_snapshot_flags, wants_best
from rainbow_tf.runs.folder import read_config

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of this command."""
    define_snapshot_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder of the model; the export becomes its next version, 1, 2, ..."
    )
    flags.DEFINE_bool(
        "noisy", False, "Keep the noise of the noisy layers: every answer draws its own."
    )
    flags.DEFINE_bool(
        "tflite", False, "Add assets.extra/policy.tflite: the default signature for LiteRT."
    )


def main(arguments: list[str]) -> None:
    """Checks the flags, then exports; what a user can mend ends in one sentence."""
    with errors_as_sentences("interrupted; nothing was written."):
        if len(arguments) > 1:
            raise ConfigError(f"'{arguments[1]}' is not a flag; give --run_dir and --output_dir.")
        if FLAGS.run_dir is None or FLAGS.output_dir is None:
            raise ConfigError("Give --run_dir, the run to export, and --output_dir, where to.")
        is_best = wants_best(FLAGS)
        config = read_config(Path(FLAGS.run_dir))
        if FLAGS.noisy and not config.noisy:
            raise ConfigError("--noisy has nothing to keep: this agent has no noisy layers.")
        if FLAGS.noisy and FLAGS.tflite:
            raise ConfigError("--tflite and --noisy exclude each other; LiteRT draws no noise.")
        # TensorFlow takes seconds to load: flags are checked before it.
        load_tensorflow(config.tensorflow_threads)
        from rainbow_tf.export.runs import export_run

        export = export_run(
            config,
            Path(FLAGS.output_dir),
            is_best=is_best,
            checkpoint=FLAGS.checkpoint,
            noisy=FLAGS.noisy,
            lite=FLAGS.tflite,
        )
    print(f"Wrote {export.folder} with the signatures {', '.join(export.signatures)}.")
    if export.num_warmup_requests == 0:
        print("Warm-up requests were left out; for them, pip install 'rainbow_tf[serving]'.")


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(config_module)
    run_command(main)
