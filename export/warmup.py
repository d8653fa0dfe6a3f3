"""Warm-up requests, which TF Serving runs when it loads a model, before the first client asks."""

import importlib.util
from pathlib import Path
from typing import Any

import tensorflow as tf

from rainbow_tf.export.check import WARMUP_FILE

BATCH_SIZES = (1, 8)


def write_requests(signatures: dict[str, Any], model: Path) -> int:
    """Writes one request per signature and batch size; returns their number, 0 without the API."""
    if importlib.util.find_spec("tensorflow_serving") is None:
        return 0
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    logs = []
    for name, function in signatures.items():
        inputs, _ = function.structured_input_signature
        for size in BATCH_SIZES:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "policy"
            request.model_spec.signature_name = name
            for spec in inputs:
                zero = spec.dtype.as_numpy_dtype(0)
                # One value, repeated on reading: a batch of screens would take megabytes.
                tensor = tf.make_tensor_proto(zero, spec.dtype, (size, *spec.shape[1:]))
                request.inputs[spec.name].CopyFrom(tensor)
            logs.append(
                prediction_log_pb2.PredictionLog(
                    predict_log=prediction_log_pb2.PredictLog(request=request)
                )
            )
    (model / WARMUP_FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(model / WARMUP_FILE)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    return len(logs)
