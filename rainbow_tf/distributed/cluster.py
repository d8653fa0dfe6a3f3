"""Connects to Ray: a cluster of this process's own, or a running one."""

import contextlib
import functools
import logging
import os
import secrets
import socket
from pathlib import Path
from types import ModuleType

from rainbow_tf.config import ConfigError
from rainbow_tf.process import optional

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_ANSWER_SECONDS = 10.0


def import_ray(wanted_by: str) -> ModuleType:
    """Ray, or an error that names what needs it and how to install it."""
    # Ray reads these on import. Values set by the user are kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # TensorFlow must not see a GPU that its process did not request.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Ray lowers the priority of its workers by default.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Our commands report losses in one sentence; Ray would print pages.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    with optional(wanted_by, extra="ray"):
        import ray
    return ray


def connect(
    address: str | None, *, wanted_by: str, num_cpus: int | None = None, object_bytes: int
) -> ModuleType:
    """Joins the cluster at an address, or starts one that only this machine can reach.

    `num_cpus` and `object_bytes` apply to a cluster that is started.
    """
    if address is None:
        os.environ[_LOOPBACK] = "0"  # despite its name it applies to all systems
    ray = import_ray(wanted_by)
    if ray.is_initialized():
        return ray
    _protect_token(create=address is None)
    start = functools.partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
    try:
        if address is None:
            # Not None: RAY_ADDRESS could name another cluster.
            own = {"num_cpus": num_cpus, "object_store_memory": object_bytes}
            start(address="local", include_dashboard=False, **own)
        else:
            # Fails at once if nothing listens: Ray would wait for minutes, then abort.
            host, colon, port = address.removeprefix("ray://").rpartition(":")
            if colon and port.isdigit():
                socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
            start(address=address)
    except Exception as error:  # Ray raises many types, some bare Exceptions
        reason = " ".join(str(error).split())
        sentence = (
            f"{wanted_by} could not start Ray on this machine ({reason}); retry when it is less "
            "busy."
            if address is None
            else f"--address={address} cannot be used ({reason}); give the address of a running "
            "Ray cluster, such as --address=auto on one of its nodes, or leave it out."
        )
        raise ConfigError(sentence) from error
    return ray


def _protect_token(*, create: bool) -> None:
    """Keeps Ray's token from other users: Ray itself writes a file that all can read."""
    if os.environ["RAY_AUTH_MODE"] != "token" or "RAY_AUTH_TOKEN" in os.environ:
        return
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    with contextlib.suppress(OSError):  # Ray says what is wrong with a token that it cannot read
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if create and not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_hex(32))
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
