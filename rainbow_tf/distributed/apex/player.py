"""An actor process: the actor and environments of a single-process run. Does not know Ray."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.losses import losses_and_errors, munchausen, q_values
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config
from rainbow_tf.distributed.apex.shard import Rollout
from rainbow_tf.environments.base import EpisodeTracker, make_environment
from rainbow_tf.process import load_tensorflow
from rainbow_tf.replay.windows import Windows, fold
from rainbow_tf.runs.weights import make_policy
from rainbow_tf.training.loop import replay_step
from rainbow_tf.types import Episode


class Played(NamedTuple):
    """Summary of a rollout for the learner; its steps go to the replay."""

    begins: bool  # does not continue the previous rollout
    steps: int  # of all lanes, without resets
    episodes: list[Episode]  # that ended


class Player:
    """Plays rollouts with given weights, and computes their initial priorities."""

    def __init__(self, *, config: Config, number: int, start_steps: int):
        load_tensorflow(1)
        seeds = np.random.SeedSequence(config.seed, spawn_key=(number, start_steps))
        environment_seed, network_seed = (int(s) // 2 for s in seeds.generate_state(2))
        self._config = config
        self._environment = make_environment(
            config, num_envs=config.num_envs, seed=environment_seed
        )
        self.spec = self._environment.spec
        self._network = make_network(config, self.spec, seed=network_seed, name="online")
        rng = np.random.default_rng(seeds)
        actor = make_policy(config, self._network, noise=True, rng=rng)
        assert isinstance(actor, Actor)
        self._actor = actor
        self._initial_errors = InitialErrors(config)
        self._version: int | None = None  # of the weights, None before the first rollout

    def play(
        self, weights: Sequence[np.ndarray], version: int, epsilon: float, *, fresh: bool
    ) -> tuple[Rollout, Played]:
        """Continues all lanes, or resets them first if `fresh` or at the first call."""
        begins = fresh or self._version is None
        if version != self._version:
            for variable, value in zip(self._network.trainable_variables, weights, strict=True):
                variable.assign(value)
            self._version = version
        if begins:
            self._tracker = EpisodeTracker(self._config.num_envs)
            self._initial_errors.reset()
            self._actions = np.zeros(self._config.num_envs, np.int32)
        steps: list[dict[str, np.ndarray]] = []
        outputs: list[np.ndarray] = []
        episodes: list[Episode] = []
        environment = self._environment
        for t in range(self._config.rollout_steps):
            resets = begins and t == 0
            output = environment.reset() if resets else environment.step(self._actions)
            steps.append(replay_step(self._config, self._actions, output))
            episodes += self._tracker.observe(output)
            # Now and not in the next round: errors of windows that close here need these outputs.
            self._actions, latest = self._actor.act_and_outputs(output.observation, epsilon)
            outputs.append(latest)
        columns = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        errors = None
        if self._config.prioritized:
            errors = self._initial_errors(columns, np.stack(outputs))
        played = int(np.count_nonzero(~columns["is_first"]))
        return Rollout(**columns, errors=errors), Played(begins, played, episodes)


class InitialErrors:
    """Errors that transitions enter the replay with, from the outputs used for acting.

    As in Horgan et al. 2018, the actor's weights stand for online and target network.
    """

    def __init__(self, config: Config):
        self._config = config
        self._support = make_support(config)
        self._compute = tf.function(self._errors, jit_compile=True, autograph=False)
        self.reset()

    def reset(self) -> None:
        """Forgets earlier steps."""
        self._windows = Windows(num_lanes=self._config.num_envs, n_step=self._config.n_step)
        self._earlier: dict[str, np.ndarray] = {}

    def __call__(self, steps: dict[str, np.ndarray], outputs: np.ndarray) -> np.ndarray:
        """Errors [T, E, n] of the windows of 1 to n steps that close at each step; 0 elsewhere."""
        n_step = self._config.n_step
        window_ends = steps["episode_over"] | (steps["discount_t"] == 0)
        closes = np.stack(list(map(self._windows.step, steps["is_first"], window_ends)))
        columns = {name: steps[name] for name in ("action_tm1", "reward_t", "discount_t")}
        past = {
            name: np.concatenate([self._earlier.get(name, column[:0]), column])
            for name, column in {**columns, "outputs": outputs}.items()
        }
        self._earlier = {name: column[-n_step:] for name, column in past.items()}
        t, lane, back = np.nonzero(closes)
        errors = np.zeros(closes.shape, np.float32)
        if len(t) == 0:
            return errors
        last = t + len(past["outputs"]) - len(outputs)
        first = last - back - 1
        window = first[:, None] + np.arange(1, n_step + 1)  # [B, n]
        inside = np.minimum(window, last[:, None]), lane[:, None]
        reward_t, discount_t = fold(
            past["reward_t"][inside], past["discount_t"][inside], window <= last[:, None]
        )
        errors[t, lane, back] = self._padded(
            past["outputs"][first, lane],
            past["action_tm1"][first + 1, lane],
            reward_t,
            discount_t,
            past["outputs"][last, lane],
        )
        return errors

    def _padded(self, *columns: np.ndarray) -> np.ndarray:
        """Errors of any number of transitions, repeated so that few sizes are compiled."""
        count = len(columns[0])
        size = 1 << (count - 1).bit_length()
        tensors = [tf.convert_to_tensor(np.resize(c, (size, *c.shape[1:]))) for c in columns]
        return self._compute(*tensors).numpy()[:count]

    def _errors(self, outputs_tm1, action_tm1, reward_t, discount_t, outputs_t):
        values_t = q_values(self._support, outputs_t)
        action_t = tf.argmax(values_t, axis=1, output_type=tf.int32)
        if self._config.munchausen:
            values_tm1 = q_values(self._support, outputs_tm1)
            reward_t, action_t = munchausen(values_tm1, action_tm1, reward_t, values_t)
        transitions = outputs_tm1, action_tm1, reward_t, discount_t, outputs_t, action_t
        _, errors = losses_and_errors(self._support, self._config.priority_measure, *transitions)
        return errors
