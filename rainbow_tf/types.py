"""What travels between the rooms: named fields, shapes in comments.

Letters in shapes: E lanes, B batch, A actions, N atoms, S stacked frames.
"""

from typing import NamedTuple

import numpy as np


class WorldSpec(NamedTuple):
    """What an agent must know of a world to be built for it."""

    frame_shape: tuple[int, ...]  # one frame, without the stack: (84, 84), (10, 10, 4), (4,)
    frame_dtype: np.dtype
    frame_stack: int
    num_actions: int
    action_meanings: tuple[str, ...]


class StepOutput(NamedTuple):
    """One step of E lanes, or the reset of all of them.

    A lane whose episode is over ignores the next action and answers with the first
    observation of its next episode (`is_first`), reward 0.
    """

    observation: np.ndarray  # [E, S, *frame], newest frame last, zeros before the episode
    reward: np.ndarray  # [E] float32, as the game gives it
    terminal: np.ndarray  # [E] bool, cuts the bootstrap: game over or life lost
    truncated: np.ndarray  # [E] bool, the frame cap: the bootstrap stays
    episode_over: np.ndarray  # [E] bool, a reset follows
    is_first: np.ndarray  # [E] bool, the first observation of an episode


class Episode(NamedTuple):
    """A whole game: its unclipped score and its length in agent steps."""

    score: float
    length: int


class Batch(NamedTuple):
    """B n-step transitions, as the learner takes them."""

    observation_tm1: np.ndarray  # [B, S, *frame]
    action_tm1: np.ndarray  # [B] int32
    reward_t: np.ndarray  # [B] float32, discounted sum of up to n clipped rewards
    discount_t: np.ndarray  # [B] float32, product of the discounts passed, 0 after a terminal
    observation_t: np.ndarray  # [B, S, *frame]
    weight: np.ndarray  # [B] float32, importance weights


class UpdateResult(NamedTuple):
    """What an update tells."""

    errors: np.ndarray  # [B], as `priority` measures them: the new priorities
    loss: float
    q_mean: float  # mean value of the greedy action in the batch; of A3C, of the policy


class Counters(NamedTuple):
    """How far a run is."""

    steps: int
    updates: int


BEGINNING = Counters(0, 0)


class Tick(NamedTuple):
    """What happened in a run since the tick before."""

    frames: int  # since the start of the run
    counters: Counters
    episodes: list[Episode]  # that ended
    results: list[UpdateResult]  # of the updates that were made
    epsilon: float
    beta: float
