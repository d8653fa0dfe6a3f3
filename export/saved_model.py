"""Writes a policy as a SavedModel and checks that it can be served."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.export import warmup
from rainbow_tf.export.check import check_version, quiet_tensorflow, version_number
from rainbow_tf.export.signatures import Training, make_signatures
from rainbow_tf.types import EnvironmentSpec

LITE_FILE = Path("assets.extra", "policy.tflite")


class Export(NamedTuple):
    """The version that was written."""

    folder: Path
    signatures: tuple[str, ...]
    num_warmup_requests: int


def export_policy(
    network: Network,
    *,
    config: Config,
    spec: EnvironmentSpec,
    training: Training,
    output_dir: Path,
    noisy: bool = False,
    lite: bool = False,
) -> Export:
    """Writes `output_dir`/<next integer>, which appears only when it is complete and checked."""
    signatures = make_signatures(network, config=config, spec=spec, training=training, noisy=noisy)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        # Not named by an integer, so a server that watches the folder ignores it.
        aside = Path(tempfile.mkdtemp(prefix=".export_", dir=output_dir))
    except OSError as error:
        raise _unwritable(output_dir, error) from error
    try:
        model = aside / "model"  # With normal permissions; `aside` has mode 700.
        write_model(network, signatures, model)
        if lite:
            write_lite(model)
        num_warmup_requests = warmup.write_requests(signatures, model)
        problems = check_version(model, signatures=tuple(signatures))
        if problems:
            raise ConfigError(
                f"The export to {output_dir} was refused and nothing was written: "
                + " ".join(problems)
            )
        folder = _publish(model, output_dir)
    except (OSError, tf.errors.OpError) as error:  # a full disk raises either
        raise _unwritable(output_dir, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Export(folder, tuple(signatures), num_warmup_requests)


def write_model(network: Network, signatures: dict[str, Any], folder: Path) -> None:
    """Saves the signatures and only those of the network's variables that they read."""
    read = {id(v) for function in signatures.values() for v in function.graph.variables}
    module = tf.Module()
    # The mean policy does not need the noise scales, half of the network.
    module.weights = [v.value for v in network.variables if id(v.value) in read]
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with quiet_tensorflow():
        tf.saved_model.save(module, str(folder), signatures=signatures, options=options)


def write_lite(model: Path) -> None:
    """Adds `serving_default` as a LiteRT model, in a folder that TF Serving ignores."""
    with quiet_tensorflow():
        content = tf.lite.TFLiteConverter.from_saved_model(
            str(model), signature_keys=["serving_default"]
        ).convert()
    (model / LITE_FILE).parent.mkdir(exist_ok=True)
    (model / LITE_FILE).write_bytes(content)


def _publish(model: Path, output_dir: Path) -> Path:
    """Renames to the next version number, or a later one if another export took it."""
    while True:
        numbers = [version_number(path.name) for path in output_dir.iterdir()]
        folder = output_dir / str(max((n for n in numbers if n is not None), default=0) + 1)
        try:
            os.rename(model, folder)
        except OSError:
            if not folder.exists():
                raise
        else:
            return folder


def _unwritable(output_dir: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
    return ConfigError(f"The model folder {output_dir} cannot be written ({reason}); give another.")
