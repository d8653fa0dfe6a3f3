"""Asks an exported policy for actions: over gRPC, over REST, or in this process."""

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


class ServingError(ConfigError):
    """A policy that gave no answer; its message says why and the way out."""


class _UnavailableError(ServingError):
    """No answer this time; the same request may get one later."""


class TensorSpec(NamedTuple):
    """A named tensor of a signature; None is a free dimension."""

    dtype: np.dtype
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ("B" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{', '.join(sizes)}]"


class Signature(NamedTuple):
    """What a signature takes and gives, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class Policy(abc.ABC):
    """An exported policy, wherever it runs."""

    def __init__(self, name: str):
        self.name = name
        self._signatures: dict[str, Signature] | None = None

    def signature(self, name: str = DEFAULT_SIGNATURE) -> Signature:
        """What the signature takes and gives; asks the model the first time."""
        if self._signatures is None:
            self._signatures = self._read_signatures()
        if name not in self._signatures:
            known = ", ".join(sorted(self._signatures))
            raise ServingError(f"{self.name} has no signature '{name}'; it has {known}.")
        return self._signatures[name]

    def predict(
        self, inputs: Mapping[str, np.ndarray], signature: str = DEFAULT_SIGNATURE
    ) -> dict[str, np.ndarray]:
        """The outputs for inputs with a batch dimension; nothing that does not fit is sent."""
        _check_inputs(self.signature(signature), inputs, signature)
        return self._run(inputs, signature)

    @abc.abstractmethod
    def _read_signatures(self) -> dict[str, Signature]: ...

    @abc.abstractmethod
    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of the connection."""


class GrpcPolicy(Policy):
    """A model of TensorFlow Serving's gRPC port."""

    def __init__(self, address: str, *, model: str, timeout: float, retries: int):
        super().__init__(f"The model '{model}' at {address}")
        try:
            import grpc
            from tensorflow_serving.apis import (
                get_model_metadata_pb2,
                predict_pb2,
                prediction_service_pb2_grpc,
            )
        except ImportError as error:
            raise ServingError(
                f"--server={address} is asked over gRPC, which needs tensorflow-serving-api; "
                'pip install "rainbow_tf[serving]", or give --rest and the REST port.'
            ) from error
        self._address, self._model = address, model
        self._timeout, self._retries = timeout, retries
        self._grpc = grpc
        self._messages = get_model_metadata_pb2, predict_pb2
        self._channel = grpc.insecure_channel(address)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Ends the channel."""
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
                raise self._explain(error.code(), _one_line(error.details())) from error

        return _retried(once, self._retries)

    def _explain(self, code: Any, details: str) -> ServingError:
        codes = self._grpc.StatusCode
        if code == codes.UNAVAILABLE:
            return _no_server(self._address, details)
        if code == codes.DEADLINE_EXCEEDED:
            return _too_late(self._address, self._timeout)
        if code == codes.NOT_FOUND:
            return _no_model(self._address, self._model, details)
        if code in (codes.INVALID_ARGUMENT, codes.FAILED_PRECONDITION):
            return _refused(self.name, details)
        if code == codes.UNIMPLEMENTED:
            return _no_serving(self._address, details)
        return _failed(self.name, f"{code.name}, {details}")


class RestPolicy(Policy):
    """A model of TensorFlow Serving's REST port; `url` is such as http://localhost:8501."""

    def __init__(self, url: str, *, model: str, timeout: float, retries: int):
        super().__init__(f"The model '{model}' at {url}")
        self._server, self._model = url, model
        self._url = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(model)}"
        self._timeout, self._retries = timeout, retries

    def close(self) -> None:
        """Nothing to end: every request has its own connection."""

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
            raise _no_serving(self._server, "its metadata has another form") from error

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        values = {name: value.tolist() for name, value in inputs.items()}
        answer = self._call(":predict", {"signature_name": signature, "inputs": values})
        specs = self.signature(signature).outputs
        try:
            outputs = answer["outputs"]
            if len(specs) == 1:  # a lone output comes without its name
                outputs = dict.fromkeys(specs, outputs)
            return {name: _json_array(outputs[name], spec.dtype) for name, spec in specs.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise _no_serving(self._server, "its answer has another form") from error

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
                    raise self._explain(error.code, _json_error(error)) from error
            except TimeoutError as error:
                raise _too_late(self._server, self._timeout) from error
            except urllib.error.URLError as error:
                if isinstance(error.reason, TimeoutError):
                    raise _too_late(self._server, self._timeout) from error
                raise _no_server(self._server, _one_line(error.reason)) from error
            except OSError as error:  # cut off in the middle
                raise _no_server(self._server, _one_line(error)) from error
            except (http.client.HTTPException, ValueError) as error:
                raise _no_serving(self._server, _one_line(error)) from error

        return _retried(once, self._retries)

    def _explain(self, code: int, details: str) -> ServingError:
        if code == 503:
            return _no_server(self._server, details)
        if code == 504:
            return _too_late(self._server, self._timeout)
        if code == 404:
            return _no_model(self._server, self._model, details)
        if 400 <= code < 500:
            return _refused(self.name, details)
        return _failed(self.name, f"HTTP {code}, {details}")


class SavedModelPolicy(Policy):
    """A SavedModel in this process: a version's folder, or the newest one in a folder of them."""

    def __init__(self, folder: str | Path):
        path = newest_version(Path(folder))
        super().__init__(f"The model in {path}")
        import tensorflow as tf

        try:
            self._loaded = tf.saved_model.load(str(path))
        except Exception as error:  # A damaged file fails in many ways.
            raise ServingError(
                f"--model_dir={folder} cannot be loaded ({_one_line(error)}); export it again."
            ) from error
        self._tf = tf

    def close(self) -> None:
        """Nothing to end."""

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
            raise _refused(self.name, _one_line(error.message)) from error
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
        raise ServingError(f"One batch must have one size, but it has {sizes}.")


def _retried(call: Callable[[], Any], retries: int) -> Any:
    """Calls again while nobody answers, after waits that double, each shortened at random."""
    for attempt in range(retries):
        try:
            return call()
        except _UnavailableError:
            wait = min(_FIRST_WAIT_SECONDS * 2**attempt, _LONGEST_WAIT_SECONDS)
            # Jitter: clients that lost one server do not come back all at once.
            time.sleep(wait * random.uniform(0.5, 1.0))
    return call()


def _no_server(server: str, details: str) -> ServingError:
    return _UnavailableError(
        f"No server answers at {server} ({details}); start one or correct --server."
    )


def _too_late(server: str, timeout: float) -> ServingError:
    return ServingError(
        f"The server at {server} did not answer within {timeout:g} s; give a longer --timeout."
    )


def _no_model(server: str, model: str, details: str) -> ServingError:
    return ServingError(
        f"The server at {server} has no model '{model}' ({details}); correct --model, or load it."
    )


def _refused(name: str, details: str) -> ServingError:
    return ServingError(f"{name} refused the request: {details}.")


def _no_serving(server: str, details: str) -> ServingError:
    return ServingError(
        f"What answers at {server} is not TensorFlow Serving ({details}); correct --server, gRPC "
        "is port 8500 and REST is http://host:8501 by default."
    )


def _failed(name: str, details: str) -> ServingError:
    return ServingError(f"{name} failed ({details}); the server's log says more.")


def newest_version(folder: Path) -> Path:
    """The folder itself if it holds a SavedModel, else the one with the highest number in it."""
    if (folder / "saved_model.pb").exists():
        return folder
    versions = [path.parent for path in folder.glob("*/saved_model.pb")]
    numbered = {number: path for path in versions if (number := version_number(path.name))}
    if not numbered:
        raise ServingError(
            f"--model_dir={folder} holds no SavedModel; give the folder that an export wrote."
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
    if dtype.kind == "O":  # text, which is bytes in TensorFlow
        return np.char.encode(np.array(value, np.str_)).astype(object)
    return np.array(value, dtype)


def _json_error(error: urllib.error.HTTPError) -> str:
    try:
        return _one_line(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return _one_line(error.reason)


def _one_line(error: object) -> str:
    """The first words of a message of any length, on one line."""
    words = " ".join(str(error).split()).rstrip(".")
    return words if len(words) <= 200 else f"{words[:200]} ..."
