"""Aggregates over games and seeds.

A score matrix is [S, G]: a column per game, padded with NaN where a game has fewer seeds.
"""

from collections.abc import Iterable

import numpy as np

THRESHOLDS = (20, 50, 100, 200, 500)  # percent of human
AGGREGATES = ("median", "interquartile mean", "mean")


def aggregate(scores: np.ndarray) -> np.ndarray:
    """Median and mean over games of the mean over seeds; interquartile mean over all runs.

    Takes [..., S, G], returns [3, ...] in the order of `AGGREGATES`.
    """
    per_game = np.nanmean(scores, axis=-2)
    runs = scores.reshape(*scores.shape[:-2], -1)
    means = np.mean(per_game, axis=-1)
    return np.array([np.median(per_game, axis=-1), interquartile_mean(runs), means])


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half of [..., N], ignoring NaN; a quarter is rounded down."""
    ordered = np.sort(values, axis=-1)  # NaN last
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    rank = np.arange(values.shape[-1])
    cut = count // 4
    middle = (rank >= cut) & (rank < count - cut)
    return np.mean(ordered, axis=-1, where=middle)


def bootstrap(
    scores: np.ndarray, *, rng: np.random.Generator, repetitions: int = 2000
) -> np.ndarray | None:
    """95 % intervals of `aggregate` [3, 2], resampling seeds within each game.

    None if no game has two seeds, because the spread is unknown then.
    """
    seeds = np.sum(~np.isnan(scores), axis=0)  # [G]
    if seeds.max() < 2:
        return None
    shape = (repetitions, *scores.shape)
    drawn = np.floor(rng.random(shape) * seeds).astype(np.int64)
    samples = np.take_along_axis(scores[None], drawn, axis=1)  # [B, S, G]
    samples[:, np.isnan(scores)] = np.nan
    return _intervals(samples)


def bootstrap_episodes(
    episodes: Iterable[np.ndarray], *, rng: np.random.Generator, repetitions: int = 2000
) -> np.ndarray:
    """95 % intervals of `aggregate` for one seed per game, resampling each game's episodes."""
    means = [
        rng.choice(scores, (repetitions, len(scores))).mean(axis=1) for scores in episodes
    ]  # G times [B]
    return _intervals(np.stack(means, axis=-1)[:, None])


def _intervals(samples: np.ndarray) -> np.ndarray:
    """Intervals of the aggregates of resampled scores [B, S, G]."""
    return np.quantile(aggregate(samples), (0.025, 0.975), axis=1).T


def area_under_curve(frames: np.ndarray, scores: np.ndarray) -> float:
    """Mean height of a curve over its frames, by trapezoids."""
    if len(frames) == 1:
        return float(scores[0])
    return float(np.trapezoid(scores, frames) / (frames[-1] - frames[0]))


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Means of `window` consecutive points of [..., T]; gives `window` - 1 points fewer."""
    sums = np.cumsum(np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1), axis=-1)
    return (sums[..., window:] - sums[..., :-window]) / window
