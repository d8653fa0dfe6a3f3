"""Evaluation during training."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from rainbow_tf.agent.networks import Network
from rainbow_tf.config import Config
from rainbow_tf.console import say
from rainbow_tf.environments.base import make_environment
from rainbow_tf.evaluation.episodes import EvaluatedEpisode, EvaluationGames, play_budget
from rainbow_tf.evaluation.statistics import protocol_name, score_summary
from rainbow_tf.files import record
from rainbow_tf.runs.folder import is_evaluation_due
from rainbow_tf.runs.store import Best, kept_best
from rainbow_tf.runs.weights import write_best
from rainbow_tf.types import Policy

# With a single lane and few long episodes the mean is up to 7 % too high: see `play_budget`.
_FEWEST_LANES = 4
_MANY_OUTSIDE = 0.05  # share of returns that a support should hold and does not


@dataclasses.dataclass(kw_only=True)
class Evaluator:
    """Evaluates the policy every period, and stores the best weights in `best/`."""

    config: Config
    policy: Policy
    network: Network
    write: Callable[[int, dict[str, Any], float], None]  # frames, summary, seconds
    is_stopping: Callable[[], bool]
    show: Callable[[int, int], None] = lambda played, planned: None
    best: Best | None = None
    last: float | None = None  # mean score of the last evaluation in this process
    _kept: Best | None = None  # the evaluation in `best/`
    _evaluated: int = 0  # frames of the last evaluation

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, as JSON."""
        return {"best": self.best, "evaluated": self._evaluated}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.best = record(Best | None, state["best"])
        kept = kept_best(self.config.folder)
        # After falling back to an older checkpoint, `best/` may be newer and better.
        if kept is not None and (self.best is None or kept.score_mean > self.best.score_mean):
            self.best = kept
        self._kept = self.best
        self._evaluated = record(int, state["evaluated"])

    def observe(self, frames: int) -> bool:
        """Evaluates if that is due; returns whether it did."""
        return self.is_due(frames) and self._play(frames)

    def is_due(self, frames: int) -> bool:
        """Whether an evaluation is due."""
        return is_evaluation_due(self.config, self._evaluated, frames)

    def _play(self, frames: int) -> bool:
        """Evaluates; returns whether it was not stopped."""
        config = self.config
        say(f"evaluation at {frames:,} frames: playing {config.eval_frames:,} frames ...")
        started = time.perf_counter()
        # New starts for every evaluation, and the same ones if the run is repeated.
        seed = (config.seed * 1_000_003 + frames) % 2**31
        lanes = max(_FEWEST_LANES, config.num_envs)
        environment = make_environment(config, num_envs=lanes, seed=seed)
        games = EvaluationGames(self.policy, environment, config=config)
        episodes: list[EvaluatedEpisode] = []
        try:
            budget = config.steps(config.eval_frames)
            for finished in play_budget(games, steps=budget):
                if self.is_stopping():
                    return False
                episodes += finished
                self.show(games.steps * config.frames_per_step, config.eval_frames)
        finally:
            environment.close()
        summary = score_summary(episodes)
        self.write(frames, summary, time.perf_counter() - started)
        self._evaluated = frames
        self.last = mean = summary["score_mean"]
        if self.best is None or mean > self.best.score_mean:
            self.best = Best(frames, mean, len(episodes), protocol_name(config))
        say(
            f"evaluation at {frames:,} frames: mean score {mean:.1f} over "
            f"{len(episodes)} episodes, best {self.best.score_mean:.1f}"
        )
        share = summary["outside_support"]
        if share is not None and share > _MANY_OUTSIDE:
            say(
                f"{share:.0%} of the returns were outside [{config.v_min:g}, {config.v_max:g}], "
                "where the agent cannot represent them; restart with a wider --v_min and --v_max."
            )
        return True

    def keep_best(self, frames: int) -> None:
        """Writes `best/` if the network at these frames is the best.

        Call it after the checkpoint: a run killed in between still has these weights.
        """
        if self.best is None or self.best.frames != frames:
            return
        try:
            write_best(self.config.folder, self.network, self.best)
        except OSError as error:
            say(
                f"The best weights could not be written to {self.config.folder}: "
                f"{error.strerror}. The previous best is kept."
            )
            self.best = self._kept
        self._kept = self.best
