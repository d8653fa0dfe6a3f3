"""Writes a policy as a SavedModel, with warm-up requests, and checks that it can be served."""

import importlib.util
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.export import check
from rainbow_tf.export.signatures import describe, make_signatures
from rainbow_tf.process import one_line
from rainbow_tf.runs.folder import environment_spec
from rainbow_tf.runs.store import Best
from rainbow_tf.runs.weights import load_network
from rainbow_tf.types import EnvironmentSpec

LITE_FILE = Path("assets.extra", "policy.tflite")
_WARMUP_BATCH_SIZES = (1, 8)


class Export(NamedTuple):
    """The version that was written."""

    folder: Path
    signatures: tuple[str, ...]


def export_run(config: Config, output_dir: Path, snapshot: str | int, **options: Any) -> Export:
    """Writes a run's best policy or that of a checkpoint; `options` are for `export_policy`."""
    network, frames, best = load_network(config, snapshot)
    return export_policy(
        network,
        config=config,
        spec=environment_spec(config),
        output_dir=output_dir,
        frames=frames,
        best=best,
        **options,
    )


def export_policy(
    network: Network,
    *,
    config: Config,
    spec: EnvironmentSpec,
    output_dir: Path,
    frames: int = -1,
    best: Best | None = None,
    noisy: bool = False,
    lite: bool = False,
) -> Export:
    """Writes `output_dir`/<next integer>, which appears only when it is complete and checked."""
    facts = describe(config, spec, frames, best, noisy=noisy)
    signatures = make_signatures(network, config=config, spec=spec, facts=facts, noisy=noisy)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        # Not named by an integer, so a server that watches the folder ignores it.
        with tempfile.TemporaryDirectory(
            prefix=".export_", dir=output_dir, ignore_cleanup_errors=True
        ) as aside:
            model = Path(aside, "model")  # With normal permissions; `aside` has mode 700.
            write_model(network, signatures, model)
            if lite:
                write_lite(model)
            write_warmup(signatures, model)
            problems = check.check_version(model, signatures=tuple(signatures))
            if problems:
                raise ConfigError(
                    f"The export to {output_dir} was refused and nothing was written: "
                    + " ".join(problems)
                )
            folder = _publish(model, output_dir)
    except (OSError, tf.errors.OpError) as error:  # a full disk raises either
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ConfigError(
            f"The model folder {output_dir} cannot be written ({reason}); give another."
        ) from error
    return Export(folder, tuple(signatures))


def write_model(network: Network, signatures: dict[str, Any], folder: Path) -> None:
    """Saves the signatures and only those of the network's variables that they read."""
    read = {id(v) for function in signatures.values() for v in function.graph.variables}
    module = tf.Module()
    # The mean policy does not need the noise scales, half of the network.
    module.weights = [v.value for v in network.variables if id(v.value) in read]
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with check.quiet_tensorflow():
        tf.saved_model.save(module, str(folder), signatures=signatures, options=options)


def write_lite(model: Path) -> None:
    """Adds `serving_default` as a LiteRT model, in a folder that TF Serving ignores."""
    with check.quiet_tensorflow():
        converter = tf.lite.TFLiteConverter.from_saved_model(str(model), ["serving_default"])
        content = converter.convert()
    (model / LITE_FILE).parent.mkdir(exist_ok=True)
    (model / LITE_FILE).write_bytes(content)


def write_warmup(signatures: dict[str, Any], model: Path) -> None:
    """Writes requests that TF Serving runs when it loads the model, if its API is installed."""
    if importlib.util.find_spec("tensorflow_serving") is None:
        return
    from tensorflow_serving.apis import prediction_log_pb2

    (model / check.WARMUP_FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(model / check.WARMUP_FILE)) as writer:
        for (name, function), size in itertools.product(signatures.items(), _WARMUP_BATCH_SIZES):
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = "policy"
            request.model_spec.signature_name = name
            for spec in function.structured_input_signature[0]:
                one = spec.dtype.as_numpy_dtype(1)  # a valid alpha too
                # One value, repeated on reading: a batch of screens would take megabytes.
                tensor = tf.make_tensor_proto(one, spec.dtype, (size, *spec.shape[1:]))
                request.inputs[spec.name].CopyFrom(tensor)
            writer.write(log.SerializeToString())


def _publish(model: Path, output_dir: Path) -> Path:
    """Renames to the next version number, or a later one if another export took it."""
    while True:
        versions = check.sorted_versions(output_dir.iterdir())
        folder = output_dir / str(int(versions[-1].name) + 1 if versions else 1)
        try:
            os.rename(model, folder)
            return folder
        except OSError:
            if not folder.exists():
                raise
