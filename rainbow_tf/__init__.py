"""Rainbow (Hessel et al. 2018) in TensorFlow 2 and Keras 3."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Imported on first use: TensorFlow takes seconds to load.
_MODULES = {
    "Agent": "api",
    "load": "api",
    "Config": "config",
    "ConfigError": "config",
    "EnvironmentSpec": "types",
    "NoisyDense": "agent.layers",
    "ReturnHead": "agent.layers",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name].startswith("agent."):
        from rainbow_tf.process import load_tensorflow

        load_tensorflow()
    return getattr(importlib.import_module(f"rainbow_tf.{_MODULES[name]}"), name)
