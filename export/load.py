"""Measures a model server: python -m rainbow_tf.export.load --server=localhost:8500 --model=qbert.

Every client sends random observations, the next request when the last one is answered. Clients are
threads of one process, which competes for the cores with a server on the same machine.
"""

import collections
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import flags

from rainbow_tf.command import Command, Flag
from rainbow_tf.config import ConfigError
from rainbow_tf.export.client import (
    Arrays,
    GrpcPolicy,
    RemotePolicy,
    RestPolicy,
    ServingError,
    TensorSpec,
)
from rainbow_tf.process import load_tensorflow

# How commands find a server.
SERVER_FLAGS = {
    "server": Flag(None, "TF Serving: host:port for gRPC, http://host:port for REST."),
    "rest": Flag(False, "Ask host:port over REST."),
    "model": Flag(None, "The model's name at the server; by default the game's."),
    "timeout": Flag(
        10.0, "Seconds to wait for an answer, retries included.", minimum=1e-3, maximum=86400
    ),
    "retry": Flag(True, "Repeat requests while the server is down or overloaded."),
}


class Load(NamedTuple):
    """What the clients saw."""

    latencies: list[float]  # seconds of the requests that were answered, retries included
    errors: list[ServingError]  # of the requests that failed
    retried: int
    seconds: float  # from the first request to the last answer

    def __str__(self) -> str:
        answered = len(self.latencies)
        lines = [
            f"{answered:,} requests answered in {self.seconds:.1f} s, "
            f"{answered / self.seconds:,.1f} per second; {len(self.errors):,} failed, "
            f"{self.retried:,} retries"
        ]
        if answered:
            lines.append(f"latency: {percentiles(self.latencies)}")
        examples = {error.status: error for error in self.errors}
        for status, count in collections.Counter(e.status for e in self.errors).most_common():
            lines.append(f"{status}: {count:,} requests, such as: {examples[status]}")
        return "\n".join(lines)


def percentiles(seconds: Sequence[float]) -> str:
    """The 50th, 90th and 99th percentile and the longest, in milliseconds."""
    shares = (50, 90, 99, 100)
    return ", ".join(f"p{q} {1e3 * np.percentile(seconds, q):.2f} ms" for q in shares)


def connect(values: flags.FlagValues, model: str) -> RemotePolicy:
    """A client of the server that `SERVER_FLAGS` name."""
    is_url = values.server.startswith(("http://", "https://"))
    kwargs = {"model": model, "timeout": values.timeout, "retry": values.retry}
    if is_url or values.rest:
        return RestPolicy(values.server if is_url else f"http://{values.server}", **kwargs)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # no notes when a video starts a process
    load_tensorflow()
    return GrpcPolicy(values.server, **kwargs)


def random_inputs(
    specs: dict[str, TensorSpec], batch_size: int, rng: np.random.Generator
) -> Arrays:
    """Inputs of a signature: random bytes and bools, other numbers from 0 to 1."""
    inputs = {}
    for name, spec in specs.items():
        values = rng.random((batch_size, *(size or 1 for size in spec.shape[1:])))
        is_bool, scale = spec.dtype.kind == "b", 256 if spec.dtype.kind == "u" else 1
        inputs[name] = values < 0.5 if is_bool else (scale * values).astype(spec.dtype)
    return inputs


def run_load(policies: Sequence[RemotePolicy], *, seconds: float, batch_size: int) -> Load:
    """Lets every policy ask in a thread of its own until the time is over."""
    specs = [policy.signature().inputs for policy in policies]
    latencies: list[float] = []
    errors: list[ServingError] = []
    started = time.monotonic()

    def ask(index: int) -> None:
        inputs = random_inputs(specs[index], batch_size, np.random.default_rng(index))
        while time.monotonic() < started + seconds:
            before = time.perf_counter()
            try:
                policies[index].predict(inputs)
                latencies.append(time.perf_counter() - before)
            except ServingError as error:
                errors.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(policies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    retried = sum(policy.retried for policy in policies)
    return Load(latencies, errors, retried, time.monotonic() - started)


def run(values: flags.FlagValues) -> None:
    """Prints requests per second, percentiles of the latency, and errors by kind."""
    if values.server is None or values.model is None:
        raise ConfigError("Give --server, such as --server=localhost:8500, and --model.")
    with contextlib.ExitStack() as stack:
        policies = []
        for _ in range(values.clients):
            policies.append(connect(values, values.model))
            stack.callback(policies[-1].close)
        print(f"{values.clients} clients for {values.seconds:g} s at {values.server}")
        load = run_load(policies, seconds=values.seconds, batch_size=values.batch_size)
    print(load)
    if not load.latencies:
        raise ServingError(f"The server at {values.server} answered no request; see above.")


COMMAND = Command(
    options=SERVER_FLAGS
    | {
        "model": Flag(None, "The model's name at the server."),
        "clients": Flag(32, "Clients that ask at the same time.", minimum=1, maximum=1000),
        "seconds": Flag(30.0, "How long they ask.", minimum=0.1, maximum=86400),
        "batch_size": Flag(1, "Observations in a request.", minimum=1, maximum=1024),
    },
    run=run,
    example="give --server and --model",
)

if __name__ == "__main__":
    COMMAND.main()
