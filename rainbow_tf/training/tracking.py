"""Logs a run to Weights & Biases, beside the CSV files and TensorBoard."""

import dataclasses
import os
import uuid
from types import ModuleType
from typing import Any

from rainbow_tf.config import Config, ConfigError
from rainbow_tf.process import one_line, optional
from rainbow_tf.runs.store import write_atomically

_ID = "wandb_id"  # in the run folder: a resumed run continues its page


def import_wandb() -> ModuleType:
    """Weights & Biases, or an error that says how to install it."""
    with optional("--wandb", extra="wandb"):
        import wandb
    return wandb


def start_wandb(config: Config) -> Any:
    """The run's page; its mode and account are Weights & Biases' own settings."""
    wandb = import_wandb()
    path = config.folder / _ID
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rainbow_tf"),
            name=f"{config.environment_name} {config.agent} seed {config.seed}",
            id=path.read_text(),
            resume="allow",
            dir=config.folder,
            config=dataclasses.asdict(config),
            settings=wandb.Settings(silent=True),
        )
    except wandb.Error as error:
        raise ConfigError(
            f"--wandb does not work ({one_line(error)}); log in, or set WANDB_MODE=offline."
        ) from error
