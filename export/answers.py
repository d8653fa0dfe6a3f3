"""Reads the answers of a model server: signatures and arrays, from protocol buffers and JSON.

A server can send anything. What does not fit raises an exception, of any kind.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rainbow_tf.process import one_line

MOST_BYTES = 16 * 2**20  # of an answer; that to 64 observations of Atari takes 0.3 MB
_DTYPES: dict[str, Any] = {
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_BOOL": np.bool_,
    "DT_STRING": np.object_,  # of bytes
    **{
        f"DT_{kind.upper()}": np.dtype(kind)
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}
_JSON_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b", "O": "U"}  # of NumPy, by the wanted one


class TensorSpec(NamedTuple):
    """Type and shape of a tensor in a signature; None is a free dimension."""

    dtype: np.dtype
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ("B" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{', '.join(sizes)}]"

    def fits(self, shape: tuple[int, ...], batch_size: int) -> bool:
        """Whether a tensor of this shape answers a batch; an empty shape of a spec is unknown."""
        if not self.shape:
            return shape[:1] == (batch_size,)
        wanted = (batch_size if self.shape[0] is None else self.shape[0], *self.shape[1:])
        pairs = zip(wanted, shape, strict=False)
        return len(wanted) == len(shape) and all(size in (None, found) for size, found in pairs)


class Signature(NamedTuple):
    """Inputs and outputs of a signature, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


def grpc_signatures(response: Any) -> dict[str, Signature]:
    """Signatures from a metadata answer."""
    from google.protobuf.json_format import MessageToDict

    return json_signatures(MessageToDict(response, preserving_proto_field_name=True))


def grpc_arrays(response: Any) -> dict[str, np.ndarray]:
    """The outputs of a signature."""
    import tensorflow as tf

    for tensor in response.outputs.values():
        # A small message can stand for a huge array: it may hold one value to be repeated.
        if math.prod(max(dim.size, 0) for dim in tensor.tensor_shape.dim) > MOST_BYTES:
            raise ValueError("too large")
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


def json_signatures(response: Any) -> dict[str, Signature]:
    """Signatures from a metadata answer as JSON."""
    signatures = response["metadata"]["signature_def"]["signature_def"]
    return {
        name: Signature(*(_json_specs(found.get(side, {})) for side in Signature._fields))
        for name, found in signatures.items()
        if not name.startswith("__")  # TensorFlow's own, which may have no type
    }


def _json_specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Specs from TensorInfo messages as JSON, where a free dimension is -1."""
    specs = {}
    for name, tensor in tensors.items():
        sizes = [int(dim["size"]) for dim in tensor["tensor_shape"].get("dim", [])]
        shape = tuple(None if size < 0 else size for size in sizes)
        specs[name] = TensorSpec(np.dtype(_DTYPES[tensor["dtype"]]), shape)
    return specs


def json_versions(response: Any) -> dict[int, str]:
    """The states of versions, by number."""
    statuses = response["model_version_status"]
    return {int(status["version"]): one_line(status["state"]) for status in statuses}


def json_arrays(specs: Mapping[str, TensorSpec], response: Any) -> dict[str, np.ndarray]:
    """The outputs of a signature."""
    outputs = response["outputs"]
    if len(specs) == 1:  # a single output comes without its name
        outputs = dict.fromkeys(specs, outputs)
    return {name: _json_array(outputs[name], spec.dtype) for name, spec in specs.items()}


def _json_array(value: Any, dtype: np.dtype) -> np.ndarray:
    """An array of JSON values, none of which is rounded to another type or out of its range."""
    found = np.array(value)
    if found.dtype.kind not in _JSON_KINDS[dtype.kind]:
        raise TypeError(f"{found.dtype} instead of {dtype}")
    if dtype.kind == "O":  # strings are bytes in TensorFlow
        return np.char.encode(found).astype(object)
    with np.errstate(over="raise"):
        return np.array(value, dtype)
