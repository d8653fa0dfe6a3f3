"""Area resizing of screens, bit for bit as in training, without OpenCV."""

import functools

import numpy as np


def shrink(screen: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Shrinks a grey screen [H, W] uint8; each pixel is the mean of the area it covers."""
    height, width = shape
    # Columns first, as in OpenCV: another order of float sums rounds some halves differently.
    shrunk = _shrink_rows(_shrink_rows(screen.T.astype(np.float32), width).T, height)
    return np.rint(shrunk).astype(np.uint8)


def _shrink_rows(image: np.ndarray, size: int) -> np.ndarray:
    total = np.zeros((size, image.shape[1]), np.float32)
    for pixel, weight in zip(*area_taps(len(image), size), strict=True):
        total += image[pixel] * weight[:, None]
    return total


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
