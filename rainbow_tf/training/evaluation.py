"""Plays whole games without learning."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rainbow_tf.agent.actor import Actor
from rainbow_tf.config import Config
from rainbow_tf.environments.worlds import World, make_world
from rainbow_tf.training.metrics import EpisodeTracker, Metrics
from rainbow_tf.training.parts import Parts


class Evaluation(NamedTuple):
    """True scores of whole episodes, and their lengths in agent steps."""

    scores: np.ndarray
    lengths: np.ndarray


def evaluate(actor: Actor, world: World, *, steps: int, epsilon: float) -> Evaluation:
    """Plays `steps` agent steps over all lanes.

    Episodes that are under way at the end count only where none was finished.
    """
    output = world.reset()
    tracker = EpisodeTracker(len(output.reward))
    episodes = []
    played = 0
    while played < steps:
        output = world.step(actor.act(output.observation, epsilon))
        played += int(np.count_nonzero(~output.is_first))
        episodes += tracker.observe(output)
    scores, lengths = zip(*(episodes or tracker.unfinished()), strict=True)
    return Evaluation(np.array(scores), np.array(lengths))


class Evaluator:
    """Suspends learning every period, plays, and keeps the best weights in `best/`."""

    def __init__(
        self, *, config: Config, parts: Parts, metrics: Metrics, say: Callable[[str], None]
    ):
        self._config = config
        self._parts = parts
        self._metrics = metrics
        self._say = say
        self._best = -np.inf
        self._next = config.eval_period_frames

    def observe(self, frames: int) -> None:
        """Evaluates if a period has passed."""
        period = self._config.eval_period_frames
        if period == 0 or frames < self._next:
            return
        self._next = (frames // period + 1) * period
        with self._metrics.paused():
            self._evaluate(frames)

    def _evaluate(self, frames: int) -> None:
        config = self._config
        self._say(f"evaluation at {frames:,} frames: playing {config.eval_frames:,} frames ...")
        started = time.perf_counter()
        # Other starts every time, and the same ones when the run is repeated.
        seed = (config.seed * 1_000_003 + frames) % 2**31
        world = make_world(config, num_envs=config.num_envs, seed=seed, training=False)
        evaluation = evaluate(
            self._parts.evaluation_actor,
            world,
            steps=config.steps(config.eval_frames),
            epsilon=config.eval_epsilon,
        )
        world.close()
        self._metrics.write_evaluation(
            frames, evaluation.scores, evaluation.lengths, time.perf_counter() - started
        )
        mean = evaluation.scores.mean()
        if mean > self._best:
            self._best = mean
            folder = config.folder / "best"
            folder.mkdir(exist_ok=True)
            self._parts.learner.online.save_weights(folder / "online.weights.h5")
        self._say(
            f"evaluation at {frames:,} frames: mean score {mean:.1f} over "
            f"{len(evaluation.scores)} episodes, best {self._best:.1f}"
        )
