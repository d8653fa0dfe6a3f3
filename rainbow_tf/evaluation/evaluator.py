"""Evaluation during training."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rainbow_tf.agent.networks import Network
from rainbow_tf.agent.schedules import has_passed
from rainbow_tf.config import Config
from rainbow_tf.environments.base import make_environment
from rainbow_tf.evaluation.episodes import EvaluatedEpisode, EvaluationGames, play_budget
from rainbow_tf.evaluation.statistics import protocol_name
from rainbow_tf.runs.store import Best, kept_best
from rainbow_tf.runs.weights import write_best
from rainbow_tf.types import Policy

# With a single lane and few long episodes the mean is up to 7 % too high: see `play_budget`.
_FEWEST_LANES = 4


class Evaluator:
    """Evaluates the policy every period, and stores the best weights in `best/`."""

    def __init__(
        self,
        *,
        config: Config,
        policy: Policy,
        network: Network,
        write: Callable[[int, Sequence[EvaluatedEpisode], float], None],
        is_stopping: Callable[[], bool],
        say: Callable[[str], None],
        show: Callable[[int, int], None] = lambda played, planned: None,
    ):
        self._config = config
        self._policy = policy
        self._network = network
        self._write = write
        self._is_stopping = is_stopping
        self._say = say
        self._show = show
        self.best: Best | None = None
        self._kept: Best | None = None  # the evaluation in `best/`
        self._evaluated = 0  # frames of the last evaluation

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, as JSON."""
        return {"best": self.best, "evaluated": self._evaluated}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.best = None if state["best"] is None else Best(*state["best"])
        kept = kept_best(self._config.folder)
        # After falling back to an older checkpoint, `best/` may be newer and better.
        if kept is not None and (self.best is None or kept.score_mean > self.best.score_mean):
            self.best = kept
        self._kept = self.best
        self._evaluated = state["evaluated"]

    def observe(self, frames: int) -> bool:
        """Evaluates if a period has passed; returns whether it did."""
        if not self.is_due(frames):
            return False
        episodes = self._play(frames)
        if episodes is not None:
            self._evaluated = frames
        return episodes is not None

    def is_due(self, frames: int) -> bool:
        """Whether a period has passed since the last evaluation."""
        return has_passed(self._config.eval_period_frames, self._evaluated, frames)

    def _play(self, frames: int) -> list[EvaluatedEpisode] | None:
        config = self._config
        self._say(f"evaluation at {frames:,} frames: playing {config.eval_frames:,} frames ...")
        started = time.perf_counter()
        # New starts for every evaluation, and the same ones if the run is repeated.
        seed = (config.seed * 1_000_003 + frames) % 2**31
        # Terminals as in training, so that values and returns end at the same place.
        lanes = max(_FEWEST_LANES, config.num_envs)
        environment = make_environment(config, num_envs=lanes, seed=seed, training=True)
        games = EvaluationGames(self._policy, environment, config=config)
        episodes: list[EvaluatedEpisode] = []
        try:
            budget = config.steps(config.eval_frames)
            for finished in play_budget(games, num_lanes=lanes, steps=budget):
                if self._is_stopping():
                    return None
                episodes += finished
                self._show(games.steps * config.frames_per_step, config.eval_frames)
        finally:
            environment.close()
        self._write(frames, episodes, time.perf_counter() - started)
        mean = float(np.mean([episode.score for episode in episodes]))
        if self.best is None or mean > self.best.score_mean:
            self.best = Best(frames, mean, len(episodes), protocol_name(config))
        self._say(
            f"evaluation at {frames:,} frames: mean score {mean:.1f} over "
            f"{len(episodes)} episodes, best {self.best.score_mean:.1f}"
        )
        return episodes

    def keep_best(self, frames: int) -> None:
        """Writes `best/` if the network at these frames is the best.

        Call it after the checkpoint: a run killed in between still has these weights.
        """
        if self.best is None or self.best.frames != frames:
            return
        try:
            write_best(self._config.folder, self._network, self.best)
        except OSError as error:
            self._say(
                f"The best weights could not be written to {self._config.folder}: "
                f"{error.strerror}. The previous best is kept."
            )
            self.best = self._kept
        self._kept = self.best
