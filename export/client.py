"""Clients of an exported policy: over gRPC, over REST, or in this process."""

import abc
import functools
import http.client
import io
import json
import math
import random
import time
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rainbow_tf.config import ConfigError
from rainbow_tf.export import answers, check
from rainbow_tf.export.answers import Signature, TensorSpec
from rainbow_tf.process import one_line

Arrays = Mapping[str, np.ndarray]
DEFAULT_SIGNATURE = "serving_default"
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 1.0
_RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# A server that batches refuses all requests of a batch if one of them has another shape.
_SPOILED = "different tasks have different shapes"
_REFUSED = "{name} refused the request: {details}."
_FAILED = "{name} failed ({status}, {details}); see the server's log."
# By gRPC's name of a status; all others get the sentence _FAILED.
_MESSAGES = {
    "UNAVAILABLE": "No server answers at {server} ({details}); start one or correct --server.",
    "RESOURCE_EXHAUSTED": (
        "The server at {server} is overloaded ({details}); give it a larger --grpc_max_threads, "
        "or send fewer requests at a time."
    ),
    "TOO_LARGE": (
        "The server at {server} and this client exchange no message as large as this "
        "({details}); correct --server, or send smaller batches."
    ),
    "DEADLINE_EXCEEDED": (
        "The server at {server} did not answer within {timeout:g} s; give a longer --timeout."
    ),
    "NOT_FOUND": (
        "The server at {server} has no model '{model}' ({details}); correct --model, or load it."
    ),
    "INVALID_ARGUMENT": _REFUSED,
    "FAILED_PRECONDITION": _REFUSED,
    "UNIMPLEMENTED": (
        "The program at {server} is not TensorFlow Serving ({details}); correct --server. By "
        "default, gRPC is port 8500 and REST is http://host:8501."
    ),
}
_HTTP_STATUSES = {
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ServingError(ConfigError):
    """A request that failed; the message says why and what to do."""

    def __init__(self, message: str, status: str = "INVALID_ARGUMENT"):
        super().__init__(message)
        self.status = status  # gRPC's name, if it has one


class Policy(abc.ABC):
    """An exported policy, wherever it runs."""

    max_batch_size = 64  # observations in one request; a server that batches refuses more
    timeout = math.inf  # seconds

    def __init__(self, name: str):
        self.name = name
        self._signatures: dict[str, Signature] | None = None

    def signature(self, name: str = DEFAULT_SIGNATURE) -> Signature:
        """Inputs and outputs of a signature; the first call asks the model for them."""
        if self._signatures is None:
            self._signatures = self._read_signatures()
        if name not in self._signatures:
            known = one_line(", ".join(sorted(self._signatures)))
            raise ServingError(f"{self.name} has no signature '{name}'; it has {known}.")
        return self._signatures[name]

    def predict(self, inputs: Arrays, signature: str = DEFAULT_SIGNATURE) -> dict[str, np.ndarray]:
        """The outputs for batched inputs; both are checked. Large batches are sent in parts."""
        deadline = time.monotonic() + self.timeout
        specs = self.signature(signature)
        size = _check_inputs(inputs, specs.inputs, signature)
        parts = []
        for start in range(0, size, self.max_batch_size):
            rows = slice(start, start + self.max_batch_size)
            part = {name: value[rows] for name, value in inputs.items()}
            outputs = self._run(part, signature, deadline)
            self._check_outputs(outputs, specs.outputs, min(self.max_batch_size, size - start))
            parts.append(outputs)
        return {name: np.concatenate([part[name] for part in parts]) for name in specs.outputs}

    def _check_outputs(
        self, outputs: Mapping[str, Any], specs: Mapping[str, TensorSpec], size: int
    ) -> None:
        for name, spec in specs.items():
            found = outputs.get(name)
            if found is None or found.dtype != spec.dtype or not spec.fits(found.shape, size):
                given = "no" if found is None else str(TensorSpec(found.dtype, found.shape))
                raise ServingError(
                    f"{self.name} answered {size} observations with {one_line(given)} "
                    f"'{one_line(name)}', but its signature says {one_line(spec)}; see the "
                    "server's log.",
                    "INTERNAL",
                )

    def close(self) -> None:  # noqa: B027
        """Closes the connection, if one is kept open."""

    @abc.abstractmethod
    def _read_signatures(self) -> dict[str, Signature]: ...

    @abc.abstractmethod
    def _run(self, inputs: Arrays, signature: str, deadline: float) -> dict[str, np.ndarray]: ...


class RemotePolicy(Policy):
    """A model on a server, which can be down, slow or hostile, or refuse a request.

    `timeout` limits a call of `predict` in seconds, retries included. With `retry`, requests are
    repeated until then while the server is down or overloaded.
    """

    _failures: tuple[type[Exception], ...]  # that a request can raise

    def __init__(self, server: str, *, model: str, timeout: float, retry: bool = True):
        super().__init__(f"The model '{model}' at {server}")
        self.server, self.model = server, model
        self.timeout, self.retry = timeout, retry
        self.retried = 0  # requests that were repeated

    @abc.abstractmethod
    def _explain(self, error: Any) -> tuple[str, str]:
        """The status and the details of a failed request; the status is gRPC's if it has one."""

    def _ask(
        self, read: Callable, method: Callable, request: Any, deadline: float | None = None
    ) -> Any:
        """What `read` finds in the answer; a busy server is asked again, the waits double."""
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        wait, may_be_spoiled = _FIRST_WAIT_SECONDS, True
        while True:
            try:
                answer = method(request, timeout=max(deadline - time.monotonic(), 1e-3))
                break
            except self._failures as error:
                status, details = self._explain(error)
                is_spoiled = may_be_spoiled and _SPOILED in details
                # Jitter: clients that a server refused do not all return at once.
                pause = 0.0 if is_spoiled else wait * random.uniform(0.5, 1.0)
                is_late = time.monotonic() + pause > deadline
                if not self.retry or is_late or not (status in _RETRIED or is_spoiled):
                    raise self._error(status, details) from error
            may_be_spoiled &= not is_spoiled
            self.retried += 1
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        try:
            return read(answer)
        except Exception as error:  # an answer of any kind can raise anything
            raise self._error("UNIMPLEMENTED", "unexpected response") from error

    def _error(self, status: str, details: object) -> ServingError:
        message = _MESSAGES.get(status, _FAILED)
        facts = vars(self) | {"status": status, "details": one_line(details)}
        return ServingError(message.format(**facts), status)


class GrpcPolicy(RemotePolicy):
    """A model on TensorFlow Serving's gRPC port; `server` is host:port."""

    def __init__(self, server: str, *, model: str, timeout: float, retry: bool = True):
        super().__init__(server, model=model, timeout=timeout, retry=retry)
        try:
            import grpc
            from tensorflow_serving.apis import prediction_service_pb2_grpc
        except ImportError as error:
            raise ServingError(
                f"--server={server} uses gRPC, which needs tensorflow-serving-api; "
                'pip install "rainbow_tf[serving]", or give --rest and the REST port.'
            ) from error
        self._failures = (grpc.RpcError,)
        options = {
            "grpc.max_receive_message_length": answers.MOST_BYTES,
            "grpc.max_reconnect_backoff_ms": int(1e3 * _LONGEST_WAIT_SECONDS),
        }
        self._channel = grpc.insecure_channel(server, list(options.items()))
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _read_signatures(self) -> dict[str, Signature]:
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self.model
        return self._ask(answers.grpc_signatures, self._stub.GetModelMetadata, request)

    def _run(self, inputs: Arrays, signature: str, deadline: float) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(
            model_spec={"name": self.model, "signature_name": signature},
            inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
        )
        return self._ask(answers.grpc_arrays, self._stub.Predict, request, deadline)

    def _explain(self, error: Any) -> tuple[str, str]:
        status, details = error.code().name, error.details() or ""
        is_size = status == "RESOURCE_EXHAUSTED" and "larger than max" in details
        return "TOO_LARGE" if is_size else status, details


class RestPolicy(RemotePolicy):
    """A model on TensorFlow Serving's REST port; `server` is for example http://localhost:8501.

    It keeps one connection, so threads need a policy each.
    """

    _failures = (OSError, http.client.HTTPException, ValueError, RecursionError)

    def __init__(self, server: str, *, model: str, timeout: float, retry: bool = True):
        super().__init__(server, model=model, timeout=timeout, retry=retry)
        try:
            url = urllib.parse.urlsplit(server)
            kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            if url.hostname is None:
                raise ValueError("no host")
            self._connection = kinds[url.scheme](url.hostname, url.port)
        except (KeyError, ValueError, http.client.HTTPException) as error:
            raise ServingError(
                f"--server={one_line(server)} is not an address; for REST give "
                "http://host:port, such as http://localhost:8501."
            ) from error
        self._path = f"{url.path.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}"

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        self._connection.close()

    def versions(self) -> dict[int, str]:
        """The state of every version that the server knows, such as LOADING or AVAILABLE."""
        return self._ask(answers.json_versions, self._fetch, ("", None))

    def _read_signatures(self) -> dict[str, Signature]:
        return self._ask(answers.json_signatures, self._fetch, ("/metadata", None))

    def _run(self, inputs: Arrays, signature: str, deadline: float) -> dict[str, np.ndarray]:
        values = {name: value.tolist() for name, value in inputs.items()}
        body = json.dumps({"signature_name": signature, "inputs": values}).encode()
        read = functools.partial(answers.json_arrays, self.signature(signature).outputs)
        return self._ask(read, self._fetch, (":predict", body), deadline)

    def _fetch(self, request: tuple[str, bytes | None], timeout: float) -> Any:
        path, body = self._path + request[0], request[1]
        connection, method = self._connection, "GET" if body is None else "POST"
        try:
            connection.timeout = timeout
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.response_class = functools.partial(
                _TimedResponse, deadline=time.monotonic() + timeout
            )
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(answers.MOST_BYTES + 1)
            if len(content) > answers.MOST_BYTES:
                raise _HttpError("TOO_LARGE", f"above {answers.MOST_BYTES:,} bytes")
            if response.length:
                raise ConnectionResetError("the answer was cut short")
        except BaseException:
            connection.close()
            raise
        if response.status != 200:
            raise _http_error(response, content)
        return json.loads(content)

    def _explain(self, error: Any) -> tuple[str, str]:
        if isinstance(error, _HttpError):
            return error.args
        if isinstance(error, TimeoutError):
            return "DEADLINE_EXCEEDED", str(error)
        # An OSError: there is no connection, or it was cut.
        return "UNAVAILABLE" if isinstance(error, OSError) else "UNIMPLEMENTED", str(error)


class _HttpError(http.client.HTTPException):
    """An answer that is an error: its status and its details."""


def _http_error(response: http.client.HTTPResponse, content: bytes) -> _HttpError:
    code = response.status
    if code < 400:
        return _HttpError("UNIMPLEMENTED", f"HTTP {code}; redirects are not followed")
    try:
        details = str(json.loads(content)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        details = response.reason
    other = f"HTTP {code}" if code >= 500 else "INVALID_ARGUMENT"
    return _HttpError(_HTTP_STATUSES.get(code, other), details)


class _TimedResponse(http.client.HTTPResponse):
    """A response that is read until a deadline; a socket's timeout is for each read."""

    def __init__(self, sock: Any, *args: Any, deadline: float, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock, deadline))


class _TimedReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: Any, deadline: float):
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        self._sock.settimeout(max(self._deadline - time.monotonic(), 1e-3))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class SavedModelPolicy(Policy):
    """A SavedModel in this process: a version's folder, or the newest in a model's folder."""

    def __init__(self, folder: str | Path):
        path = newest_version(Path(folder))
        super().__init__(f"The model in {path}")
        import tensorflow as tf

        try:
            operations = check.unsafe_operations(path)
            if not operations:
                self._loaded = tf.saved_model.load(str(path))
        except Exception as error:  # a damaged file can raise anything
            raise ServingError(
                f"--model_dir={folder} cannot be loaded ({one_line(error)}); export it again."
            ) from error
        if operations:
            raise ServingError(
                f"--model_dir={folder} was not loaded: its graph holds "
                f"{one_line(', '.join(operations))}, which reach files or other programs; a "
                "policy needs none of them."
            )

    def _read_signatures(self) -> dict[str, Signature]:
        return {
            name: Signature(
                _tensor_specs(function.structured_input_signature[1]),
                _tensor_specs(function.structured_outputs),
            )
            for name, function in self._loaded.signatures.items()
        }

    def _run(self, inputs: Arrays, signature: str, deadline: float) -> dict[str, np.ndarray]:
        outputs = self._loaded.signatures[signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}


def newest_version(folder: Path) -> Path:
    """The folder itself if it holds a SavedModel, else its version with the highest number."""
    if (folder / "saved_model.pb").exists():
        return folder
    versions = check.sorted_versions(path.parent for path in folder.glob("*/saved_model.pb"))
    if not versions:
        raise ServingError(
            f"--model_dir={folder} holds no SavedModel; give a folder that an export wrote."
        )
    return versions[-1]


def _check_inputs(inputs: Arrays, specs: Mapping[str, TensorSpec], signature: str) -> int:
    """The batch size of inputs that fit a signature."""
    given = {key: TensorSpec(value.dtype, value.shape) for key, value in inputs.items()}
    batched = {key: spec._replace(shape=(None, *spec.shape[1:])) for key, spec in given.items()}
    sizes = {spec.shape[:1] for spec in given.values()}
    if batched != specs or len(sizes) != 1 or sizes & {(0,), ()}:
        raise ServingError(
            f"Signature '{signature}' takes {_listed(specs)}, but {_listed(given)} was given; "
            "B is the batch size, the same for all inputs and at least 1."
        )
    for name, value in inputs.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ServingError(f"'{name}' holds values that are not finite; send numbers only.")
    alpha = inputs.get("alpha", np.ones(1))
    if not ((alpha > 0) & (alpha <= 1)).all():
        raise ServingError(
            f"'alpha' holds values from {alpha.min():g} to {alpha.max():g}; it must be above 0 "
            "and at most 1."
        )
    return sizes.pop()[0]


def _listed(specs: Mapping[str, TensorSpec]) -> str:
    return one_line(", ".join(f"'{key}' {specs[key]}" for key in sorted(specs)) or "nothing")


def _tensor_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(np.dtype(tensor.dtype.as_numpy_dtype), tuple(tensor.shape or ()))
        for name, tensor in tensors.items()
    }
