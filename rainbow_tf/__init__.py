"""Rainbow (Hessel et al. 2018) in TensorFlow 2 and Keras 3."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rainbow_tf.agent.layers import NoisyDense, ReturnHead
    from rainbow_tf.api import Agent, load
    from rainbow_tf.config import Config, ConfigError
    from rainbow_tf.types import EnvironmentSpec

__version__ = "0.1.0"
__all__ = ["Agent", "Config", "ConfigError", "EnvironmentSpec", "NoisyDense", "ReturnHead", "load"]

# Quiet even if the caller imports TensorFlow or Keras next; a value that is set is kept.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Imported on first use: TensorFlow takes seconds to load.
_MODULES = {
    **dict.fromkeys(("Agent", "load"), "api"),
    **dict.fromkeys(("Config", "ConfigError"), "config"),
    **dict.fromkeys(("NoisyDense", "ReturnHead"), "agent.layers"),
    "EnvironmentSpec": "types",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name].startswith("agent."):
        from rainbow_tf.process import load_tensorflow

        load_tensorflow()
    return getattr(importlib.import_module(f"rainbow_tf.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
