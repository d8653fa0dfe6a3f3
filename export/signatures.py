"""The signatures of an exported policy: actions, values, risk-averse actions and metadata."""

import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.layers import spaced_levels
from rainbow_tf.agent.losses import q_values
from rainbow_tf.agent.networks import Network, make_support
from rainbow_tf.config import Config
from rainbow_tf.environments.atari import FRAME_SHAPE, SCREEN_SHAPE
from rainbow_tf.environments.screens import area_means
from rainbow_tf.runs.store import Best
from rainbow_tf.types import EnvironmentSpec

# Of examples in a request: a few bytes must not become gigabytes of answers.
MAX_BATCH_SIZE = 1024
# Of red, green and blue; gives ALE's grey for its whole palette.
GREY = (0.299, 0.587, 0.114)


def make_signatures(
    network: Network, *, config: Config, spec: EnvironmentSpec, facts: dict[str, Any], noisy: bool
) -> dict[str, Any]:
    """The concrete functions of the served model by name, with a free batch size, without XLA."""
    observations = tf.TensorSpec((None, *spec.observation_shape), spec.frame_dtype, "observations")
    support = make_support(config) if config.has_support else None
    levels = spaced_levels(network.head.num_levels) if config.has_quantiles else None

    def evaluate(stacks: tf.Tensor, alpha: tf.Tensor | float = 1.0) -> Any:
        """The network's outputs [B, A, ...]; quantiles are those of levels up to alpha."""
        given = {} if levels is None else {"levels": tf.reshape(alpha, (-1, 1)) * levels}
        return network(stacks, training=noisy, noise_per_example=noisy, **given)

    def answer(stacks: tf.Tensor) -> dict[str, tf.Tensor]:
        if config.algorithm == "a3c":  # clients may sample from the probabilities
            logits, values = network(stacks)
            probs = tf.nn.softmax(logits)
            return {"actions": _best(logits), "probabilities": probs, "values": values}
        outputs = evaluate(stacks)
        values = q_values(support, outputs)
        answers = {"actions": _best(values), "q_values": values}
        if support is not None:
            answers["probabilities"] = tf.nn.softmax(outputs)
        if levels is not None:
            answers["quantiles"] = outputs[..., 0]
        return answers

    def serving_default(observations: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer(to_stacks(checked(observations), spec))

    def from_frames(frames: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer(to_frames(checked(frames)))

    def risk(observations: tf.Tensor, alpha: tf.Tensor) -> dict[str, tf.Tensor]:
        stacks = to_stacks(checked(observations), spec)
        alpha = _checked_alpha(alpha, stacks)
        outputs = evaluate(stacks, alpha)
        # The mean of the quantiles up to alpha is exact; atoms must be cut off.
        values = q_values(None, outputs) if support is None else cvar(support, outputs, alpha)
        actions = _best(values)
        best = tf.gather(values, actions, batch_dims=1)
        return {"actions": actions, "values": best, "action_values": values}

    def metadata(query: tf.Tensor) -> dict[str, tf.Tensor]:
        query = checked(query)  # servers that batch reject a signature without inputs
        known = facts | {"support": support, "levels": levels}
        rows = {k: tf.constant(fact)[None] for k, fact in known.items() if fact is not None}
        return {name: tf.repeat(row, tf.shape(query)[0], axis=0) for name, row in rows.items()}

    wanted: list[tuple[Callable, list[tf.TensorSpec]]] = [(serving_default, [observations])]
    if config.game is not None:
        shape = (None, spec.frame_stack, 2, *SCREEN_SHAPE, 3)
        wanted.append((from_frames, [tf.TensorSpec(shape, tf.uint8, "frames")]))
    if config.distributional:
        wanted.append((risk, [observations, tf.TensorSpec((None,), tf.float32, "alpha")]))
    wanted.append((metadata, [tf.TensorSpec((None,), tf.int32, "query")]))
    return {
        function.__name__: tf.function(function, inputs, autograph=False).get_concrete_function()
        for function, inputs in wanted
    }


def _best(values: tf.Tensor) -> tf.Tensor:  # [B, A] -> [B]
    return tf.argmax(values, axis=1, output_type=tf.int32)


def to_stacks(observations: tf.Tensor, spec: EnvironmentSpec) -> tf.Tensor:
    """Observations as a client sends them -> [B, S, *frame], the network's input."""
    if len(spec.frame_shape) == 1:
        return tf.reshape(observations, (-1, spec.frame_stack, *spec.frame_shape))
    height, width, *channels = spec.frame_shape
    frames = tf.reshape(observations, (-1, height, width, spec.frame_stack, *channels))
    return tf.transpose(frames, (0, 3, 1, 2, 4) if channels else (0, 3, 1, 2))


def to_frames(screens: tf.Tensor) -> tf.Tensor:
    """RGB screens [B, S, 2, H, W, 3], the last two of each agent step -> frames [B, S, 84, 84]."""
    tf.debugging.assert_rank(screens, 6)
    grey = tf.round(tf.linalg.matvec(tf.cast(screens, tf.float32), tf.constant(GREY)))
    pooled = tf.reduce_max(grey, axis=2)  # of greys, as in training; the maximum per colour differs
    return tf.cast(tf.round(area_means(pooled, FRAME_SHAPE, tf.gather)), tf.uint8)


def checked(batch: tf.Tensor) -> tf.Tensor:
    """The batch, checked in the graph: servers run it on any input, empty or of another shape."""
    size = tf.shape(batch)[0]
    requirements = [
        tf.debugging.Assert(size > 0, ["The batch is empty."]),
        tf.debugging.Assert(
            size <= MAX_BATCH_SIZE, [f"A batch holds at most {MAX_BATCH_SIZE} examples, not", size]
        ),
    ]
    with tf.control_dependencies(requirements):
        return tf.ensure_shape(batch, batch.shape)


def _checked_alpha(alpha: tf.Tensor, stacks: tf.Tensor) -> tf.Tensor:
    alpha = checked(alpha)
    requirements = [
        tf.debugging.assert_equal(tf.shape(alpha), tf.shape(stacks)[:1]),
        tf.debugging.Assert(
            tf.reduce_all((alpha > 0) & (alpha <= 1)),
            ["alpha must be above 0 and at most 1, but holds", alpha],
        ),
    ]
    with tf.control_dependencies(requirements):
        return tf.identity(alpha)


def cvar(support: np.ndarray, logits: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Conditional value at risk: the mean of the worst `alpha` fraction of each action's returns.

    The atom at the boundary counts in part. `alpha` [B] is at most 1, and at least 0.001 is used.
    """
    tf.debugging.assert_rank(logits, 3)  # [B, A, N]
    tf.debugging.assert_rank(alpha, 1)
    alpha = tf.maximum(alpha, 1e-3)[:, None]  # [B, 1]
    probs = tf.nn.softmax(logits)
    below = tf.cumsum(probs, axis=-1, exclusive=True)
    taken = tf.clip_by_value(alpha[..., None] - below, 0.0, probs)
    worst = tf.reduce_sum(taken * support, axis=-1) / alpha  # [B, A]
    # With alpha = 1, equal to the mean policy without rounding differences.
    return tf.where(alpha < 1, worst, q_values(support, logits))


def describe(
    config: Config, spec: EnvironmentSpec, frames: int, best: Best | None, *, noisy: bool
) -> dict[str, Any]:
    """The contents of the `metadata` signature; unknown values are -1, NaN or empty."""
    preprocessing = {
        "frame_shape": spec.frame_shape,
        "frame_dtype": spec.frame_dtype.name,
        "frame_stack": spec.frame_stack,
        "observation_shape": spec.observation_shape,
        "order": "newest frame last, zeros before the episode",
        "max_episode_frames": config.max_episode_frames,
    }
    if config.game is not None:
        preprocessing |= {
            "screen_shape": SCREEN_SHAPE,
            "grey": GREY,
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
        "frames_trained": np.int64(frames),
        "score": np.float32(np.nan if best is None else best.score_mean),
        "score_protocol": "" if best is None else best.protocol,
        "versions": json.dumps({name: importlib.metadata.version(name) for name in packages}),
    }
