import numpy as np
import pytest

from rainbow_tf.environments.base import EpisodeTracker
from rainbow_tf.training.metrics import CsvFile
from rainbow_tf.types import Episode, StepOutput


def output(rewards, over, first=(False, False)):
    lanes = len(rewards)
    return StepOutput(
        observation=np.zeros((lanes, 1)),
        reward=np.array(rewards, np.float32),
        terminal=np.ones(lanes, bool),  # lost lives do not end a score
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


def lines(path):
    return path.read_text().splitlines()


def test_a_file_continues_after_the_frames_of_the_checkpoint(tmp_path):
    path = tmp_path / "train.csv"
    file = CsvFile(path, ("frames", "loss"), frames=0)
    for frames in (100, 200, 300):
        file.write({"frames": frames, "loss": 0.5})
    file.close()
    with path.open("a") as cut_off:
        cut_off.write("40")  # killed in the middle of a row
    file = CsvFile(path, ("frames", "loss"), frames=200)
    file.write({"loss": 0.25, "frames": 300})
    file.close()
    assert lines(path) == ["frames,loss", "100,0.5", "200,0.5", "300,0.25"]


def test_a_cut_off_row_is_dropped_where_its_number_would_fit(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("frames,loss\n100,0.5\n20")
    CsvFile(path, ("frames", "loss"), frames=200).close()
    assert lines(path) == ["frames,loss", "100,0.5"]


def test_rows_that_a_full_disk_does_not_take_wait(tmp_path, monkeypatch):
    path = tmp_path / "train.csv"
    file = CsvFile(path, ("frames", "loss"), frames=0)
    file.write({"frames": 100, "loss": 1})
    whole = file._file

    class Full:
        """Takes three bytes, as a disk does that is almost full."""

        def __getattr__(self, name):
            return getattr(whole, name)

        def write(self, data):
            return whole.write(data[:3])

    file._file = Full()
    with pytest.raises(OSError, match="No space left"):
        file.write({"frames": 200, "loss": 2})
    assert lines(path) == ["frames,loss", "100,1"]
    file._file = whole
    file.write({"frames": 300, "loss": 3})
    file.close()
    assert lines(path) == ["frames,loss", "100,1", "200,2", "300,3"]
