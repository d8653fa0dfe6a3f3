"""The weights of a run: as named arrays, in a network, and in a policy."""

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.networks import Network, make_network, make_support
from rainbow_tf.baselines import a3c
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.files import parse_json, read_npz
from rainbow_tf.runs.folder import environment_spec
from rainbow_tf.runs.store import (
    BEST_SCORE,
    CHECKPOINTS,
    Best,
    CheckpointError,
    CheckpointStore,
    write_atomically,
)
from rainbow_tf.types import Policy

AGENT_FILE = "agent"
_BEST_WEIGHTS = "best/online.npz"


def named(prefix: str, variables: Iterable) -> dict[str, Any]:
    """Variables by position: Keras's own names change with every model built."""
    return {f"{prefix}/{i}": variable for i, variable in enumerate(variables)}


def values(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """The values of the variables."""
    return {name: variable.numpy() for name, variable in variables.items()}


def assign(variables: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Assigns all variables, or none."""
    check_alike(values(variables), arrays)
    for name, variable in variables.items():
        variable.assign(arrays[name])


def check_alike(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Refuses missing arrays and other shapes or types."""
    for name, array in expected.items():
        other = found.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            raise CheckpointError(f"The saved {name} does not fit the settings of the run")


def write_best(folder: Path, network: Network, best: Best) -> None:
    """Stores a network as the best of the run."""
    (folder / _BEST_WEIGHTS).parent.mkdir(exist_ok=True)
    # Not HDF5: its library aborts the process when the disk is full.
    weights = io.BytesIO()
    score = json.dumps(best._asdict(), indent=2) + "\n"
    # The score is in the weights file too: a kill between the two files cannot mix them up.
    arrays = values(named("online", network.variables)) | {"score": np.array(score)}
    np.savez(weights, allow_pickle=False, **arrays)
    write_atomically(folder / _BEST_WEIGHTS, weights.getbuffer())
    write_atomically(folder / BEST_SCORE, score.encode())


def restore_best(run_dir: Path, network: Network) -> Best:
    """Loads the weights of a run's best evaluation into a network."""
    path = run_dir / _BEST_WEIGHTS
    if not os.path.exists(path):
        raise ConfigError(
            f"{run_dir} has no best weights, because it has no evaluation yet; give "
            "--snapshot=latest or another --run_dir."
        )
    try:
        arrays = read_npz(path)
        best = parse_json(str(arrays.pop("score", "")), Best)
        assign(named("online", network.variables), arrays)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be used ({error}); give --snapshot=latest.") from error
    return best


def restore_online(run_dir: Path, network: Network, number: int | None = None) -> int:
    """Loads the newest intact checkpoint of a run, or that number, into a network.

    Returns the frames that it was trained for.
    """
    store = CheckpointStore(run_dir / CHECKPOINTS)
    checkpoint = None
    problems: list[str] = []
    try:
        if number is None:
            checkpoint, problems = store.newest_whole()
        else:
            checkpoint = store.open(number)
        if checkpoint is not None:
            variables = named("online", network.variables)
            with checkpoint.checked():
                assign(variables, store.read(checkpoint.files[AGENT_FILE]))
            for problem in problems:
                print(f"{problem}; using checkpoint {checkpoint.number} instead.")
            return checkpoint.frames
    except CheckpointError as error:
        problems = [str(error)]
    reason = f" ({problems[0]})" if problems else ""
    there = ", ".join(map(str, store.numbers())) or "none"
    raise ConfigError(
        f"{store.folder} has no intact checkpoint{reason}; found: {there}. Give another "
        "--checkpoint or --run_dir."
    )


def make_policy(
    config: Config, network: Network, *, noise: bool, rng: np.random.Generator
) -> Policy:
    """The policy of a network; `noise` applies to noisy networks only."""
    if config.algorithm == "a3c":
        return a3c.PolicyActor(network=network, rng=rng)
    return Actor(
        network=network,
        support=make_support(config),
        noise=noise and config.noisy,
        rng=rng,
    )


def load_network(config: Config, snapshot: str | int) -> tuple[Network, int, Best | None]:
    """The run's network, its training frames, and its evaluation if it is the best one.

    The snapshot is best, latest, or the number of a checkpoint.
    """
    network = make_network(config, environment_spec(config), seed=config.seed, name="online")
    best = restore_best(config.folder, network) if snapshot == "best" else None
    number = snapshot if isinstance(snapshot, int) else None
    frames = restore_online(config.folder, network, number) if best is None else best.frames
    check_finite(network)
    return network, frames, best


def check_finite(network: Network) -> None:
    """Refuses weights of a diverged run: whatever they choose means nothing."""
    if not all(np.isfinite(variable.numpy()).all() for variable in network.variables):
        raise ConfigError(
            "The weights hold NaN or infinite numbers, because training diverged; give another "
            "--snapshot, --checkpoint or --run_dir."
        )


def load_policy(config: Config, snapshot: str | int, *, seed: int) -> tuple[Policy, int]:
    """The run's policy, with noise if `eval_noise`, and its training frames."""
    network, frames, _ = load_network(config, snapshot)
    rng = np.random.default_rng(seed)
    return make_policy(config, network, noise=config.eval_noise, rng=rng), frames
