"""The learner of Ape-X (Horgan et al. 2018), which also drives the actors and the replay shards.

All requests come from this process, so a checkpoint is consistent.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.agent.learner import Learner
from rainbow_tf.agent.schedules import has_passed, linear
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import say
from rainbow_tf.distributed.apex.player import Played, Player
from rainbow_tf.distributed.apex.replay import PREFETCHED, WAITING_ADDS, ShardedReplay
from rainbow_tf.distributed.cluster import connect
from rainbow_tf.environments.base import make_spec
from rainbow_tf.replay.replay import CHUNK_SLOTS
from rainbow_tf.runs.weights import make_policy
from rainbow_tf.training.build import check_memory, make_learner
from rainbow_tf.training.loop import exploration, learn
from rainbow_tf.types import BEGINNING, Batch, Counters, EnvironmentSpec, Policy, Tick

_AHEAD = 2  # rollouts requested from an actor in advance, so that it never waits
_LADDER_EXPONENT = 7.0  # alpha of Horgan et al. 2018
_PATIENCE_SECONDS = 1.0
_NOTICE_SECONDS = 30.0
_LEAST_STORE_BYTES = 128 << 20
_VERSIONS = itertools.count()  # of weights: an actor skips a version that it has


class Fleet(NamedTuple):
    """The parts of a run with actors."""

    ray: ModuleType
    players: list[Any]  # handles of `Player`
    replay: ShardedReplay
    learner: Learner
    evaluation_actor: Policy
    spec: EnvironmentSpec

    @property
    def generators(self) -> dict[str, np.random.Generator]:
        """Generators of this process; those of actors and shards are not saved."""
        return {"replay": self.replay.rng, "evaluation_actor": self.evaluation_actor.rng}

    def close(self) -> None:
        """Stops the processes."""
        self.ray.shutdown()

    def seconds(self, config: Config, batch: Batch) -> tuple[float, float]:
        """Seconds per step, without and with learning, measured with actors at work."""
        requests = Requests(config, self)
        self.learner.update(batch)
        self.ray.get([requests.play(actor)[1] for actor in range(config.actors)])
        started = time.perf_counter()
        played = [requests.play(actor)[1] for actor in range(config.actors)]
        updates = 0
        while updates == 0 or self.ray.wait(played, num_returns=len(played), timeout=0)[1]:
            self.learner.update(batch)
            updates += 1
        seconds = time.perf_counter() - started
        steps = sum(answer.steps for answer in self.ray.get(played))
        return seconds / steps, seconds * max(1 / steps, config.updates_per_step / updates)


def build_fleet(config: Config, start_steps: int = 0) -> Fleet:
    """Starts all processes; waits until the cluster has placed them."""
    wanted = f"--actors={config.actors}"
    seeds = np.random.SeedSequence(config.seed)
    online_seed, target_seed, replay_seed = (int(s) // 2 for s in seeds.generate_state(3))
    replay_seed = (replay_seed + start_steps) % 2**31
    spec = make_spec(config)
    if config.address is None:
        check_memory(config, spec)
    learner = make_learner(config, spec, online_seed=online_seed, target_seed=target_seed)
    ray = connect(
        config.address,
        wanted_by=wanted,
        num_cpus=config.actors + config.replay_shards,
        object_bytes=object_store_bytes(config, spec, learner.online.count_params()),
    )
    say(f"Starting {wanted} and --replay_shards={config.replay_shards} ...")
    # A restarted process repeats its requests and reports that it started fresh episodes.
    player = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Player)
    players = [
        player.remote(config=config, number=number, start_steps=start_steps)
        for number in range(config.actors)
    ]
    replay = ShardedReplay(ray=ray, config=config, spec=spec, seed=replay_seed)
    waiting = [player.__ray_ready__.remote() for player in players]
    while waiting:
        ready, waiting = ray.wait(waiting, timeout=_NOTICE_SECONDS)
        _answer(ray, ready, f"{wanted} could not start")
        if not ready:
            cpus = ray.cluster_resources().get("CPU", 0)
            asked = f"{len(waiting)} of {wanted}"
            say(f"Waiting for {asked} to start; each needs a CPU of the cluster's {cpus:g}.")
    rng = np.random.default_rng(seeds)
    actor = make_policy(config, learner.online, noise=config.eval_noise, rng=rng)
    return Fleet(ray, players, replay, learner, actor, spec)


def _answer(ray: ModuleType, answer: Any, failure: str) -> Any:
    """What actors answered; raises ConfigError if Ray cannot start or restart them."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayActorError as error:
        raise ConfigError(f"{failure}: {str(error).strip().splitlines()[-1]}") from error


def object_store_bytes(config: Config, spec: EnvironmentSpec, num_parameters: int) -> int:
    """Size of Ray's object store: twice what can be in flight at the same time."""
    frame = int(np.prod(spec.frame_shape)) * spec.frame_dtype.itemsize
    rollout = config.rollout_steps * config.num_envs * (frame + 4 * config.n_step + 32)
    in_flight = (
        (_AHEAD + WAITING_ADDS) * config.actors * rollout
        + (PREFETCHED + 1) * 2 * config.batch_size * spec.frame_stack * frame
        + (_AHEAD + 1) * 4 * num_parameters
        + 2 * CHUNK_SLOTS * (frame + 16)
        + 8 * config.replay_capacity  # priorities, for a checkpoint
    )
    return max(_LEAST_STORE_BYTES, 2 * in_flight)


class Requests:
    """Rollouts requested from the actors, and the weights that they use."""

    def __init__(self, config: Config, fleet: Fleet):
        self._config = config
        self._fleet = fleet
        self._numbers = [0] * config.actors  # of the next rollout of each to arrive
        self.in_flight: dict[Any, tuple[int, Any]] = {}  # summary to come: actor, its rollout
        self._answered = time.monotonic()
        self.broadcast()

    def broadcast(self) -> None:
        """Uses the current weights for all rollouts requested from now on."""
        variables = self._fleet.learner.online.trainable_variables
        self._weights = self._fleet.ray.put([variable.numpy() for variable in variables])
        self._version = next(_VERSIONS)

    def play(self, actor: int, epsilon: float = 0.0, *, fresh: bool = False) -> tuple[Any, Any]:
        """Requests a rollout from an actor: its steps and their summary."""
        method = self._fleet.players[actor].play.options(num_returns=2)
        return method.remote(self._weights, self._version, epsilon, fresh=fresh)

    def give(self, steps: int, limit: float) -> None:
        """Requests rollouts from the least busy actors, up to a limit of steps."""
        config, replay = self._config, self._fleet.replay
        rollout_steps = config.rollout_steps * config.num_envs
        planned = steps + len(self.in_flight) * rollout_steps
        while planned < limit and len(self.in_flight) < _AHEAD * config.actors:
            counts = Counter(actor for actor, _ in self.in_flight.values())
            # Round robin: with a slow learner, the first actor would get every request.
            actor = min(range(config.actors), key=lambda i: (counts[i], self._numbers[i]))
            epsilon = actor_exploration(config, actor, steps)
            rollout, summary = self.play(actor, epsilon, fresh=actor in replay.broken_off)
            self.in_flight[summary] = actor, rollout
            replay.broken_off.discard(actor)
            planned += rollout_steps

    def collect(self, patience: float) -> list[Played]:
        """Sends finished rollouts to the replay; waits for at most one."""
        ray, replay = self._fleet.ray, self._fleet.replay
        if not self.in_flight:
            return []
        answers = list(self.in_flight)
        ready, _ = ray.wait(answers, num_returns=1, timeout=patience)
        if ready:
            ready, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
            self._answered = time.monotonic()
        elif time.monotonic() > self._answered + _NOTICE_SECONDS:
            self._answered = time.monotonic()
            say(f"No actor has answered for {_NOTICE_SECONDS:.0f} s; Ray may be restarting them.")
        found: list[Played] = []
        for summary in ready:
            actor, rollout = self.in_flight.pop(summary)
            failure = f"Ray cannot restart actor {actor}; rerun the command to resume"
            played = _answer(ray, summary, failure)
            if played.begins and self._numbers[actor] > 0:
                say(f"Actor {actor} or its replay shard was restarted; starting fresh episodes.")
            replay.add(actor, self._numbers[actor], rollout, played.begins)
            self._numbers[actor] += 1
            found.append(played)
        replay.settle()
        return found


def train(config: Config, fleet: Fleet, start: Counters = BEGINNING) -> Iterator[Tick]:
    """Trains to the configured frames; a tick has one update, or none while none is due."""
    total_steps = config.steps(config.frames)
    history_steps = config.steps(config.min_history_frames)
    target_steps = config.steps(config.target_period_frames)
    ratio = config.updates_per_step
    lead = config.actors * config.rollout_steps * config.num_envs
    steps, updates = start
    requests = Requests(config, fleet)
    fleet.replay.broken_off.update(range(config.actors))
    while steps < total_steps:
        is_empty = fleet.replay.num_sampleable == 0
        # Enough steps for the next update to become due, however rare updates are.
        requests.give(steps, np.inf if is_empty else history_steps + (updates + 1) / ratio + lead)
        is_due = int((steps - history_steps) * ratio) > updates and not is_empty
        played = requests.collect(0.0 if is_due else _PATIENCE_SECONDS)
        before = steps
        steps += sum(rollout.steps for rollout in played)
        beta = linear(config.importance_exponent, 1.0, steps / total_steps)
        results = [learn(fleet.replay, fleet.learner, beta)] if is_due else []
        updates += len(results)
        if is_due and updates % config.broadcast_period_updates == 0:
            requests.broadcast()
        if has_passed(target_steps, before, steps):
            fleet.learner.update_target()
        episodes = [episode for rollout in played for episode in rollout.episodes]
        rungs = [actor_exploration(config, actor, steps) for actor in range(config.actors)]
        epsilon = sum(rungs) / len(rungs)
        frames = steps * config.frames_per_step
        yield Tick(frames, Counters(steps, updates), episodes, results, epsilon, beta)


def actor_exploration(config: Config, actor: int, steps: int) -> float:
    """Epsilon of an actor: its rung of the ladder, or the schedule's."""
    if config.epsilon_ladder is None or config.noisy:
        return exploration(config, steps)
    rung = actor / (config.actors - 1) if config.actors > 1 else 0.0
    return config.epsilon_ladder ** (1 + _LADDER_EXPONENT * rung)
