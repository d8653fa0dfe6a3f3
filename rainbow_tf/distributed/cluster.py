"""A Ray cluster to work on: one of this process's own, or one that is there."""

import logging
import os
import socket
from types import ModuleType
from typing import Any

from rainbow_tf.config import ConfigError

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_ANSWER_SECONDS = 10.0


def import_ray(wanted_by: str) -> ModuleType:
    """Ray, or a sentence that names who wants it and what to install."""
    # Ray reads these when it is imported. What a user has set stays as it is.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # TensorFlow must not see a GPU that its process has not asked for.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # A run is worth as much here as without Ray, which would give way to all else.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Pages of what was lost and why, which a command of ours says in a sentence.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f'{wanted_by} needs Ray; install it with pip install "rainbow_tf[ray]", or from a '
            'clone with pip install -e ".[ray]".'
        ) from error
    return ray


def connect(
    address: str | None, *, wanted_by: str, num_cpus: int | None = None, object_bytes: int
) -> ModuleType:
    """Joins the cluster at an address, or starts one that nobody beyond this machine can reach.

    The number of CPUs and the size of the object store are those of a cluster that is started.
    """
    if address is None:
        os.environ[_LOOPBACK] = "0"  # what the name says of two systems holds on all of them
    ray = import_ray(wanted_by)
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {
            "include_dashboard": False,
            "num_cpus": num_cpus,
            "object_store_memory": object_bytes,
        }
    try:
        if address is not None:
            _check_answers(address)
        # Not None for a cluster of our own: RAY_ADDRESS would name another one.
        ray.init(address=address or "local", **options)
    except Exception as error:  # what Ray raises is of many kinds, some of none
        reason = " ".join(str(error).split())
        if address is None:
            raise ConfigError(
                f"{wanted_by} could not start Ray on this machine ({reason}); try again when it is "
                "less busy."
            ) from error
        raise ConfigError(
            f"--address={address} cannot be used ({reason}); give the address of a running Ray "
            "cluster, such as --address=auto on one of its nodes, or leave it out."
        ) from error
    return ray


def _check_answers(address: str) -> None:
    """Raises OSError at once where nobody listens: Ray would wait for minutes, and then abort."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
