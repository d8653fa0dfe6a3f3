"""A3C, feed-forward (Mnih et al. 2016): asynchronous actor-learners without a replay.

Every worker is a thread with its own environment. It copies the shared weights, plays up to n
steps with them, and applies its gradient to the shared weights, which others may have changed
meanwhile. Unlike in the paper, a lock serialises the updates, so that none is partly lost. The
order of updates is not deterministic; only runs with one worker are reproducible.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from rainbow_tf.agent.learner import DivergedError, make_optimizer
from rainbow_tf.agent.networks import Network, make_network
from rainbow_tf.agent.schedules import linear
from rainbow_tf.config import Config
from rainbow_tf.environments.base import Environment, EpisodeTracker, make_environment
from rainbow_tf.types import (
    BEGINNING,
    Batch,
    Counters,
    Decision,
    EnvironmentSpec,
    Episode,
    Tick,
    UpdateResult,
)

tfd = tfp.distributions

_VALUE_COST = 0.5
_ROUND_UPDATES = 8  # per worker between ticks: enough to hide the wait for the last worker


class Rollout(NamedTuple):
    """Up to n consecutive steps within one episode."""

    observation: np.ndarray  # [n + 1, S, *frame], the bootstrap state last
    action_tm1: np.ndarray  # [n] int32
    reward_t: np.ndarray  # [n] float32, clipped; 0 after the rollout
    discount_t: np.ndarray  # [n] float32, 0 at a terminal; 1 after the rollout
    length: np.int32  # steps played


def empty_rollout(spec: EnvironmentSpec, n_step: int) -> Rollout:
    """A rollout to be filled with n steps."""
    return Rollout(
        observation=np.zeros((n_step + 1, spec.frame_stack, *spec.frame_shape), spec.frame_dtype),
        action_tm1=np.zeros(n_step, np.int32),
        reward_t=np.zeros(n_step, np.float32),
        discount_t=np.ones(n_step, np.float32),
        length=np.int32(0),
    )


def n_step_returns(reward_t: tf.Tensor, discount_t: tf.Tensor, bootstrap: tf.Tensor) -> tf.Tensor:
    """n-step returns: G_tm1 = r_t + discount_t G_t, computed backwards from the bootstrap.

    Shorter rollouts are padded with reward 0 and discount 1, which leave the return unchanged.
    """
    tf.debugging.assert_rank(reward_t, 1)  # [n]
    tf.debugging.assert_rank(discount_t, 1)
    tf.debugging.assert_rank(bootstrap, 0)
    returns = [bootstrap]
    for r_t, d_t in zip(tf.unstack(reward_t)[::-1], tf.unstack(discount_t)[::-1], strict=True):
        returns.append(r_t + d_t * returns[-1])
    return tf.stop_gradient(tf.stack(returns[:0:-1]))


def actor_critic_loss(
    logits_tm1: tf.Tensor,
    values_tm1: tf.Tensor,
    action_tm1: tf.Tensor,
    returns_tm1: tf.Tensor,
    *,
    entropy_cost: float,
) -> tf.Tensor:
    """-log pi(a) (G - V) + (G - V)^2 / 2 - entropy_cost * entropy, per step.

    No gradient flows through the advantage in the policy term.
    """
    tf.debugging.assert_rank(logits_tm1, 2)  # [n, A]
    for vector in (values_tm1, action_tm1, returns_tm1):
        tf.debugging.assert_rank(vector, 1)  # a column would silently broadcast to [n, n]
    policy = tfd.Categorical(logits=logits_tm1)
    error = returns_tm1 - values_tm1
    policy_loss = -policy.log_prob(action_tm1) * tf.stop_gradient(error)
    return policy_loss + _VALUE_COST * tf.square(error) - entropy_cost * policy.entropy()


def sample(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Samples actions [E] from softmax policies [E, A] by the Gumbel-max trick."""
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


class PolicyActor:
    """Samples actions for E lanes from the policy, as A3C is evaluated."""

    def __init__(self, *, network: Network, rng: np.random.Generator):
        self.rng = rng
        self._forward = tf.function(network, jit_compile=True, autograph=False)

    def act(self, observation: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [E] for observations [E, S, *frame]; each is random with probability epsilon."""
        return self.decide(observation, epsilon).actions

    def decide(self, observation: np.ndarray, epsilon: float = 0.0) -> Decision:
        """The actions of `act`, and the probabilities they were sampled from."""
        logits, state_values = self._forward(tf.convert_to_tensor(observation))
        logits = logits.numpy()
        if epsilon > 0:
            logits[self.rng.random(len(logits)) < epsilon] = 0
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        return Decision(sample(logits, self.rng), probs, state_values.numpy(), probs=None)


class SharedLearner:
    """The weights and RMSProp statistics that all workers share."""

    def __init__(self, *, config: Config, spec: EnvironmentSpec, online: Network):
        self.online = online
        self.optimizer = make_optimizer(config)
        self.optimizer.build(online.trainable_variables)
        self._entropy_cost = config.entropy_cost
        self._lock = threading.Lock()
        self._handles = [v.value.handle for v in online.trainable_variables]
        rollout, weights = empty_rollout(spec, config.n_step), online.trainable_variables
        self._policy = _compiled(self._logits, rollout.observation[:1], *weights)
        self._compute = _compiled(self._gradients, *rollout, *weights)
        self._apply = _compiled(self._update, np.float32(0), *weights)

    @property
    def variables(self) -> dict[str, list]:
        """Everything that learning changes, by owner."""
        return {"online": self.online.variables, "optimizer": self.optimizer.variables}

    def weights(self) -> list[tf.Tensor]:
        """A snapshot of the weights, which later updates do not change."""
        with self._lock:
            return [tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) for h in self._handles]

    def logits(self, weights: Sequence[tf.Tensor], observation: np.ndarray) -> np.ndarray:
        """Policy logits [1, A] of these weights for an observation [1, S, *frame]."""
        (logits,) = self._policy(tf.convert_to_tensor(observation), *weights)
        return logits.numpy()

    def gradients(
        self, weights: Sequence[tf.Tensor], rollout: Rollout
    ) -> tuple[list[tf.Tensor], UpdateResult]:
        """Gradients and result for a rollout that was played with these weights."""
        packed, *gradients = self._compute(*map(tf.convert_to_tensor, rollout), *weights)
        packed = packed.numpy()
        errors = np.abs(packed[: rollout.length])
        result = UpdateResult(errors, float(packed[-2]), float(packed[-1]))
        if not np.isfinite(result.loss):
            names = ("action_tm1", "reward_t", "discount_t")
            steps = {name: getattr(rollout, name)[: rollout.length].tolist() for name in names}
            raise DivergedError(result, {"rollout": {**steps, "errors": errors.tolist()}})
        return gradients, result

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: float) -> None:
        """Applies the gradients of a worker to the shared weights."""
        with self._lock:
            self._apply(tf.constant(learning_rate, tf.float32), *gradients)

    def _logits(self, observation: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        return self._call(weights, observation)[0]

    def _gradients(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Errors [n], loss and mean value in one vector, then the gradients."""
        rollout, weights = Rollout(*tensors[:5]), tensors[5:]
        played = tf.cast(tf.range(tf.shape(rollout.reward_t)[0]) < rollout.length, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, values = self._call(weights, rollout.observation)  # [n + 1, A], [n + 1]
            returns_tm1 = n_step_returns(rollout.reward_t, rollout.discount_t, values[-1])
            steps = logits[:-1], values[:-1], rollout.action_tm1, returns_tm1
            step_loss = actor_critic_loss(*steps, entropy_cost=self._entropy_cost)
            loss = tf.reduce_sum(played * step_loss)
        value_mean = tf.reduce_sum(played * values[:-1]) / tf.reduce_sum(played)
        packed = tf.concat([returns_tm1 - values[:-1], [loss, value_mean]], axis=0)
        return [packed, *tape.gradient(loss, weights)]

    def _update(self, learning_rate: tf.Tensor, *gradients: tf.Tensor) -> None:
        self.optimizer.learning_rate.assign(learning_rate)
        self.optimizer.apply(gradients)

    def _call(self, weights: Sequence[tf.Tensor], observation: tf.Tensor):
        outputs, _ = self.online.stateless_call(weights, [], observation)
        return outputs


def _compiled(function: Callable, *examples: Any) -> Callable:
    """Compiles a function of flat tensors with these shapes and types once, for all threads.

    Uses the flat call: TensorFlow's usual one checks every argument and takes four times as long.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    specs = [tf.TensorSpec(example.shape, example.dtype) for example in examples]
    concrete = compiled.get_concrete_function(*specs)
    captures = concrete.captured_inputs
    return lambda *tensors: concrete.inference_fn.call_flat(*tensors, *captures)


class Round:
    """The steps that the workers share until the next tick."""

    def __init__(self, start: Counters, limit: int):
        self._lock = threading.Lock()
        self._limit = limit
        self._claimed = start.steps  # played or being played
        self.reached = start
        self.episodes: list[Episode] = []
        self.results: list[UpdateResult] = []

    def begin(self, num_steps: int) -> bool:
        """Claims the steps of a rollout; returns False at the end of the round."""
        with self._lock:
            if self._claimed >= self._limit:
                return False
            self._claimed += num_steps
            return True

    def add(self, steps: int, unplayed: int, episodes: list[Episode], result: UpdateResult) -> None:
        """Adds a finished rollout; returns its claimed but unplayed steps to the round."""
        with self._lock:
            self._claimed -= unplayed
            self.reached = Counters(self.reached.steps + steps, self.reached.updates + 1)
            self.episodes += episodes
            self.results.append(result)


@dataclasses.dataclass(kw_only=True)
class Worker:
    """One actor-learner with its own environment and random stream."""

    config: Config
    environment: Environment
    learner: SharedLearner
    rng: np.random.Generator

    def reset(self) -> None:
        """Restarts the environment."""
        self._output = self.environment.reset()
        self._tracker = EpisodeTracker(1)

    def work(self, round_: Round) -> None:
        """Plays and learns until the round ends."""
        config, learner = self.config, self.learner
        while round_.begin(config.n_step):
            weights = learner.weights()
            rollout, episodes = self.play(weights)
            length = int(rollout.length)
            gradients, result = learner.gradients(weights, rollout)
            progress = (round_.reached.steps + length) / config.steps(config.frames)
            learner.apply(gradients, linear(config.learning_rate, 0.0, progress))
            round_.add(length, config.n_step - length, episodes, result)

    def play(self, weights: Sequence[tf.Tensor]) -> tuple[Rollout, list[Episode]]:
        """Plays n steps, or fewer if an episode or a life ends."""
        config, output = self.config, self._output
        if output.episode_over[0]:  # this step restarts; the action is ignored
            output = self.environment.step(np.zeros(1, np.int32))
        rollout = empty_rollout(self.environment.spec, config.n_step)
        episodes: list[Episode] = []
        for t in range(config.n_step):
            rollout.observation[t] = output.observation[0]
            action = sample(self.learner.logits(weights, output.observation), self.rng)
            output = self.environment.step(action)
            episodes += self._tracker.observe(output)
            reward = float(output.reward[0])
            rollout.action_tm1[t] = action[0]
            rollout.reward_t[t] = min(1.0, max(-1.0, reward)) if config.clip_rewards else reward
            rollout.discount_t[t] = 0.0 if output.terminal[0] else config.discount
            if output.terminal[0] or output.episode_over[0]:
                break
        rollout.observation[-1] = output.observation[0]
        self._output = output
        return rollout._replace(length=np.int32(t + 1)), episodes


class Crew(NamedTuple):
    """The parts of an A3C run."""

    workers: list[Worker]
    learner: SharedLearner
    evaluation_actor: PolicyActor
    spec: EnvironmentSpec
    replay: None = None

    @property
    def generators(self) -> dict[str, np.random.Generator]:
        """All random generators."""
        workers = {f"worker_{i}": worker.rng for i, worker in enumerate(self.workers)}
        return {**workers, "evaluation_actor": self.evaluation_actor.rng}

    def seconds(self, config: Config, batch: Batch) -> tuple[float, float]:
        """Seconds per step without and with learning: the same, as every step learns."""
        ticks = train(dataclasses.replace(config, frames=10**9), self)
        before = next(ticks).counters.steps  # the first tick compiles
        started = time.perf_counter()
        steps = next(ticks).counters.steps - before
        seconds = (time.perf_counter() - started) / steps
        return seconds, seconds

    def close(self) -> None:
        """Closes the environments."""
        for worker in self.workers:
            worker.environment.close()


def build_crew(config: Config, start_steps: int = 0) -> Crew:
    """One worker per lane, each with its own random stream.

    `start_steps` changes the environment seeds: a resumed run plays new episodes.
    """
    seeds, streams = np.random.SeedSequence(config.seed), 1 + config.num_envs
    network_seed, *environment_seeds = (int(s) // 2 for s in seeds.generate_state(streams))
    evaluation_rng, *rngs = map(np.random.default_rng, seeds.spawn(streams))
    environments = [
        make_environment(config, num_envs=1, seed=(seed + start_steps) % 2**31)
        for seed in environment_seeds
    ]
    spec = environments[0].spec
    network = make_network(config, spec, seed=network_seed, name="online")
    learner = SharedLearner(config=config, spec=spec, online=network)
    return Crew(
        workers=[
            Worker(config=config, environment=environment, learner=learner, rng=rng)
            for environment, rng in zip(environments, rngs, strict=True)
        ],
        learner=learner,
        evaluation_actor=PolicyActor(network=network, rng=evaluation_rng),
        spec=spec,
    )


def train(config: Config, crew: Crew, start: Counters = BEGINNING) -> Iterator[Tick]:
    """Runs the workers; at a tick all of them are idle between two rollouts."""
    total_steps = config.steps(config.frames)
    reached = start
    for worker in crew.workers:
        worker.reset()
    with futures.ThreadPoolExecutor(len(crew.workers), "a3c") as threads:
        while reached.steps < total_steps:
            round_ = Round(reached, _round_limit(config, reached.steps))
            work = [threads.submit(worker.work, round_) for worker in crew.workers]
            for future in work:
                future.result()  # raises the worker's error
            reached = round_.reached
            frames = reached.steps * config.frames_per_step
            yield Tick(frames, reached, round_.episodes, round_.results, epsilon=0.0, beta=0.0)


def _round_limit(config: Config, steps: int) -> int:
    """Step of the next tick: soon, and no later than the next log row, evaluation or checkpoint."""
    periods = config.log_period_frames, config.eval_period_frames, config.checkpoint_period_frames
    spans = [config.steps(period) for period in periods if period > 0]
    marks = [(steps // span + 1) * span for span in spans]
    soon = steps + _ROUND_UPDATES * config.n_step * config.num_envs
    return min(config.steps(config.frames), soon, *marks)
