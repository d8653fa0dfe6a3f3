"""What travels between modules, with shapes in comments, and the protocols between them.

Letters in shapes: E lanes, B batch, A actions, N atoms, S stacked frames.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np


class EnvironmentSpec(NamedTuple):
    """What an agent must know of an environment to be built for it."""

    frame_shape: tuple[int, ...]  # one frame, without the stack: (84, 84), (10, 10, 4), (4,)
    frame_dtype: np.dtype
    frame_stack: int
    num_actions: int
    action_meanings: tuple[str, ...]
    first_action: int = 0  # the environment's number of action 0

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """One observation as networks and clients see it, newest frame last.

        Images are [H, W, S * C], all channels of the oldest frame first; vectors are [D], or
        [S, D] when stacked.
        """
        if len(self.frame_shape) == 1:
            return (
                self.frame_shape if self.frame_stack == 1 else (self.frame_stack, *self.frame_shape)
            )
        height, width, *channels = self.frame_shape
        return (height, width, self.frame_stack * int(np.prod(channels)))


class StepOutput(NamedTuple):
    """One step of E lanes, or the reset of all of them.

    After an episode is over, the next step of its lane ignores the action and returns the first
    observation of the next episode (`is_first`) with reward 0.
    """

    observation: np.ndarray  # [E, S, *frame], newest frame last, zeros before the episode
    reward: np.ndarray  # [E] float32, as the game gives it
    terminal: np.ndarray  # [E] bool, cuts the bootstrap: game over or life lost
    episode_over: np.ndarray  # [E] bool, a reset follows; without `terminal` at the frame cap
    is_first: np.ndarray  # [E] bool, the first observation of an episode

    @classmethod
    def first(cls, observation: np.ndarray) -> "StepOutput":
        """The reset of all lanes."""
        no = np.zeros(len(observation), bool)
        return cls(observation, no.astype(np.float32), no, no, ~no)


class Episode(NamedTuple):
    """A finished episode: unclipped score, and length in agent steps."""

    score: float
    length: int


class Batch(NamedTuple):
    """B n-step transitions, the input of the learner."""

    observation_tm1: np.ndarray  # [B, S, *frame]
    action_tm1: np.ndarray  # [B] int32
    reward_t: np.ndarray  # [B] float32, discounted sum of up to n clipped rewards
    discount_t: np.ndarray  # [B] float32, product of the discounts passed, 0 after a terminal
    observation_t: np.ndarray  # [B, S, *frame]
    weight: np.ndarray  # [B] float32, importance weights


class UpdateResult(NamedTuple):
    """The result of an update."""

    errors: np.ndarray  # [B], the new priorities
    loss: float
    q_mean: float  # mean value of the greedy action; for A3C, of the policy


class Counters(NamedTuple):
    """Progress of a run."""

    steps: int
    updates: int


BEGINNING = Counters(0, 0)


class Tick(NamedTuple):
    """What happened since the previous tick."""

    frames: int  # of the run so far
    counters: Counters
    episodes: list[Episode]  # that finished
    results: list[UpdateResult]  # of the updates
    epsilon: float
    beta: float


class Decision(NamedTuple):
    """Actions and value estimates for E observations; exploration changes only the actions."""

    actions: np.ndarray  # [E] int32
    values: np.ndarray  # [E, A] mean returns, or the probabilities of a stochastic policy
    state_values: np.ndarray  # [E]
    probs: np.ndarray | None  # [E, A, N] of the return distributions; None without a support


class Policy(Protocol):
    """Chooses actions for E observations [E, S, *frame], whatever the algorithm."""

    rng: np.random.Generator

    def act(self, observation: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [E] int32; each is random with probability epsilon."""

    def decide(self, observation: np.ndarray, epsilon: float = 0.0) -> Decision:
        """The actions of `act`, and the estimates that they were chosen by."""


class Restorable(Protocol):
    """A replay buffer, or a part of one, as a checkpoint saves it: a state and chunks of steps."""

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps besides the chunks."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned."""

    def written_chunks(self) -> Iterable[int]:
        """Chunks that hold steps."""

    def changed_chunks(self) -> Iterable[int]:
        """Chunks that were written since `forget_changes`."""

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """The steps of a chunk."""

    def restore_chunk(self, number: int, steps: dict[str, np.ndarray]) -> None:
        """Restores what `chunk` returned."""

    def forget_changes(self) -> None:
        """Marks all chunks as saved."""


class ReplayLike(Restorable, Protocol):
    """A replay buffer, here or in other processes."""

    @property
    def num_sampleable(self) -> int:
        """Transitions that can be sampled now."""

    @property
    def fill(self) -> float:
        """Share of the slots that hold a frame."""

    @property
    def max_priority(self) -> float:
        """The largest error seen so far."""

    def sample(self, importance_exponent: float) -> tuple[np.ndarray, Batch]:
        """Ids and transitions of a batch."""

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Makes the errors the priorities of these transitions."""

    def priorities(self, ids: np.ndarray) -> np.ndarray:
        """Priorities of these transitions."""
