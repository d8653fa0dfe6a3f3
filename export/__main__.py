"""Exports a run's policy: python -m rainbow_tf.export --run_dir=... --out=models/qbert."""

from pathlib import Path

from absl import flags

from rainbow_tf.command import SNAPSHOT_FLAGS, Command, Flag, run_settings, wanted_snapshot
from rainbow_tf.config import ConfigError
from rainbow_tf.export.check import WARMUP_FILE
from rainbow_tf.process import load_tensorflow


def run(values: flags.FlagValues) -> None:
    """Checks the flags, then exports."""
    if values.run_dir is None or values.out is None:
        raise ConfigError("Give --run_dir, the run to export, and --out, where to.")
    config = run_settings(values, values.run_dir)
    snapshot = wanted_snapshot(values, config)
    if values.noisy and not config.noisy:
        raise ConfigError("--noisy has nothing to keep: this agent has no noisy layers.")
    if values.noisy and values.tflite:
        raise ConfigError("--tflite and --noisy exclude each other; LiteRT draws no noise.")
    # TensorFlow takes seconds to load: flags are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.export.saved_model import export_run

    export = export_run(config, Path(values.out), snapshot, noisy=values.noisy, lite=values.tflite)
    print(f"Wrote {export.folder} with the signatures {', '.join(export.signatures)}.")
    if not (export.folder / WARMUP_FILE).exists():
        print("Warm-up requests were left out; for them, pip install 'rainbow_tf[serving]'.")


COMMAND = Command(
    options=SNAPSHOT_FLAGS
    | {
        "out": Flag(None, "Folder of the model; the export becomes its next version, 1, 2, ..."),
        "noisy": Flag(False, "Keep the noise of the noisy layers: every answer draws its own."),
        "tflite": Flag(False, "Add assets.extra/policy.tflite: the default signature for LiteRT."),
    },
    run=run,
    example="give --run_dir and --out",
    interrupted="interrupted; nothing was written.",
)

if __name__ == "__main__":
    COMMAND.main()
