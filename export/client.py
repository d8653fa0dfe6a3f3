"""Clients of an exported policy: over gRPC, over REST, or in this process."""

import abc
import http.client
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.config import ConfigError
from rainbow_tf.export.check import sorted_versions
from rainbow_tf.process import one_line

Arrays = Mapping[str, np.ndarray]
DEFAULT_SIGNATURE = "serving_default"
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 5.0
_REFUSED = "{name} refused the request: {details}."
_FAILED = "{name} failed ({status}, {details}); see the server's log."
# By gRPC's name of a status; all others get the sentence _FAILED.
_MESSAGES = {
    "UNAVAILABLE": "No server answers at {server} ({details}); start one or correct --server.",
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
_HTTP_STATUSES = {503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED", 404: "NOT_FOUND"}


class ServingError(ConfigError):
    """A request that failed; the message says why and what to do."""


class TensorSpec(NamedTuple):
    """Type and shape of a tensor in a signature; None is a free dimension."""

    dtype: np.dtype
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ("B" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{', '.join(sizes)}]"


class Signature(NamedTuple):
    """Inputs and outputs of a signature, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class Policy(abc.ABC):
    """An exported policy, wherever it runs."""

    def __init__(self, name: str):
        self.name = name
        self._signatures: dict[str, Signature] | None = None

    def signature(self, name: str = DEFAULT_SIGNATURE) -> Signature:
        """Inputs and outputs of a signature; the first call asks the model for them."""
        if self._signatures is None:
            self._signatures = self._read_signatures()
        if name not in self._signatures:
            known = ", ".join(sorted(self._signatures))
            raise ServingError(f"{self.name} has no signature '{name}'; it has {known}.")
        return self._signatures[name]

    def predict(self, inputs: Arrays, signature: str = DEFAULT_SIGNATURE) -> dict[str, np.ndarray]:
        """The outputs for batched inputs, which are checked before they are sent."""
        specs = self.signature(signature).inputs
        given = {key: TensorSpec(value.dtype, value.shape) for key, value in inputs.items()}
        batched = {key: spec._replace(shape=(None, *spec.shape[1:])) for key, spec in given.items()}
        batch_sizes = {spec.shape[:1] for spec in given.values()}
        if batched != specs or len(batch_sizes) > 1 or batch_sizes & {(0,), ()}:
            raise ServingError(
                f"Signature '{signature}' takes {_listed(specs)}, but {_listed(given)} was given; "
                "B is the batch size, the same for all inputs and at least 1."
            )
        return self._run(inputs, signature)

    def close(self) -> None:  # noqa: B027
        """Closes the connection, if one is kept open."""

    @abc.abstractmethod
    def _read_signatures(self) -> dict[str, Signature]: ...

    @abc.abstractmethod
    def _run(self, inputs: Arrays, signature: str) -> dict[str, np.ndarray]: ...


class _RemotePolicy(Policy):
    """A model on a server, which can be down or slow, or refuse a request."""

    _failures: tuple[type[Exception], ...]  # that a request can raise

    def __init__(self, server: str, *, model: str, timeout: float, retries: int):
        super().__init__(f"The model '{model}' at {server}")
        self.server, self.model = server, model
        self.timeout, self.retries = timeout, retries

    @abc.abstractmethod
    def _explain(self, error: Any) -> tuple[str, object]:
        """The status and the details of a failed request; the status is gRPC's if it has one."""

    def _send(self, method: Callable, request: Any) -> Any:
        """Sends a request, and again while the server is unavailable; the waits double."""
        attempt = 0
        while True:
            try:
                return method(request, timeout=self.timeout)
            except self._failures as error:
                status, details = self._explain(error)
                if status != "UNAVAILABLE" or attempt == self.retries:
                    raise self._error(status, details) from error
            wait = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
            # Jitter: clients that lost one server do not all return at once.
            time.sleep(wait * random.uniform(0.5, 1.0))
            attempt += 1

    def _error(self, status: str, details: object) -> ServingError:
        message = _MESSAGES.get(status, _FAILED)
        return ServingError(message.format(**vars(self), status=status, details=one_line(details)))

    def _parse_signatures(self, response: Any) -> dict[str, Signature]:
        try:
            signatures = response["metadata"]["signature_def"]["signature_def"]
            return {
                name: Signature(*(_json_specs(found.get(side, {})) for side in Signature._fields))
                for name, found in signatures.items()
                if not name.startswith("__")  # TensorFlow's own, which may have no type
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise self._error("UNIMPLEMENTED", "unexpected metadata") from error


class GrpcPolicy(_RemotePolicy):
    """A model on TensorFlow Serving's gRPC port; `server` is host:port."""

    def __init__(self, server: str, *, model: str, timeout: float, retries: int):
        super().__init__(server, model=model, timeout=timeout, retries=retries)
        try:
            import grpc
            from tensorflow_serving.apis import prediction_service_pb2_grpc
        except ImportError as error:
            raise ServingError(
                f"--server={server} uses gRPC, which needs tensorflow-serving-api; "
                'pip install "rainbow_tf[serving]", or give --rest and the REST port.'
            ) from error
        self._failures = (grpc.RpcError,)
        self._channel = grpc.insecure_channel(server)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _read_signatures(self) -> dict[str, Signature]:
        from google.protobuf.json_format import MessageToDict
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self.model
        response = self._send(self._stub.GetModelMetadata, request)
        return self._parse_signatures(MessageToDict(response, preserving_proto_field_name=True))

    def _run(self, inputs: Arrays, signature: str) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(
            model_spec={"name": self.model, "signature_name": signature},
            inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
        )
        response = self._send(self._stub.Predict, request)
        return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}

    def _explain(self, error: Any) -> tuple[str, object]:
        return error.code().name, error.details()


class RestPolicy(_RemotePolicy):
    """A model on TensorFlow Serving's REST port; `server` is for example http://localhost:8501."""

    _failures = (OSError, http.client.HTTPException, ValueError)

    def _read_signatures(self) -> dict[str, Signature]:
        return self._parse_signatures(self._call("/metadata"))

    def _run(self, inputs: Arrays, signature: str) -> dict[str, np.ndarray]:
        values = {name: value.tolist() for name, value in inputs.items()}
        answer = self._call(":predict", {"signature_name": signature, "inputs": values})
        specs = self.signature(signature).outputs
        try:
            outputs = answer["outputs"]
            if len(specs) == 1:  # a single output comes without its name
                outputs = dict.fromkeys(specs, outputs)
            return {name: _json_array(outputs[name], spec.dtype) for name, spec in specs.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise self._error("UNIMPLEMENTED", "unexpected response") from error

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.server.rstrip('/')}/v1/models/{urllib.parse.quote(self.model)}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return self._send(_fetch_json, request)

    def _explain(self, error: Any) -> tuple[str, object]:
        if isinstance(error, urllib.error.HTTPError):
            other = f"HTTP {error.code}" if error.code >= 500 else "INVALID_ARGUMENT"
            try:
                with error:
                    details = json.load(error)["error"]
            except (ValueError, KeyError, TypeError, OSError):
                details = error.reason
            return _HTTP_STATUSES.get(error.code, other), details
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return "DEADLINE_EXCEEDED", cause
        # An OSError: there is no connection, or it was cut.
        return "UNAVAILABLE" if isinstance(error, OSError) else "UNIMPLEMENTED", cause


def _fetch_json(request: urllib.request.Request, timeout: float) -> Any:
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


class SavedModelPolicy(Policy):
    """A SavedModel in this process: a version's folder, or the newest in a model's folder."""

    def __init__(self, folder: str | Path):
        path = newest_version(Path(folder))
        super().__init__(f"The model in {path}")
        import tensorflow as tf

        try:
            self._loaded = tf.saved_model.load(str(path))
        except Exception as error:  # a damaged file can raise anything
            raise ServingError(
                f"--model_dir={folder} cannot be loaded ({one_line(error)}); export it again."
            ) from error

    def _read_signatures(self) -> dict[str, Signature]:
        return {
            name: Signature(
                _tensor_specs(function.structured_input_signature[1]),
                _tensor_specs(function.structured_outputs),
            )
            for name, function in self._loaded.signatures.items()
        }

    def _run(self, inputs: Arrays, signature: str) -> dict[str, np.ndarray]:
        outputs = self._loaded.signatures[signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}


def newest_version(folder: Path) -> Path:
    """The folder itself if it holds a SavedModel, else its version with the highest number."""
    if (folder / "saved_model.pb").exists():
        return folder
    versions = sorted_versions(path.parent for path in folder.glob("*/saved_model.pb"))
    if not versions:
        raise ServingError(
            f"--model_dir={folder} holds no SavedModel; give a folder that an export wrote."
        )
    return versions[-1]


def _listed(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"'{key}' {specs[key]}" for key in sorted(specs)) or "nothing"


def _tensor_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(np.dtype(tensor.dtype.as_numpy_dtype), tuple(tensor.shape or ()))
        for name, tensor in tensors.items()
    }


def _json_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Specs from TensorInfo messages as JSON, where a free dimension is -1."""
    dtypes = {"float": "float32", "string": "object"}  # else the name is NumPy's
    specs = {}
    for name, tensor in tensors.items():
        dtype = tensor["dtype"].removeprefix("DT_").lower()
        sizes = [int(dim["size"]) for dim in tensor["tensor_shape"].get("dim", [])]
        shape = tuple(None if size < 0 else size for size in sizes)
        specs[name] = TensorSpec(np.dtype(dtypes.get(dtype, dtype)), shape)
    return specs


def _json_array(value: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "O":  # strings are bytes in TensorFlow
        return np.char.encode(np.array(value, np.str_)).astype(object)
    return np.array(value, dtype)
