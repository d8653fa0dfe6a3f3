"""Writes a policy as a SavedModel: what it answers, and the care taken that it can be served."""

import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.losses import q_values
from rainbow_tf.agent.networks import Network, make_support
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.atari import SCREEN_SHAPE
from rainbow_tf.export import screens, warmup
from rainbow_tf.export.check import check_version, quiet_tensorflow, version_number
from rainbow_tf.types import WorldSpec

LITE_FILE = Path("assets.extra", "policy.tflite")
SMALLEST_ALPHA = 1e-3


class Training(NamedTuple):
    """How a policy came about, as far as it is known."""

    frames: int | None = None
    score: float | None = None
    protocol: str | None = None  # under which the score was measured


class Export(NamedTuple):
    """What was written."""

    folder: Path
    signatures: tuple[str, ...]
    num_warmup_requests: int


def export_policy(
    network: Network,
    *,
    config: Config,
    spec: WorldSpec,
    training: Training,
    output_dir: Path,
    noisy: bool = False,
    lite: bool = False,
) -> Export:
    """Writes `output_dir`/<next integer>, which appears there only when it is whole and checked."""
    signatures = make_signatures(network, config=config, spec=spec, training=training, noisy=noisy)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        # Its name is no integer, so a server that watches the folder does not see it.
        aside = Path(tempfile.mkdtemp(prefix=".export_", dir=output_dir))
    except OSError as error:
        raise _unwritable(output_dir, error) from error
    try:
        model = aside / "model"  # With rights as usual: those of `aside` are the owner's alone.
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
    except (OSError, tf.errors.OpError) as error:  # A full disk is either.
        raise _unwritable(output_dir, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Export(folder, tuple(signatures), num_warmup_requests)


def write_model(network: Network, signatures: dict[str, Any], folder: Path) -> None:
    """Saves the signatures with the network's variables that they read, and no others."""
    read = {id(v) for function in signatures.values() for v in function.graph.variables}
    module = tf.Module()
    # Not all of them: the mean policy needs no noise scales, half of the network.
    module.weights = [v.value for v in network.variables if id(v.value) in read]
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with quiet_tensorflow():
        tf.saved_model.save(module, str(folder), signatures=signatures, options=options)


def write_lite(model: Path) -> None:
    """Adds `serving_default` as a LiteRT model, where TF Serving does not look."""
    with quiet_tensorflow():
        content = tf.lite.TFLiteConverter.from_saved_model(
            str(model), signature_keys=["serving_default"]
        ).convert()
    (model / LITE_FILE).parent.mkdir(exist_ok=True)
    (model / LITE_FILE).write_bytes(content)


def _publish(model: Path, output_dir: Path) -> Path:
    """Renames to the next version number; to a later one if another export was faster."""
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


def make_signatures(
    network: Network, *, config: Config, spec: WorldSpec, training: Training, noisy: bool
) -> dict[str, Any]:
    """The functions of the served model by name, all of a free batch and without XLA."""
    support = make_support(config)
    shape = serving_shape(spec)
    observations = tf.TensorSpec((None, *shape), spec.frame_dtype, "observations")
    alpha = tf.TensorSpec((None,), tf.float32, "alpha")
    query = tf.TensorSpec((None,), tf.int32, "query")
    frames = tf.TensorSpec((None, spec.frame_stack, 2, *SCREEN_SHAPE, 3), tf.uint8, "frames")

    def outputs_of(stacks: tf.Tensor) -> tf.Tensor:  # [B, S, *frame] -> [B, A, N]
        return network(stacks, training=noisy, noise_per_example=noisy)

    def answer(stacks: tf.Tensor) -> dict[str, tf.Tensor]:
        if config.algorithm == "a3c":  # the mode of the policy; who wants to draw has its shares
            logits, values = network(stacks)
            actions = tf.argmax(logits, axis=1, output_type=tf.int32)
            return {"actions": actions, "probabilities": tf.nn.softmax(logits), "values": values}
        outputs = outputs_of(stacks)
        values = q_values(support, outputs)
        answers = {"actions": tf.argmax(values, axis=1, output_type=tf.int32), "q_values": values}
        if support is not None:
            answers["probabilities"] = tf.nn.softmax(outputs)
        return answers

    def serving_default(observations: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer(to_stacks(checked(observations), spec))

    def from_frames(frames: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer(screens.to_frames(checked(frames)))

    def risk(observations: tf.Tensor, alpha: tf.Tensor) -> dict[str, tf.Tensor]:
        assert support is not None
        outputs = outputs_of(to_stacks(checked(observations), spec))
        with tf.control_dependencies(
            [tf.debugging.assert_equal(tf.shape(alpha), tf.shape(outputs)[:1])]
        ):
            values = cvar(support, outputs, checked(alpha))
        actions = tf.argmax(values, axis=1, output_type=tf.int32)
        return {
            "actions": actions,
            "values": tf.gather(values, actions, batch_dims=1),
            "action_values": values,
        }

    def metadata(query: tf.Tensor) -> dict[str, tf.Tensor]:
        # A server that batches, or is asked over REST, refuses a signature without inputs.
        count = tf.shape(checked(query))[0]
        facts = describe(config, spec, training, noisy=noisy)
        if support is not None:
            facts["support"] = support
        rows = {name: tf.constant(fact)[None] for name, fact in facts.items()}
        return {name: tf.repeat(row, count, axis=0) for name, row in rows.items()}

    wanted: list[tuple[Callable, list[tf.TensorSpec]]] = [(serving_default, [observations])]
    if config.game is not None:
        wanted.append((from_frames, [frames]))
    if support is not None:
        wanted.append((risk, [observations, alpha]))
    wanted.append((metadata, [query]))
    return {
        function.__name__: tf.function(
            function, input_signature=inputs, autograph=False
        ).get_concrete_function()
        for function, inputs in wanted
    }


def serving_shape(spec: WorldSpec) -> tuple[int, ...]:
    """The shape of one observation as a client sends it, newest frame last.

    Images are [H, W, S * C] (all channels of the oldest frame first), vectors [D], or [S, D] if
    they are stacked.
    """
    if len(spec.frame_shape) == 1:
        return spec.frame_shape if spec.frame_stack == 1 else (spec.frame_stack, *spec.frame_shape)
    height, width, *channels = spec.frame_shape
    return (height, width, spec.frame_stack * int(np.prod(channels)))


def to_stacks(observations: tf.Tensor, spec: WorldSpec) -> tf.Tensor:
    """Observations as a client sends them -> [B, S, *frame], as the network takes them."""
    if len(spec.frame_shape) == 1:
        return tf.reshape(observations, (-1, spec.frame_stack, *spec.frame_shape))
    height, width, *channels = spec.frame_shape
    frames = tf.reshape(observations, (-1, height, width, spec.frame_stack, *channels))
    return tf.transpose(frames, (0, 3, 1, 2, 4) if channels else (0, 3, 1, 2))


def checked(batch: tf.Tensor) -> tf.Tensor:
    """The batch, if it has examples of the shape that the signature says.

    A server feeds the graph whatever it is sent, and a reshape would take it.
    """
    has_examples = tf.debugging.Assert(tf.shape(batch)[0] > 0, ["The batch is empty."])
    with tf.control_dependencies([has_examples]):
        return tf.ensure_shape(batch, batch.shape)


def cvar(support: np.ndarray, logits: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Conditional value at risk: the mean of the worst `alpha` share of every action's returns.

    An atom that the share splits counts in part. `alpha` [B] is clipped to [0.001, 1].
    """
    tf.debugging.assert_rank(logits, 3)  # [B, A, N]
    tf.debugging.assert_rank(alpha, 1)
    alpha = tf.clip_by_value(alpha, SMALLEST_ALPHA, 1.0)[:, None]  # [B, 1]
    probs = tf.nn.softmax(logits)
    below = tf.cumsum(probs, axis=-1, exclusive=True)
    taken = tf.clip_by_value(alpha[..., None] - below, 0.0, probs)
    worst = tf.reduce_sum(taken * support, axis=-1) / alpha  # [B, A]
    # The mean policy to the last bit, not up to rounding.
    return tf.where(alpha < 1, worst, q_values(support, logits))


def describe(config: Config, spec: WorldSpec, training: Training, *, noisy: bool) -> dict:
    """The facts that the `metadata` signature gives; what is unknown is -1, NaN or empty."""
    preprocessing = {
        "frame_shape": spec.frame_shape,
        "frame_dtype": spec.frame_dtype.name,
        "frame_stack": spec.frame_stack,
        "observation_shape": serving_shape(spec),
        "order": "newest frame last, zeros before the episode",
        "max_episode_frames": config.max_episode_frames,
    }
    if config.game is not None:
        preprocessing |= {
            "screen_shape": SCREEN_SHAPE,
            "grey": screens.GREY,
            "pooling": "maximum of the greys of a step's last two screens",
            "resize": "area",
            "action_repeat": config.action_repeat,
            "noop_max": config.noop_max,
            "protocol": config.protocol,
        }
    packages = ("rainbow_tf", "tensorflow", "keras", "ale-py")
    return {
        "game": config.game or config.environment,
        "action_meanings": spec.action_meanings,
        "preprocessing": json.dumps(preprocessing),
        "agent": config.agent,
        "algorithm": config.algorithm,
        "noisy": noisy,
        "frames_trained": np.int64(-1 if training.frames is None else training.frames),
        "score": np.float32(np.nan if training.score is None else training.score),
        "score_protocol": training.protocol or "",
        "versions": json.dumps({name: importlib.metadata.version(name) for name in packages}),
    }
