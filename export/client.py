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
from rainbow_tf.export.check import version_number

DEFAULT_SIGNATURE = "serving_default"
_PRIVATE = "__"  # TensorFlow's own signatures, whose tensors may have no type
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 5.0
_MESSAGES = {
    "unavailable": "No server answers at {server} ({details}); start one or correct --server.",
    "timeout": (
        "The server at {server} did not answer within {timeout:g} s; give a longer --timeout."
    ),
    "not_found": (
        "The server at {server} has no model '{model}' ({details}); correct --model, or load it."
    ),
    "refused": "{name} refused the request: {details}.",
    "failed": "{name} failed ({details}); see the server's log.",
    "not_serving": (
        "The program at {server} is not TensorFlow Serving ({details}); correct --server. By "
        "default, gRPC is port 8500 and REST is http://host:8501."
    ),
}
_GRPC_KINDS = {
    "UNAVAILABLE": "unavailable",
    "DEADLINE_EXCEEDED": "timeout",
    "NOT_FOUND": "not_found",
    "INVALID_ARGUMENT": "refused",
    "FAILED_PRECONDITION": "refused",
    "UNIMPLEMENTED": "not_serving",
}
_HTTP_KINDS = {503: "unavailable", 504: "timeout", 404: "not_found"}


class ServingError(ConfigError):
    """A request that failed; the message says why and what to do."""


class _UnavailableError(ServingError):
    """The server is unavailable; the request may be retried."""


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

    def predict(
        self, inputs: Mapping[str, np.ndarray], signature: str = DEFAULT_SIGNATURE
    ) -> dict[str, np.ndarray]:
        """The outputs for batched inputs, which are checked before they are sent."""
        _check_inputs(self.signature(signature), inputs, signature)
        return self._run(inputs, signature)

    @abc.abstractmethod
    def _read_signatures(self) -> dict[str, Signature]: ...

    @abc.abstractmethod
    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection."""


class _RemotePolicy(Policy):
    """A model on a server, which can be down or slow, or refuse a request."""

    def __init__(self, server: str, *, model: str, timeout: float, retries: int):
        super().__init__(f"The model '{model}' at {server}")
        self._server, self._model = server, model
        self._timeout, self._retries = timeout, retries

    def _error(self, kind: str, details: object = "") -> ServingError:
        text = _MESSAGES[kind].format(
            name=self.name,
            server=self._server,
            model=self._model,
            timeout=self._timeout,
            details=_one_line(details),
        )
        return _UnavailableError(text) if kind == "unavailable" else ServingError(text)


class GrpcPolicy(_RemotePolicy):
    """A model on TensorFlow Serving's gRPC port; `address` is host:port."""

    def __init__(self, address: str, *, model: str, timeout: float, retries: int):
        super().__init__(address, model=model, timeout=timeout, retries=retries)
        try:
            import grpc
            from tensorflow_serving.apis import (
                get_model_metadata_pb2,
                predict_pb2,
                prediction_service_pb2_grpc,
            )
        except ImportError as error:
            raise ServingError(
                f"--server={address} uses gRPC, which needs tensorflow-serving-api; "
                'pip install "rainbow_tf[serving]", or give --rest and the REST port.'
            ) from error
        self._grpc = grpc
        self._messages = get_model_metadata_pb2, predict_pb2
        self._channel = grpc.insecure_channel(address)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _read_signatures(self) -> dict[str, Signature]:
        messages, _ = self._messages
        request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self._model
        response = self._call(self._stub.GetModelMetadata, request)
        signatures = messages.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return {
            name: Signature(_proto_specs(signature.inputs), _proto_specs(signature.outputs))
            for name, signature in signatures.signature_def.items()
            if not name.startswith(_PRIVATE)
        }

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        import tensorflow as tf

        _, messages = self._messages
        request = messages.PredictRequest()
        request.model_spec.name = self._model
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        response = self._call(self._stub.Predict, request)
        return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}

    def _call(self, method: Callable, request: Any) -> Any:
        def once() -> Any:
            try:
                return method(request, timeout=self._timeout)
            except self._grpc.RpcError as error:
                code = error.code().name
                if code in _GRPC_KINDS:
                    raise self._error(_GRPC_KINDS[code], error.details()) from error
                raise self._error("failed", f"{code}, {error.details()}") from error

        return _retried(once, self._retries)


class RestPolicy(_RemotePolicy):
    """A model on TensorFlow Serving's REST port; `url` is for example http://localhost:8501."""

    def __init__(self, url: str, *, model: str, timeout: float, retries: int):
        super().__init__(url, model=model, timeout=timeout, retries=retries)
        self._url = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(model)}"

    def close(self) -> None:
        """Does nothing: every request has its own connection."""

    def _read_signatures(self) -> dict[str, Signature]:
        answer = self._call("/metadata", None)
        try:
            signatures = answer["metadata"]["signature_def"]["signature_def"]
            return {
                name: Signature(
                    _json_specs(signature.get("inputs", {})),
                    _json_specs(signature.get("outputs", {})),
                )
                for name, signature in signatures.items()
                if not name.startswith(_PRIVATE)
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise self._error("not_serving", "unexpected metadata") from error

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        values = {name: value.tolist() for name, value in inputs.items()}
        answer = self._call(":predict", {"signature_name": signature, "inputs": values})
        specs = self.signature(signature).outputs
        try:
            outputs = answer["outputs"]
            if len(specs) == 1:  # a single output comes without its name
                outputs = dict.fromkeys(specs, outputs)
            return {name: _json_array(outputs[name], spec.dtype) for name, spec in specs.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise self._error("not_serving", "unexpected response") from error

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )

        def once() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=self._timeout) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    raise self._http_error(error) from error
            except urllib.error.URLError as error:
                kind = "timeout" if isinstance(error.reason, TimeoutError) else "unavailable"
                raise self._error(kind, error.reason) from error
            except TimeoutError as error:
                raise self._error("timeout") from error
            except OSError as error:  # the connection was cut
                raise self._error("unavailable", error) from error
            except (http.client.HTTPException, ValueError) as error:
                raise self._error("not_serving", error) from error

        return _retried(once, self._retries)

    def _http_error(self, error: urllib.error.HTTPError) -> ServingError:
        try:
            details = json.load(error)["error"]
        except (ValueError, KeyError, TypeError, OSError):
            details = error.reason
        if error.code in _HTTP_KINDS:
            return self._error(_HTTP_KINDS[error.code], details)
        if 400 <= error.code < 500:
            return self._error("refused", details)
        return self._error("failed", f"HTTP {error.code}, {details}")


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
                f"--model_dir={folder} cannot be loaded ({_one_line(error)}); export it again."
            ) from error
        self._tf = tf

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def _read_signatures(self) -> dict[str, Signature]:
        return {
            name: Signature(
                _tensor_specs(function.structured_input_signature[1]),
                _tensor_specs(function.structured_outputs),
            )
            for name, function in self._loaded.signatures.items()
        }

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        tensors = {name: self._tf.constant(value) for name, value in inputs.items()}
        try:
            outputs = self._loaded.signatures[signature](**tensors)
        except self._tf.errors.OpError as error:
            text = _MESSAGES["refused"].format(name=self.name, details=_one_line(error.message))
            raise ServingError(text) from error
        return {name: value.numpy() for name, value in outputs.items()}


def _check_inputs(signature: Signature, inputs: Mapping[str, np.ndarray], name: str) -> None:
    specs = signature.inputs
    if inputs.keys() != specs.keys():
        raise ServingError(
            f"Signature '{name}' takes {', '.join(sorted(specs)) or 'no inputs'}, but "
            f"{', '.join(sorted(inputs)) or 'nothing'} was given."
        )
    for key, spec in specs.items():
        value = inputs[key]
        fits = len(value.shape) == len(spec.shape) and all(
            wanted in (None, size) for wanted, size in zip(spec.shape, value.shape, strict=True)
        )
        if value.dtype != spec.dtype or not fits:
            raise ServingError(
                f"'{key}' is {TensorSpec(value.dtype, value.shape)}, but signature '{name}' "
                f"takes {spec}, where B is the size of the batch."
            )
        if 0 in value.shape:
            raise ServingError(f"'{key}' is an empty batch; give at least one example.")
    if len({len(value) for value in inputs.values()}) > 1:
        sizes = ", ".join(f"{len(value)} '{key}'" for key, value in inputs.items())
        raise ServingError(f"All inputs need the same batch size, but there are {sizes}.")


def _retried(call: Callable[[], Any], retries: int) -> Any:
    """Retries while the server is unavailable; waits double and are shortened at random."""
    for attempt in range(retries):
        try:
            return call()
        except _UnavailableError:
            wait = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
            # Jitter: clients that lost one server do not all return at once.
            time.sleep(wait * random.uniform(0.5, 1.0))
    return call()


def newest_version(folder: Path) -> Path:
    """The folder itself if it holds a SavedModel, else its version with the highest number."""
    if (folder / "saved_model.pb").exists():
        return folder
    versions = [path.parent for path in folder.glob("*/saved_model.pb")]
    numbered = {
        number: path for path in versions if (number := version_number(path.name)) is not None
    }
    if not numbered:
        raise ServingError(
            f"--model_dir={folder} holds no SavedModel; give a folder that an export wrote."
        )
    return numbered[max(numbered)]


def _proto_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    import tensorflow as tf

    return {
        name: _tensor_spec(tf.dtypes.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape))
        for name, info in tensors.items()
    }


def _tensor_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {name: _tensor_spec(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def _tensor_spec(dtype: Any, shape: Any) -> TensorSpec:
    return TensorSpec(np.dtype(dtype.as_numpy_dtype), () if shape.rank is None else tuple(shape))


def _json_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            _json_dtype(info["dtype"]),
            tuple(
                None if int(dim["size"]) < 0 else int(dim["size"])
                for dim in info["tensor_shape"].get("dim", [])
            ),
        )
        for name, info in tensors.items()
    }


def _json_dtype(name: str) -> np.dtype:
    other = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_STRING": "object"}
    return np.dtype(other.get(name, name.removeprefix("DT_").lower()))


def _json_array(value: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "O":  # strings are bytes in TensorFlow
        return np.char.encode(np.array(value, np.str_)).astype(object)
    return np.array(value, dtype)


def _one_line(error: object) -> str:
    """The first 200 characters of a message, on one line."""
    words = " ".join(str(error).split()).rstrip(".")
    return words if len(words) <= 200 else f"{words[:200]} ..."
