import dataclasses

import numpy as np
import pytest

from rainbow_tf.agent.learner import DivergedError
from rainbow_tf.config import Config
from rainbow_tf.training.build import Parts
from rainbow_tf.training.loop import exploration, train
from rainbow_tf.types import Batch, EnvironmentSpec, StepOutput, UpdateResult


class ScriptedEnvironment:
    """Lanes that play scripted (reward, terminal, over) steps again and again."""

    def __init__(self, script, num_envs):
        self.spec = EnvironmentSpec((1,), np.dtype(np.float32), 1, 2, ("0", "1"))
        self._script = script
        self._num_envs = num_envs

    def _output(self, reward, terminal, over, first):
        def column(value, dtype):
            return np.full(self._num_envs, value, dtype)

        return StepOutput(
            observation=np.zeros((self._num_envs, 1, 1), np.float32),
            reward=column(reward, np.float32),
            terminal=column(terminal, bool),
            episode_over=column(over, bool),
            is_first=column(first, bool),
        )

    def reset(self):
        self._position = 0
        return self._output(0, False, False, True)

    def step(self, actions):
        if self._position == len(self._script):
            self._position = 0
            return self._output(0, False, False, True)
        step = self._script[self._position]
        self._position += 1
        return self._output(*step, False)

    def close(self):
        pass


BATCH = Batch(*[np.zeros(1)] * 6)


@dataclasses.dataclass
class Log:
    """Records what the loop asks of the memory and the agent."""

    loss: float = 1.0
    adds: list = dataclasses.field(default_factory=list)
    betas: list = dataclasses.field(default_factory=list)
    updates: int = 0
    target_copies: list = dataclasses.field(default_factory=list)
    new_priorities: list = dataclasses.field(default_factory=list)
    num_sampleable: int = 1
    cuts: int = 0
    max_priority: float = 1.0

    def cut_episodes(self):
        self.cuts += 1

    def add(self, **step):
        self.adds.append(step)

    def sample(self, beta):
        self.betas.append(beta)
        return np.array([5]), BATCH

    def update_priorities(self, ids, errors):
        self.new_priorities.append((ids.tolist(), errors.tolist()))

    def priorities(self, ids):
        return np.ones(len(ids))

    def update(self, batch):
        assert batch is BATCH
        self.updates += 1
        return UpdateResult(np.array([0.5]), self.loss, 0.0)

    def update_target(self):
        self.target_copies.append(self.updates)

    def act(self, observation, epsilon):
        return np.zeros(len(observation), np.int32)


def play(script, log, **settings):
    config = Config(environment="Scripted-v0", **settings)
    environment = ScriptedEnvironment(script, config.num_envs)
    parts = Parts(environment, log, log, log, log, environment.spec)
    return list(train(config, parts))


ENDLESS = [(0.0, False, False)] * 10_000


@pytest.mark.parametrize("num_envs", [1, 4, 8])
@pytest.mark.parametrize(
    ("updates_per_step", "updates"), [(0.25, 25), (0.5, 50), (1.0, 100), (2.0, 200)]
)
def test_updates_per_agent_step(num_envs, updates_per_step, updates):
    log = Log()
    play(
        ENDLESS,
        log,
        num_envs=num_envs,
        frames=200,
        min_history_frames=100,
        updates_per_step=updates_per_step,
    )
    # No update before 100 steps, then so many for the 100 that follow; 8 lanes do not meet 100.
    assert log.updates == pytest.approx(updates, abs=8 * updates_per_step)
    if num_envs < 8:
        assert log.updates == updates


def test_history_and_target_period_are_frames_of_four_to_a_step():
    log = Log()
    config = Config(game="qbert", num_envs=4, frames=96_000, min_history_frames=80_000)
    environment = ScriptedEnvironment(ENDLESS, 4)
    parts = Parts(environment, log, log, log, log, environment.spec)
    ticks = list(train(config, parts))
    assert ticks[-1].frames == 96_000
    assert len(ticks) == 6_000  # vector steps of 4 lanes, 4 frames each
    assert log.updates == 16_000 // 16
    first = next(tick for tick in ticks if tick.results)
    assert first.frames == 80_000 + 16
    # Copies at 32K, 64K and 96K frames: at the last one a thousand updates were made.
    assert log.target_copies == [0, 0, 1_000]


def test_beta_grows_to_one_over_the_run():
    log = Log()
    play(ENDLESS, log, num_envs=1, frames=100, min_history_frames=0, updates_per_step=1.0)
    assert log.betas[0] == pytest.approx(0.4)
    assert log.betas[50] == pytest.approx(0.7)
    assert log.betas[-1] == pytest.approx(1.0 - 0.6 / 100)


def test_errors_become_priorities():
    log = Log()
    play(ENDLESS, log, num_envs=1, frames=8, min_history_frames=0, updates_per_step=0.25)
    assert log.new_priorities == [([5], [0.5])] * 2


def test_endings_go_into_the_discount_and_rewards_are_clipped():
    script = [
        (7.0, False, False),
        (-3.0, True, False),  # a life is lost, the game continues
        (0.5, False, True),  # the frame cap
    ]
    log = Log(num_sampleable=0)
    play(script, log, num_envs=1, frames=3, discount=0.9)
    assert [step["reward_t"].item() for step in log.adds] == [0, 1, -1, 0.5]
    np.testing.assert_allclose([s["discount_t"].item() for s in log.adds], [0.9, 0.9, 0, 0.9])
    assert [step["episode_over"].item() for step in log.adds] == [False, False, False, True]
    assert [step["is_first"].item() for step in log.adds] == [True, False, False, False]


def test_rewards_stay_whole_without_clipping():
    log = Log(num_sampleable=0)
    play([(7.0, False, False)] * 9, log, num_envs=1, frames=2, clip_rewards=False)
    assert [step["reward_t"].item() for step in log.adds] == [0, 7, 7]


def test_restarting_a_lane_is_not_an_agent_step():
    log = Log(num_sampleable=0)
    ticks = play([(0.0, True, True)], log, num_envs=1, frames=5)
    assert ticks[-1].frames == 5
    assert len(ticks) == 9  # five steps with a restart between each two


def test_exploration():
    noisy = Config(game="qbert")
    assert exploration(noisy, 0) == 0
    both = Config(game="qbert", noisy_epsilon_frames=400_000)
    assert exploration(both, 51_250) == pytest.approx(0.505)
    assert (exploration(both, 99_999), exploration(both, 100_000)) == (pytest.approx(0.01), 0)
    greedy = Config(game="qbert", noisy=False)
    # It stays 1 in the history of 80K frames, 20,000 steps. The 250K frames after it are 62,500
    # steps; half of them takes epsilon to (1 + 0.01) / 2.
    assert exploration(greedy, 0) == exploration(greedy, 20_000) == 1
    assert exploration(greedy, 51_250) == pytest.approx(0.505)
    assert exploration(greedy, 82_500) == pytest.approx(0.01)
    assert exploration(greedy, 10**9) == pytest.approx(0.01)


def test_a_loss_that_is_not_finite_stops_the_run():
    log = Log(loss=float("nan"))
    with pytest.raises(DivergedError, match="nan"):
        play(ENDLESS, log, num_envs=1, frames=100, min_history_frames=0)
    assert log.new_priorities == []
