"""What the scores of an evaluation say, and the rules they were played by."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.evaluation.episodes import EvaluatedEpisode


def score_summary(episodes: Sequence[EvaluatedEpisode]) -> dict[str, Any]:
    """Mean, median, standard error and range of the scores, and the means of the value check."""
    scores = np.array([episode.score for episode in episodes])
    outside = [e.outside_support for e in episodes if e.outside_support is not None]
    return {
        "episodes": len(scores),
        "score_mean": float(scores.mean()),
        "score_median": float(np.median(scores)),
        "score_stderr": float(scores.std(ddof=1) / len(scores) ** 0.5) if len(scores) > 1 else None,
        "score_min": float(scores.min()),
        "score_max": float(scores.max()),
        "length_mean": float(np.mean([episode.length for episode in episodes])),
        "value_mean": float(np.mean([episode.value_mean for episode in episodes])),
        "return_mean": float(np.mean([episode.return_mean for episode in episodes])),
        "outside_support": float(np.mean(outside)) if outside else None,  # without a support
    }


def protocol_name(config: Config) -> str:
    """The rules of a score; scores of different rules must not be compared."""
    return f"{config.protocol}/noop" if config.game is not None else "gymnasium"
