import numpy as np

from rainbow_tf.training.metrics import Episode, EpisodeTracker
from rainbow_tf.types import StepOutput


def output(rewards, over, first=(False, False)):
    lanes = len(rewards)
    return StepOutput(
        observation=np.zeros((lanes, 1)),
        reward=np.array(rewards, np.float32),
        terminal=np.ones(lanes, bool),  # lost lives do not end a score
        truncated=np.zeros(lanes, bool),
        episode_over=np.array(over),
        is_first=np.array(first),
    )


def test_scores_are_whole_games_and_unclipped():
    tracker = EpisodeTracker(2)
    assert tracker.observe(output([100, 1], [False, False])) == []
    assert tracker.observe(output([250, 1], [True, False])) == [Episode(350, 2)]
    # The restart of lane 0 is not a step of its next episode.
    assert tracker.observe(output([0, 1], [False, True], (True, False))) == [Episode(3, 3)]
    assert tracker.observe(output([5, 0], [True, False], (False, True))) == [Episode(5, 1)]
    assert tracker.unfinished() == [Episode(0, 0), Episode(0, 0)]
