"""Records videos during training."""

import itertools
from collections.abc import Callable

import numpy as np

from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.runs.weights import make_policy
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.metrics import Metrics
from rainbow_tf.video.encoder import SMALL, VIDEOS, Gif, frames_per_second, video
from rainbow_tf.video.film import play
from rainbow_tf.video.panel import Panel

_SECONDS = 10


class Recorder:
    """Records the evaluated policy every period, to `videos/` and TensorBoard.

    It has its own environment and random numbers, and restores the networks' noise state, so
    training is the same to the last bit without it.
    """

    def __init__(
        self,
        *,
        config: Config,
        parts: AnyParts,
        metrics: Metrics,
        frames: int,
        is_stopping: Callable[[], bool],
        say: Callable[[str], None],
    ):
        self._config = config
        self._network = parts.learner.online
        self._metrics = metrics
        self._recorded = frames
        self._is_stopping = is_stopping
        self._say = say
        rng = np.random.default_rng(0)
        self._actor = make_policy(
            config, self._network, parts.spec, noise=config.eval_noise, rng=rng
        )

    def observe(self, frames: int) -> None:
        """Records if a period has passed; a failure is reported and training continues."""
        if not has_passed(self._config.record_period_frames, self._recorded, frames):
            return
        self._recorded = frames
        seeds = [variable.numpy() for variable in self._network.non_trainable_variables]
        with self._metrics.paused():
            try:
                self._say(self._record(frames))
            except Exception as error:  # Rendering is foreign code; a video must not end a run.
                self._say(f"film at {frames:,} frames: failed, training continues ({error})")
            finally:
                for variable, seed in zip(
                    self._network.non_trainable_variables, seeds, strict=True
                ):
                    variable.assign(seed)

    def _record(self, frames: int) -> str:
        config = self._config
        seed = (config.seed * 1_000_003 + frames) % 2**31
        self._actor.rng = np.random.default_rng(seed)
        path = config.folder / VIDEOS / f"{frames}.mp4"
        rate = frames_per_second(config)
        environment = make_environment(config, num_envs=1, seed=seed, training=False, screens=True)
        try:
            panel = Panel(config, environment.spec, frames=frames, height=SMALL)
            gif = Gif(None, frames_per_second=rate)
            with video(path, frames_per_second=rate) as writer:
                scenes = play(self._actor, environment, config=config, episodes=1)
                for scene in itertools.islice(scenes, _SECONDS * rate):
                    picture = panel.picture(scene)
                    writer.add(picture)
                    gif.add(picture)
                    if self._is_stopping():
                        break
        finally:
            environment.close()
        height, width, _ = picture.shape
        self._metrics.show_film(frames, gif.encoded(), height=height, width=width)
        cut = "" if scene.is_last else " so far"
        return f"film at {frames:,} frames: score {scene.score:g}{cut}, {path}"
