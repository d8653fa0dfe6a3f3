"""The training's preprocessing of Atari screens, as a graph: grey, pool, area-resize."""

import numpy as np
import tensorflow as tf

from rainbow_tf.environments.atari import FRAME_SHAPE

GREY = (0.299, 0.587, 0.114)  # of red, green, blue; the emulator's greys for all its colours


def to_frames(screens: tf.Tensor) -> tf.Tensor:
    """RGB screens [B, S, 2, H, W, 3], the last two of each agent step -> frames [B, S, 84, 84]."""
    tf.debugging.assert_rank(screens, 6)
    grey = tf.round(tf.linalg.matvec(tf.cast(screens, tf.float32), tf.constant(GREY)))
    pooled = tf.reduce_max(grey, axis=2)  # Of greys, not of colours: a sprite may flicker in red.
    height, width = FRAME_SHAPE
    # Columns first, as OpenCV does: float sums in another order round some halves the other way.
    shrunk = _shrink(_shrink(pooled, width, axis=3), height, axis=2)
    return tf.cast(tf.round(shrunk), tf.uint8)


def _shrink(images: tf.Tensor, size: int, axis: int) -> tf.Tensor:
    """Area-resizes one axis; a sum of few products, because a matrix product rounds differently."""
    pixels, weights = area_taps(images.shape[axis], size)
    shape = [size if i == axis else 1 for i in range(len(images.shape))]
    total = tf.zeros((), images.dtype)
    for pixel, weight in zip(pixels, weights, strict=True):
        total += tf.gather(images, pixel, axis=axis) * weight.reshape(shape)
    return total


def area_taps(size: int, target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels under each target pixel and the share of it that each covers, both [K, target].

    Shares of less than a thousandth of a pixel are rounding, as in OpenCV.
    """
    scale = size / target_size
    starts = np.arange(target_size) * scale
    pixels = np.floor(starts + 1e-3).astype(np.int32) + np.arange(int(scale) + 2)[:, None]
    overlap = np.minimum(pixels + 1, starts + scale) - np.maximum(pixels, starts)
    weights = np.where(overlap > 1e-3, overlap, 0) / scale
    used = weights.any(axis=1)
    return np.minimum(pixels, size - 1)[used], weights[used].astype(np.float32)
