"""Area resizing of screens, bit for bit as in training, without OpenCV."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def shrink(screen: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Shrinks a grey screen [H, W] uint8; each pixel is the mean of the area it covers."""
    return np.rint(area_means(screen.astype(np.float32), shape)).astype(np.uint8)


def area_means(images: Any, shape: tuple[int, int], take: Callable = np.take) -> Any:
    """Shrinks float images [..., H, W]; for tensors, `take` is tf.gather."""
    # Columns first, as in OpenCV: another order of float sums rounds some halves differently.
    for axis in (-1, -2):
        pixels, weights = area_taps(images.shape[axis], shape[axis])  # [K, target]
        weights = weights if axis == -1 else weights[..., None]
        # Not a matrix product, which would round differently.
        parts = zip(pixels, weights, strict=True)
        images = sum(take(images, pixel, axis=axis) * weight for pixel, weight in parts)
    return images


@functools.cache
def area_taps(size: int, target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Source pixels under each target pixel and their weights, both [K, target].

    Overlaps below a thousandth of a pixel count as rounding errors, as in OpenCV.
    """
    scale = size / target_size
    starts = np.arange(target_size) * scale
    pixels = np.floor(starts + 1e-3).astype(np.int32) + np.arange(int(scale) + 2)[:, None]
    overlap = np.minimum(pixels + 1, starts + scale) - np.maximum(pixels, starts)
    weights = np.where(overlap > 1e-3, overlap, 0) / scale
    used = weights.any(axis=1)
    return np.minimum(pixels, size - 1)[used], weights[used].astype(np.float32)
