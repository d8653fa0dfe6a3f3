"""The preprocessing of Atari screens as TensorFlow operations: grey, max-pool, area-resize."""

import tensorflow as tf

from rainbow_tf.environments.atari import FRAME_SHAPE
from rainbow_tf.environments.screens import area_taps

# Of red, green and blue; gives ALE's grey for its whole palette.
GREY = (0.299, 0.587, 0.114)


def to_frames(screens: tf.Tensor) -> tf.Tensor:
    """RGB screens [B, S, 2, H, W, 3], the last two of each agent step -> frames [B, S, 84, 84]."""
    tf.debugging.assert_rank(screens, 6)
    grey = tf.round(tf.linalg.matvec(tf.cast(screens, tf.float32), tf.constant(GREY)))
    pooled = tf.reduce_max(grey, axis=2)  # of greys, as in training; the maximum per colour differs
    height, width = FRAME_SHAPE
    # Columns first, as in OpenCV: another order of float sums rounds some halves differently.
    shrunk = _shrink(_shrink(pooled, width, axis=3), height, axis=2)
    return tf.cast(tf.round(shrunk), tf.uint8)


def _shrink(images: tf.Tensor, size: int, axis: int) -> tf.Tensor:
    """Area-resizes one axis by a sum of products; a matrix product would round differently."""
    pixels, weights = area_taps(images.shape[axis], size)
    shape = [size if i == axis else 1 for i in range(len(images.shape))]
    total = tf.zeros((), images.dtype)
    for pixel, weight in zip(pixels, weights, strict=True):
        total += tf.gather(images, pixel, axis=axis) * weight.reshape(shape)
    return total
