"""What is kept of an update that diverged."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from rainbow_tf.config import Config
from rainbow_tf.training.checkpoint import agent_variables
from rainbow_tf.training.loop import DivergedError
from rainbow_tf.training.parts import Parts
from rainbow_tf.training.storage import write_atomically


def write_diagnosis(config: Config, parts: Parts, error: DivergedError, frames: int) -> Path:
    """Writes the batch, its priorities, the norms of all variables and the settings."""
    batch = error.batch
    content = {
        "frames": frames,
        "loss": error.result.loss,
        "q_mean": error.result.q_mean,
        "batch": {
            "ids": error.ids.tolist(),
            "priorities": parts.replay.priorities(error.ids).tolist(),
            "errors": error.result.errors.tolist(),
            "weights": batch.weight.tolist(),
            "actions": batch.action_tm1.tolist(),
            "rewards": batch.reward_t.tolist(),
            "discounts": batch.discount_t.tolist(),
        },
        "max_priority": parts.replay.max_priority,
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
