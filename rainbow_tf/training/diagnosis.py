"""The diagnosis of an update that diverged."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from rainbow_tf.agent.learner import DivergedError
from rainbow_tf.config import Config
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.training.build import AnyParts
from rainbow_tf.training.checkpoint import agent_variables


def write_diagnosis(config: Config, parts: AnyParts, error: DivergedError, frames: int) -> Path:
    """Writes the batch and errors of the update, the norms of all variables and the settings."""
    content = {
        "frames": frames,
        "loss": error.result.loss,
        "q_mean": error.result.q_mean,
        **error.details,
        "norms": {
            f"{name} {variable.path}": float(np.linalg.norm(variable.numpy().astype(np.float64)))
            for name, variable in agent_variables(parts).items()
        },
        "config": dataclasses.asdict(config),
    }
    path = config.folder / f"diverged_at_{frames}.json"
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path
