"""Every setting: default, unit, help and bounds.

The defaults are the paper's full Rainbow agent. Lengths are in emulator frames, as in the paper;
only `Config.steps` converts them to agent steps. Outside Atari an agent step is one frame. The
file is long because every setting is here.
"""

import dataclasses
import difflib
import json
import operator
import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rainbow_tf.games import GAMES

# Bounds: more frames than any run has, and returns of games that are not clipped.
_FRAMES, _PERIOD, _VALUES = (0, 10**12), (1, 10**12), (-1e9, 1e9)
TORSO = "torso.keras"  # in the run folder, with a network of the user's own
_BOUNDS = ("choices", "minimum", "maximum", "above", "or_module")


class ConfigError(ValueError):
    """Input that cannot be used; the message names the flag or file and the way out."""


def hint(name: str, known: Iterable[str], otherwise: str, *, flag: str = "") -> str:
    """The known name closest to a misspelt one, or another way out."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {flag}{close[0]}?" if close else otherwise


def _setting(default: Any, help_text: str, *, may_change: bool = False, **bounds: Any) -> Any:
    """A field with help and bounds: `within` includes both, `above` excludes the first.

    A setting that `may_change` can differ when a run is resumed. `or_module` allows module:name
    besides the choices.
    """
    bounds["minimum"], bounds["maximum"] = bounds.pop("within", (None, None))
    if "above" in bounds:
        bounds["above"], bounds["maximum"] = bounds["above"]
    metadata = {"help": help_text, "may_change": may_change, **dict.fromkeys(_BOUNDS), **bounds}
    return dataclasses.field(default=default, metadata=metadata)


_REMOVED = ("pipeline", "replay_ratio")  # settings that old run folders still have

# Names of agents by the components that they have.
_NAMES: dict[tuple[str, ...], str] = {
    (): "dqn",
    ("double",): "ddqn",
    ("double", "priority"): "prioritized_ddqn",
    ("double", "dueling"): "dueling_ddqn",
    ("distributional",): "distributional_dqn",
    ("noisy",): "noisy_dqn",
    ("quantile",): "iqn",
    ("double", "dueling", "multi_step", "shift"): "drq_eps",
    ("priority", "dueling", "multi_step", "quantile", "noisy", "munchausen"): "beyond",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one run, checked on construction."""

    # The environment.
    game: str | None = _setting(None, "Atari game by its snake-case name, such as qbert.")
    environment: str | None = _setting(
        None,
        "Gymnasium id with discrete actions, instead of --game: CartPole-v1, MinAtar/Breakout-v1; "
        "module:id imports the module first, module:Class needs no id. One frame is one "
        "environment step.",
    )
    protocol: str = _setting(
        "paper",
        "Atari rules. paper: no sticky actions, a lost life is terminal for learning. sticky: "
        "actions repeat with probability 0.25, only game over is terminal.",
        choices=("paper", "sticky"),
    )
    num_envs: int = _setting(
        4,
        "Environments stepped together. With 4, weights are as fresh as in the paper; 1 matches "
        "it exactly. For A3C: worker threads.",
        within=(1, 1024),
    )
    action_repeat: int = _setting(4, "Emulator frames per action (Atari only).", within=(1, 100))
    frame_stack: int | None = _setting(
        None, "Frames per observation; default 4 for Atari, 1 elsewhere.", within=(1, 100)
    )
    noop_max: int = _setting(30, "Most no-ops that begin an Atari episode.", within=(0, 10_000))
    max_episode_frames: int = _setting(
        108_000, "Frames until an episode is truncated.", within=_PERIOD
    )
    clip_rewards: bool = _setting(True, "Clip rewards to [-1, 1] for learning, never in scores.")

    # The six components of Rainbow.
    double: bool = _setting(True, "Double Q-learning: the online network selects the action.")
    prioritized: bool = _setting(True, "Prioritized replay; off: uniform sampling.")
    dueling: bool = _setting(True, "Dueling value and advantage streams.")
    distributional: bool = _setting(
        True, "Learn the distribution of returns; off: their mean, with a Huber loss."
    )
    noisy: bool = _setting(True, "Explore with noisy linear layers; off: epsilon-greedy.")
    n_step: int = _setting(
        3, "Reward steps before the bootstrap. For A3C: maximum steps per update.", within=(1, 1000)
    )

    # Beyond Rainbow.
    returns: str = _setting(
        "categorical",
        "How --distributional represents returns. categorical: probabilities of fixed atoms. "
        "quantile: implicit quantiles (IQN), without bounds.",
        choices=("categorical", "quantile"),
    )
    munchausen: bool = _setting(
        False, "Munchausen targets: a bonus for likely actions, and a softmax policy."
    )
    augmentation: str = _setting(
        "none",
        "shift: updates see images that are shifted by up to 4 pixels (DrQ).",
        choices=("none", "shift"),
    )

    # The agent.
    algorithm: str = _setting(
        "rainbow",
        "rainbow: Q-learning with any of the six components. a3c: asynchronous advantage "
        "actor-critic, without replay; of the components it has only n_step.",
        choices=("rainbow", "a3c"),
    )
    network: str = _setting(
        "auto",
        "Network architecture; auto chooses by the shape of observations. dqn2013 is A3C's small "
        "one, impala a residual one. module:function is a torso of your own: it maps the "
        "environment's spec to a Keras model.",
        choices=("auto", "nature", "dqn2013", "data_efficient", "minatar", "mlp", "impala"),
        or_module=True,
    )
    network_width: int = _setting(2, "Multiplies the filters of --network=impala.", within=(1, 64))
    spectral_norm: bool = _setting(
        True, "Divide residual convolutions of --network=impala by their largest singular value."
    )
    layer_norm: bool = _setting(False, "Normalise the hidden layers of the head.")
    discount: float = _setting(0.99, "Discount per agent step.", within=(0, 1))
    num_atoms: int = _setting(51, "Atoms of the return distribution.", within=(2, 10_001))
    v_min: float = _setting(-10.0, "Lowest atom of the return distribution.", within=_VALUES)
    v_max: float = _setting(10.0, "Highest atom of the return distribution.", within=_VALUES)
    noisy_sigma: float = _setting(0.5, "Initial scale sigma0 of noisy layers.", within=(0, 1000))
    epsilon_start: float = _setting(1.0, "Initial epsilon, without noisy layers.", within=(0, 1))
    epsilon_end: float = _setting(0.01, "Final epsilon, without noisy layers.", within=(0, 1))
    epsilon_decay_frames: int = _setting(
        250_000, "Frames of epsilon's decay, from --min_history_frames on.", within=_FRAMES
    )
    noisy_epsilon_frames: int = _setting(
        0, "Frames in which agents with noisy layers explore by epsilon too.", within=_FRAMES
    )

    # Learning.
    frames: int = _setting(200_000_000, "Frames to train for.", within=_PERIOD, may_change=True)
    min_history_frames: int = _setting(80_000, "Frames before the first update.", within=_FRAMES)
    updates_per_step: float = _setting(
        0.25, "Updates per agent step; 0.25 is one update every 4 steps.", above=(0, 1000)
    )
    batch_size: int = _setting(32, "Transitions in an update.", within=(1, 100_000))
    optimizer: str = _setting("adam", "Optimizer of the network.", choices=("adam", "rmsprop"))
    learning_rate: float = _setting(
        6.25e-5, "Learning rate; A3C anneals it to 0 over the run.", above=(0, 1000)
    )
    adam_epsilon: float = _setting(
        1.5e-4, "Adam's epsilon, added to the root of the second moment.", above=(0, 1000)
    )
    rmsprop_decay: float = _setting(0.95, "Decay of RMSProp's averages.", within=(0, 1))
    rmsprop_epsilon: float = _setting(
        0.01 / 32**2,
        "RMSProp's epsilon, added to the mean square inside the root. DQN's 0.01 is for gradients "
        "summed over 32 examples; ours are averaged, so it is divided by 32 squared.",
        above=(0, 1e9),
    )
    rmsprop_centered: bool = _setting(
        True,
        "RMSProp divides by the standard deviation of gradients; off: by their root mean square.",
    )
    max_grad_norm: float | None = _setting(
        None, "Clip the global gradient norm to this; default: no clipping.", above=(0, 1e9)
    )
    entropy_cost: float = _setting(0.01, "Weight of A3C's entropy bonus.", within=(0, 1000))
    target_period_frames: int = _setting(32_000, "Frames between target updates.", within=_PERIOD)

    # The replay.
    replay_capacity: int = _setting(
        1_000_000, "Agent steps that the replay holds.", within=(1, 100_000_000)
    )
    replay_compression: str = _setting(
        "none",
        "lz4 compresses stored frames: a quarter of the memory, slower sampling.",
        choices=("none", "lz4"),
        may_change=True,
    )
    priority: str | None = _setting(
        None,
        "Error used as priority: KL divergence or cross-entropy of the distributions, or absolute "
        "TD error of the means. Default: kl, or td without atoms.",
        choices=("kl", "ce", "td"),
    )
    priority_exponent: float = _setting(0.5, "Exponent of the priorities.", within=(0, 1))
    importance_exponent: float = _setting(
        0.4, "Initial importance exponent beta; it is annealed to 1 over the run.", within=(0, 1)
    )

    # Ape-X: many processes.
    actors: int = _setting(
        0,
        "Actor processes of --num_envs environments each, while this process learns (Ape-X, on "
        "Ray); 0: a single process.",
        within=(0, 10_000),
    )
    address: str | None = _setting(
        None,
        "Ray cluster for --actors; default: processes on this machine, unreachable from outside.",
        may_change=True,
    )
    replay_shards: int = _setting(
        1, "Processes that share the replay of --actors.", within=(1, 10_000), may_change=True
    )
    rollout_steps: int = _setting(
        16, "Steps per environment that an actor plays before it sends them.", within=(1, 10_000)
    )
    broadcast_period_updates: int = _setting(
        8, "Updates between sending weights to --actors.", within=(1, 1_000_000)
    )
    epsilon_ladder: float | None = _setting(
        None,
        "Without noisy layers, actor i of N uses epsilon = this ** (1 + 7 i / (N - 1)); default: "
        "the schedule of --epsilon_start.",
        above=(0, 1),
    )

    # Evaluation.
    eval_period_frames: int = _setting(
        1_000_000, "Training frames between evaluations; 0: none.", within=_FRAMES, may_change=True
    )
    eval_frames: int = _setting(
        500_000,
        "Frames per evaluation, shared by its environments (--num_envs, at least 4). Episodes "
        "that begin within them are played to the end and count.",
        within=_PERIOD,
        may_change=True,
    )
    eval_noise: bool = _setting(
        False, "Keep the noise of the noisy layers in evaluation.", may_change=True
    )
    eval_epsilon: float = _setting(0.0, "Epsilon in evaluation.", within=(0, 1), may_change=True)

    # The run.
    seed: int = _setting(
        1,
        "Random seed; on a CPU the same seed gives the same run, except for A3C with more than one "
        "worker.",
        within=(0, 2**31 - 1),
    )
    run_dir: str | None = _setting(
        None, "Folder of the run; default: runs/<game>/<agent>/seed_<seed>.", may_change=True
    )
    restart: bool = _setting(
        False, "Move an existing run in the folder aside and start again.", may_change=True
    )
    export_dir: str | None = _setting(
        None,
        "Model folder to export to after training: the best policy, or the last without an "
        "evaluation.",
        may_change=True,
    )
    threads: int | None = _setting(
        None,
        "TensorFlow threads; default: all cores for Atari, 1 elsewhere, where networks are small.",
        within=(1, 1024),
        may_change=True,
    )
    checkpoint_period_frames: int = _setting(
        250_000,
        "Frames between checkpoints; each writes only what changed.",
        within=_PERIOD,
        may_change=True,
    )
    max_checkpoints: int = _setting(2, "Checkpoints to keep.", within=(1, 1000), may_change=True)
    log_period_frames: int = _setting(
        10_000,
        "Frames between rows of train.csv and TensorBoard points.",
        within=_PERIOD,
        may_change=True,
    )
    record_period_frames: int = _setting(
        0,
        "Frames between short videos of the policy, in videos/ and TensorBoard; 0: no videos.",
        within=_FRAMES,
        may_change=True,
    )
    wandb: bool = _setting(False, "Log to Weights & Biases too (extra [wandb]).", may_change=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_bounds(field, getattr(self, field.name))
        self._check_environment()
        if self.v_min >= self.v_max:
            raise ConfigError(
                f"--v_min={self.v_min:g} must be below --v_max={self.v_max:g}; "
                "the paper uses --v_min=-10 --v_max=10."
            )
        self._check_actors()
        self._check_beyond()
        if self.algorithm == "a3c":  # it has none of these components
            for name in ("double", "prioritized", "dueling", "distributional", "noisy"):
                object.__setattr__(self, name, False)
        if self.frame_stack is None:
            object.__setattr__(self, "frame_stack", 4 if self.game is not None else 1)
        if self.priority in ("kl", "ce") and not self.has_support:
            what = "--returns=quantile" if self.has_quantiles else "--nodistributional"
            raise ConfigError(
                f"--priority={self.priority} compares probabilities of atoms, which {what} does "
                "not have; give --priority=td or leave it out."
            )
        shortest_ring, lanes = self.stack + self.n_step, self.num_envs * max(1, self.actors)
        if self.has_replay and self.replay_capacity // lanes < shortest_ring:
            actors = f"--actors={self.actors}, " if self.actors > 0 else ""
            raise ConfigError(
                f"--replay_capacity={self.replay_capacity} is too small for {actors}"
                f"--num_envs={self.num_envs}, --n_step={self.n_step} and a stack of "
                f"{self.stack}; give at least {shortest_ring * lanes}."
            )

    def _check_actors(self) -> None:
        if self.actors == 0:
            for name, default in (("address", None), ("replay_shards", 1)):
                if (value := getattr(self, name)) != default:
                    raise ConfigError(f"--{name}={value} needs --actors; give both or neither.")
            return
        if self.algorithm == "a3c":
            raise ConfigError(
                f"--actors={self.actors} needs a replay buffer, which --algorithm=a3c does not "
                "use; give --num_envs for more workers."
            )
        if self.replay_shards > self.actors:
            raise ConfigError(
                f"--replay_shards={self.replay_shards} is more than --actors={self.actors}; each "
                "shard stores the steps of at least one actor, so give fewer."
            )

    def _check_beyond(self) -> None:
        given = {
            "--returns=quantile": self.returns == "quantile",
            "--munchausen": self.munchausen,
            "--augmentation=shift": self.augmentation == "shift",
            "--layer_norm": self.layer_norm,
            "--network=impala": self.network == "impala",
        }
        for flag in (flag for flag, is_given in given.items() if is_given):
            if self.algorithm == "a3c":
                raise ConfigError(f"{flag} is for --algorithm=rainbow; leave it out of a3c.")
        if self.returns == "quantile" and not self.distributional:
            raise ConfigError(
                "--returns=quantile needs distributions; leave out --nodistributional."
            )

    def _check_environment(self) -> None:
        if self.game is not None and self.environment is not None:
            raise ConfigError(
                f"--game={self.game} and --environment={self.environment} exclude each other; "
                "give one of them."
            )
        if self.game is None and self.environment is None:
            raise ConfigError(
                "Nothing to play: give --game, such as --game=qbert, or --environment, "
                "such as --environment=CartPole-v1."
            )
        if self.game is not None and self.game not in GAMES:
            way_out = hint(self.game, GAMES, f"known: {', '.join(GAMES)}.", flag="--game=")
            raise ConfigError(f"--game={self.game} is not one of the 57 games; {way_out}")

    @property
    def stack(self) -> int:
        """Frames per observation, with the default filled in."""
        assert self.frame_stack is not None
        return self.frame_stack

    @property
    def frames_per_step(self) -> int:
        """Emulator frames per agent step."""
        return self.action_repeat if self.game is not None else 1

    def steps(self, frames: int) -> int:
        """Converts frames to agent steps, rounding up."""
        return -(-frames // self.frames_per_step)

    @property
    def sticky_action_probability(self) -> float:
        """Probability that the emulator repeats the last action."""
        return 0.25 if self.protocol == "sticky" else 0.0

    @property
    def terminal_on_life_loss(self) -> bool:
        """Whether losing a life ends the bootstrap."""
        return self.protocol == "paper"

    @property
    def tensorflow_threads(self) -> int | None:
        """TensorFlow threads, or None for all cores."""
        return 1 if self.threads is None and self.game is None else self.threads

    @property
    def has_support(self) -> bool:
        """Whether returns are probabilities of atoms."""
        return self.distributional and self.returns == "categorical"

    @property
    def has_quantiles(self) -> bool:
        """Whether returns are quantiles."""
        return self.distributional and self.returns == "quantile"

    @property
    def priority_measure(self) -> str:
        """Error used as priority, with the default filled in."""
        return self.priority or ("kl" if self.has_support else "td")

    @property
    def has_replay(self) -> bool:
        """Whether the agent has a replay buffer."""
        return self.algorithm != "a3c"

    @property
    def compressed_replay(self) -> bool:
        """Whether stored frames are compressed."""
        return self.replay_compression == "lz4"

    @property
    def agent(self) -> str:
        """Name of the agent: rainbow, another by name, or what differs from rainbow."""
        if self.algorithm == "a3c":
            return "a3c"
        parts = {
            "double": self.double,
            "priority": self.prioritized,
            "dueling": self.dueling,
            "multi_step": self.n_step > 1,
            "distributional": self.has_support,
            "quantile": self.has_quantiles,
            "noisy": self.noisy,
            "munchausen": self.munchausen,
            "shift": self.augmentation == "shift",
        }
        has = tuple(name for name, is_on in parts.items() if is_on)
        added = [name for name in ("quantile", "munchausen", "shift") if parts.pop(name)]
        parts["distributional"] = self.distributional
        missing = [f"no_{name}" for name, is_on in parts.items() if not is_on]
        name = [_NAMES[has]] if has in _NAMES else missing + added
        length = [f"n{self.n_step}"] if self.n_step not in (1, 3) else []
        own = self.network.rpartition(":")[2].replace("/", "_")
        network = [own] if self.network != "auto" else []
        actors = ["apex"] if self.actors > 0 else []
        return "_".join(name + length + network + actors) or "rainbow"

    @property
    def environment_name(self) -> str:
        """Name of the game or environment, usable in a path."""
        return self.game or re.sub(r"[^a-z0-9]+", "_", str(self.environment).lower())

    @property
    def folder(self) -> Path:
        """The run's folder."""
        if self.run_dir is not None:
            return Path(self.run_dir)
        return Path("runs") / self.environment_name / self.agent / f"seed_{self.seed}"

    def to_json(self) -> str:
        """The settings as the text of `config.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """The settings that `to_json` wrote, by name; those that were removed since are ignored."""
        kept = {name: value for name, value in values.items() if name not in _REMOVED}
        for name in kept.keys() - cls.__dataclass_fields__.keys():
            raise ConfigError(f"{name:.60} is not a setting")
        return cls(**kept)


def _check_bounds(field: dataclasses.Field, value: Any) -> None:
    bounds, kind = field.metadata, typing.cast(Any, field.type)
    flag = f"--{field.name}={value!s:.100}"
    kinds = typing.get_args(kind) or (kind,)
    is_kind = isinstance(value, kinds) or (isinstance(value, int) and float in kinds)
    if not is_kind or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{flag} cannot be used; it must be {getattr(kind, '__name__', kind)}.")
    if value is None:
        return
    if isinstance(value, str) and not (value.isprintable() and len(value) <= 4096):
        raise ConfigError(f"--{field.name} is too long or has letters that cannot be printed.")
    if bounds["or_module"] and ":" in value:
        return
    if bounds["choices"] is not None and value not in bounds["choices"]:
        raise ConfigError(f"{flag} is unknown; choose one of {', '.join(bounds['choices'])}.")
    for bound, is_met, message in (
        (bounds["minimum"], operator.ge, "too small; it must be at least"),
        (bounds["maximum"], operator.le, "too large; it must be at most"),
        (bounds["above"], operator.gt, "too small; it must be above"),
    ):
        if bound is not None and not is_met(value, bound):
            raise ConfigError(f"{flag} is {message} {bound}.")
