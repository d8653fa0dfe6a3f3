"""Video files: content, frame rate, and atomic writing."""

import io
import subprocess
import sys

import cv2
import numpy as np
import pytest
from PIL import Image

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.video.encoder import Gif, check_video, enlarged, frames_per_second, video


def moving_square(count, height=64, width=96):
    """A red square that moves right on a green background."""
    for i in range(count):
        picture = np.full((height, width, 3), (20, 120, 40), np.uint8)
        picture[16:32, 2 * i : 2 * i + 16] = (220, 30, 30)
        yield picture


def read(path):
    """All frames, and the frame rate."""
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (frame := capture.read()[1]) is not None:
        frames.append(frame[..., ::-1])  # OpenCV returns BGR
    return frames, capture.get(cv2.CAP_PROP_FPS)


def write(path, pictures, rate=10):
    with video(path, frames_per_second=rate) as writer:
        for picture in pictures:
            writer.add(picture)


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_round_trip(tmp_path, suffix):
    path = tmp_path / "new" / f"square.{suffix}"
    pictures = list(moving_square(20))
    write(path, pictures)
    frames, rate = read(path)
    assert len(frames) == 20
    assert rate == pytest.approx(10, rel=0.01)
    for frame, picture in zip(frames, pictures, strict=True):
        assert np.abs(frame.astype(float) - picture).mean() < 6
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_gif_palette_covers_all_pictures(tmp_path):
    colours = [(230, 20, 20), (20, 230, 20), (20, 20, 230), (230, 230, 20)]
    write(tmp_path / "c.gif", [np.full((32, 32, 3), colour, np.uint8) for colour in colours])
    frames, _ = read(tmp_path / "c.gif")
    np.testing.assert_allclose([frame[5, 5] for frame in frames], colours, atol=4)


@pytest.mark.parametrize(
    ("rate", "kept", "milliseconds"), [(10, 60, 100), (15, 60, 66.7), (30, 30, 66.7), (50, 15, 80)]
)
def test_gif_drops_pictures_and_keeps_the_speed(rate, kept, milliseconds):
    gif = Gif(frames_per_second=rate)
    for picture in moving_square(60, width=160):
        gif.add(picture)
    with Image.open(io.BytesIO(gif.encoded())) as image:
        assert image.n_frames == kept
        assert image.info["loop"] == 0
        assert image.info["duration"] == pytest.approx(milliseconds, abs=10)  # stored as 1/100 s


def test_gif_ends_after_a_minute():
    gif = Gif(frames_per_second=1)
    for i in range(70):
        gif.add(np.full((2, 2, 3), 3 * i, np.uint8))
    (end,) = {gif._picture(gif._pictures[-1])[0, 0, 0]}
    assert (len(gif._pictures), end) == (60, 3 * 59)


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_failure_leaves_only_the_old_file(tmp_path, suffix, problem):
    path = tmp_path / f"x.{suffix}"
    path.write_text("old")

    def failing():
        yield from moving_square(5)
        raise problem

    with pytest.raises(problem):
        write(path, failing())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_full_disk_is_reported_and_leaves_nothing(tmp_path, suffix):
    code = (
        "import pathlib, resource, signal, sys\n"
        "import numpy as np\n"
        "from rainbow_tf.config import ConfigError\n"
        "from rainbow_tf.video.encoder import video\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "rng = np.random.default_rng(1)\n"
        "try:\n"
        "    with video(path, frames_per_second=10) as writer:\n"
        "        for _ in range(30):\n"
        "            writer.add(rng.integers(256, size=(240, 320, 3), dtype=np.uint8))\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    path = tmp_path / f"x.{suffix}"
    result = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60
    )
    assert result.stderr == ""
    assert f"{path} cannot be written" in result.stdout
    assert len(result.stdout.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_bad_paths_are_rejected_without_touching_the_disk(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.mp4").mkdir()
    for name, reason in {
        "game.avi": r"must end in \.mp4 or \.gif",
        "game": r"must end in \.mp4 or \.gif",
        "file/game.gif": r"cannot be written \(.*file is a file\); give another file",
        "folder.mp4": r"cannot be written \(it is a folder\)",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            check_video(tmp_path / name)
    check_video(tmp_path / "new" / "game.mp4")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.mp4"}


def test_only_mp4_needs_imageio_ffmpeg(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r'pip install "rainbow_tf\[video\]"'):
        check_video(tmp_path / "game.mp4")
    write(tmp_path / "game.gif", moving_square(3))


def test_screens_fill_the_height_or_the_width():
    screen = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    large = enlarged(screen, height=8, width=100)
    assert large.shape == (8, 12, 3)
    np.testing.assert_array_equal(large[::4, ::4], screen)
    np.testing.assert_array_equal(large[3::4, 3::4], screen)
    assert enlarged(screen, height=9, width=100).shape == (9, 14, 3)
    assert enlarged(screen, height=100, width=6).shape == (4, 6, 3)
    flat = np.full((400, 600, 3), 77, np.uint8)
    small = enlarged(flat, height=420, width=525)
    assert small.shape == (350, 525, 3)
    assert set(small.ravel()) == {77}


def test_atari_is_shown_at_real_speed():
    assert frames_per_second(Config(game="qbert")) == 15
    assert frames_per_second(Config(game="qbert", action_repeat=1)) == 60
    assert frames_per_second(Config(environment="CartPole-v1")) == 15
