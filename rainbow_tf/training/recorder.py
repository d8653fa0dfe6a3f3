"""Records videos during training."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config
from rainbow_tf.console import say
from rainbow_tf.environments.base import make_environment
from rainbow_tf.runs.weights import assign, named, values
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.video.encoder import SMALL, VIDEOS, Gif, frames_per_second, video
from rainbow_tf.video.film import play
from rainbow_tf.video.panel import Panel

_SECONDS = 10


@dataclasses.dataclass(kw_only=True)
class Recorder:
    """Records the evaluated policy every period, to `videos/` and TensorBoard.

    It has its own environment and random numbers, and restores the networks' noise state, so
    training is the same to the last bit without it.
    """

    config: Config
    parts: AnyParts
    metrics: Metrics
    frames: int  # when it recorded last, or was made
    is_stopping: Callable[[], bool]

    def observe(self, frames: int) -> None:
        """Records if a period has passed; a failure is reported and training continues."""
        if not has_passed(self.config.record_period_frames, self.frames, frames):
            return
        self.frames = frames
        policy = self.parts.evaluation_actor
        noise = named("noise", self.parts.learner.online.non_trainable_variables)
        rng, seeds = policy.rng, values(noise)
        with self.metrics.paused():
            try:
                say(self._record(frames))
            except Exception as error:  # Rendering is foreign code; a video must not end a run.
                say(f"film at {frames:,} frames: failed, training continues ({error})")
            finally:
                policy.rng = rng
                assign(noise, seeds)

    def _record(self, frames: int) -> str:
        config, policy = self.config, self.parts.evaluation_actor
        seed = (config.seed * 1_000_003 + frames) % 2**31
        policy.rng = np.random.default_rng(seed)
        path = config.folder / VIDEOS / f"{frames}.mp4"
        rate = frames_per_second(config)
        panel = Panel(config, self.parts.spec, frames=frames, height=SMALL)
        gif = Gif(frames_per_second=rate)
        environment = make_environment(config, num_envs=1, seed=seed, screens=True)
        scenes = itertools.islice(
            play(policy, environment, config=config, episodes=1), _SECONDS * rate
        )
        with contextlib.closing(environment), video(path, frames_per_second=rate) as writer:
            for scene in scenes:
                picture = panel.picture(scene)
                writer.add(picture)
                gif.add(picture)
                if self.is_stopping():
                    break
        height, width, _ = picture.shape
        self.metrics.show_film(frames, gif.encoded(), height=height, width=width)
        cut = "" if scene.is_last else " so far"
        return f"film at {frames:,} frames: score {scene.score:g}{cut}, {path}"
