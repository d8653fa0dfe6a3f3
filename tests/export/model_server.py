"""A fake tensorflow_model_server with its gRPC and REST interfaces and its error codes.

It loads models with the v1 session loader, as TensorFlow Serving does, without Python code of
this package. What a real TensorFlow Serving 2.20 was seen to do, it does too:

- `max_threads`: more gRPC requests at a time are refused as RESOURCE_EXHAUSTED; REST's wait.
- `batching`: requests that arrive together run as one batch. One of another shape fails them all,
  an empty one never ends and keeps its thread, one above `MAX_BATCH_SIZE` is refused.
- A number out of an integer's range in a REST request wraps around.
- The two newest versions are wanted; one that cannot be loaded stays LOADING without an error.
"""

import contextlib
import http.server
import json
import math
import re
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
)

CODES = grpc.StatusCode
BY_NUMBER = {code.value[0]: code for code in CODES}
HTTP = {
    CODES.INVALID_ARGUMENT: 400,
    CODES.FAILED_PRECONDITION: 400,
    CODES.NOT_FOUND: 404,
    CODES.RESOURCE_EXHAUSTED: 429,
    CODES.UNAVAILABLE: 503,
}
MOST_NUMBERS = 10**7
MAX_BATCH_SIZE = 64
BATCH_TIMEOUT_SECONDS = 0.001


class StatusError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Servable:
    """One version of a model."""

    def __init__(self, folder, *, batching, stopped=None):
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], str(folder))
        self.signatures = dict(loaded.signature_def)
        self._batching = batching
        self._stopped = stopped or threading.Event()
        self._callables = {}
        self._lock = threading.Lock()
        self._queues = {}  # tasks that wait for a batch, by signature

    def signature(self, name, code):
        name = name or "serving_default"
        if name not in self.signatures:
            raise StatusError(code, f'Serving signature key "{name}" not found.')
        return self.signatures[name]

    def run(self, signature_name, inputs):
        signature = self.signature(signature_name, CODES.FAILED_PRECONDITION)
        extra = inputs.keys() - signature.inputs.keys()
        missing = signature.inputs.keys() - inputs.keys()
        if extra or missing:
            raise invalid(f"Sent extra: {extra}. Missing but required: {missing}.")
        if self._batching and not inputs:
            raise invalid("Batching session Run() must have at least one input tensor")
        feeds = [to_array(inputs[name], name) for name in sorted(inputs)]
        run = self._run_in_batch if self._batching else self._run_feeds
        outputs = run(signature, feeds)
        return dict(zip(sorted(signature.outputs), outputs, strict=True))

    def _run_feeds(self, signature, feeds):
        try:
            return self._callable(signature)(*feeds)
        except tf.errors.OpError as error:
            raise StatusError(BY_NUMBER[error.error_code], error.message) from error

    def _run_in_batch(self, signature, feeds):
        """Waits for others; the first in the queue runs the batch for all of them."""
        if len({value.shape[:1] for value in feeds}) > 1 or not feeds[0].shape:
            raise invalid("Batching session Run() input tensors must have equal 0th-dimension size")
        size = len(feeds[0])
        if size > MAX_BATCH_SIZE:
            raise invalid(
                f"Task size {size} is larger than maximum input batch size {MAX_BATCH_SIZE}"
            )
        if size == 0:
            self._stopped.wait()
            raise StatusError(CODES.UNAVAILABLE, "stopped")
        task, key = (feeds, futures.Future()), id(signature)
        with self._lock:
            queue = self._queues.setdefault(key, [])
            queue.append(task)
        if queue[0] is task:
            time.sleep(BATCH_TIMEOUT_SECONDS)
            with self._lock:
                tasks = self._queues.pop(key)
            while tasks:
                batch, size = [], 0
                while tasks and size + len(tasks[0][0][0]) <= MAX_BATCH_SIZE:
                    batch.append(tasks.pop(0))
                    size += len(batch[-1][0][0])
                self._run_batch(signature, batch)
        return task[1].result()

    def _run_batch(self, signature, batch):
        try:
            columns = list(zip(*(feeds for feeds, _ in batch), strict=True))
            for name, values in zip(sorted(signature.inputs), columns, strict=True):
                if len({(value.dtype, value.shape[1:]) for value in values}) > 1:
                    raise StatusError(
                        CODES.FAILED_PRECONDITION,
                        f"Tensors with name '{name}' from different tasks have different shapes "
                        "and padding is turned off. Set pad_variable_length_inputs to true, or "
                        "ensure that all tensors with the same name in the same batch have the "
                        "same shapes.",
                    )
            outputs = self._run_feeds(signature, [np.concatenate(values) for values in columns])
            start = 0
            for feeds, future in batch:
                rows = slice(start, start + len(feeds[0]))
                start = rows.stop
                future.set_result([output[rows] for output in outputs])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)

    def _callable(self, signature):
        """Calls the C++ session directly; Session.run would check shapes and convert types."""
        options = config_pb2.CallableOptions(
            feed=[signature.inputs[name].name for name in sorted(signature.inputs)],
            fetch=[signature.outputs[name].name for name in sorted(signature.outputs)],
        )
        key = options.SerializeToString()
        if key not in self._callables:
            self._callables[key] = self._session._make_callable_from_options(options)
        return self._callables[key]


def invalid(message):
    return StatusError(CODES.INVALID_ARGUMENT, message)


def to_array(proto, name):
    """The array of a tensor proto; the size is checked first, since any shape can be sent."""
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        raise invalid(f"Tensor {name} has no valid shape")
    if math.prod(sizes) > MOST_NUMBERS:
        raise invalid(f"Tensor {name} is too large")
    try:
        return tf.make_ndarray(proto)
    except (TypeError, ValueError) as error:
        raise invalid(f"Could not parse tensor {name}: {error}") from error


class ModelServer(model_service_pb2_grpc.ModelServiceServicer):
    """Serves model folders by name; each request first raises (or calls) the next of `faults`."""

    def __init__(self, models, *, batching=False, max_threads=64, port=0, rest_port=0):
        self._models, self._batching = models, batching
        self._servables = {name: {} for name in models}
        self._states = {name: {} for name in models}
        self._stopped = threading.Event()
        self._threads = threading.Semaphore(max_threads)
        self.load_versions()
        self.faults = []
        self.requests = 0
        self.refused = 0
        self.peers = set()
        self._grpc = grpc.server(
            # Enough threads to refuse requests: Python's own server would let them wait.
            futures.ThreadPoolExecutor(200),
            options=[("grpc.max_receive_message_length", -1)],
        )
        methods = {
            "Predict": (self.Predict, predict_pb2.PredictRequest),
            "GetModelMetadata": (
                self.GetModelMetadata,
                get_model_metadata_pb2.GetModelMetadataRequest,
            ),
        }
        handler = grpc.method_handlers_generic_handler(
            "tensorflow.serving.PredictionService",
            {name: decoding_handler(*found) for name, found in methods.items()},
        )
        self._grpc.add_generic_rpc_handlers([handler])
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, self._grpc)
        self.address = f"localhost:{self._grpc.add_insecure_port(f'localhost:{port}')}"
        self._grpc.start()
        handler = type("Handler", (_RestHandler,), {"server_of_models": self})
        self._http = http.server.ThreadingHTTPServer(("localhost", rest_port), handler)
        self.url = f"http://localhost:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def load_versions(self):
        """Loads the two newest versions of every model and unloads the others."""
        for name, folder in self._models.items():
            wanted = sorted(int(path.name) for path in folder.iterdir())[-2:]
            old = self._servables[name]
            self._servables[name] = {number: old[number] for number in wanted if number in old}
            self._states[name] = dict.fromkeys(wanted, "LOADING")
            for number in wanted:
                with contextlib.suppress(Exception):  # a damaged version can raise anything
                    if number not in self._servables[name]:
                        self._servables[name][number] = Servable(
                            folder / str(number), batching=self._batching, stopped=self._stopped
                        )
                    self._states[name][number] = "AVAILABLE"

    def stop(self):
        self._stopped.set()
        self._grpc.stop(grace=None).wait()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def find(self, spec):
        versions = self._servables.get(spec.name, {})
        version = spec.version.value if spec.HasField("version") else max(versions, default=None)
        if version not in versions:
            wanted = f"Specific({spec.name}, {version})" if version else f"Latest({spec.name})"
            raise StatusError(CODES.NOT_FOUND, f"Servable not found for request: {wanted}")
        return version, versions[version]

    def predict(self, request):
        self.requests += 1
        if self.faults:
            fault = self.faults.pop(0)
            if callable(fault):
                fault()
            else:
                raise fault
        version, servable = self.find(request.model_spec)
        outputs = servable.run(request.model_spec.signature_name, request.inputs)
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = version
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response

    def metadata(self, request):
        if list(request.metadata_field) != ["signature_def"]:
            raise invalid("Metadata field must be signature_def")
        version, servable = self.find(request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, signature in servable.signatures.items():
            signatures.signature_def[name].CopyFrom(signature)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def status(self, request):
        name = request.model_spec.name
        if name not in self._states:
            raise StatusError(CODES.NOT_FOUND, f"Could not find any versions of model {name}")
        response = get_model_status_pb2.GetModelStatusResponse()
        for version, state in self._states[name].items():
            response.model_version_status.add(version=version, state=state)
        return response

    def Predict(self, request, context):  # noqa: N802
        self.peers.add(context.peer())
        if not self._threads.acquire(blocking=False):
            self.refused += 1
            context.abort(CODES.RESOURCE_EXHAUSTED, "Server Threadpool Exhausted")
        try:
            return answer(self.predict, request, context)
        finally:
            self._threads.release()

    def GetModelMetadata(self, request, context):  # noqa: N802
        return answer(self.metadata, request, context)

    def GetModelStatus(self, request, context):  # noqa: N802
        return answer(self.status, request, context)

    def predict_over_rest(self, request):
        with self._threads:
            return self.predict(request)


def decoding_handler(method, kind):
    """Decodes requests itself: Python's server loses 15 KB with each that it cannot decode."""

    def run(content, context):
        try:
            request = kind.FromString(content)
        except DecodeError as error:
            context.abort(CODES.INTERNAL, f"Failed to parse the request: {error}")
        return method(request, context)

    return grpc.unary_unary_rpc_method_handler(
        run, response_serializer=lambda response: response.SerializeToString()
    )


def answer(method, request, context):
    try:
        return method(request)
    except StatusError as error:
        context.abort(error.code, str(error))


class _RestHandler(http.server.BaseHTTPRequestHandler):
    server_of_models: ModelServer
    protocol_version = "HTTP/1.1"  # keeps connections
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server_of_models.peers.add(self.client_address)

    def do_GET(self):
        self._answer(self._get)

    def do_POST(self):
        self._answer(self._post)

    def log_message(self, *arguments):
        pass

    def _answer(self, method):
        try:
            code, body = 200, method()
        except StatusError as error:
            code, body = HTTP.get(error.code, 500), {"error": str(error)}
        data = json.dumps(body).encode()
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client disconnected

    def _match(self, ending):
        match = re.fullmatch(r"/v1/models/([^/:]+)(?:/versions/(\d{1,9}))?" + ending, self.path)
        if match is None:
            raise StatusError(CODES.NOT_FOUND, f"Malformed request: {self.command} {self.path}")
        return match

    def _spec(self, request, match):
        request.model_spec.name = match[1]
        if match[2] is not None:
            request.model_spec.version.value = int(match[2])
        return request

    def _get(self):
        if self.path.endswith("/metadata"):
            request = get_model_metadata_pb2.GetModelMetadataRequest(
                metadata_field=["signature_def"]
            )
            request = self._spec(request, self._match("/metadata"))
            response = self.server_of_models.metadata(request)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            response.metadata["signature_def"].Unpack(signatures)
            signature_def = MessageToDict(signatures, preserving_proto_field_name=True)
            return {"metadata": {"signature_def": signature_def}}
        request = get_model_status_pb2.GetModelStatusRequest()
        response = self.server_of_models.status(self._spec(request, self._match("")))
        return MessageToDict(response, preserving_proto_field_name=True)

    def _post(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match = self._match(":predict")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"JSON Parse error: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("inputs"), dict):
            raise invalid("Missing 'inputs' or 'instances' key")
        name = document.get("signature_name", "")
        if not isinstance(name, str):
            raise invalid("'signature_name' key must be a string value.")
        request = self._spec(predict_pb2.PredictRequest(), match)
        request.model_spec.signature_name = name
        _, servable = self.server_of_models.find(request.model_spec)
        signature = servable.signature(name, CODES.INVALID_ARGUMENT)
        if not signature.inputs:
            raise invalid(f"Failed to get input map for signature: {name}")
        for key, info in signature.inputs.items():
            if key not in document["inputs"]:
                raise invalid(f"Missing named input: {key} in 'inputs' object.")
            request.inputs[key].CopyFrom(_from_json(document["inputs"][key], info))
        response = self.server_of_models.predict_over_rest(request)
        outputs = {key: tf.make_ndarray(value) for key, value in response.outputs.items()}
        return {"outputs": {key: _to_json(value) for key, value in outputs.items()}}


def _to_json(value):
    return value.astype("U").tolist() if value.dtype == object else value.tolist()


def _from_json(value, info):
    """A tensor proto; every JSON value must have the type that the signature declares."""
    dtype = np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype)
    kinds = {"f": (int, float), "u": (int,), "i": (int,), "b": (bool,)}[dtype.kind]
    leaves = [value]
    while leaves and isinstance(leaves[0], list):
        if not all(isinstance(leaf, list) for leaf in leaves):
            raise invalid("JSON Value found at incorrect level")
        leaves = [item for leaf in leaves for item in leaf]
    for leaf in leaves:
        if type(leaf) not in kinds:
            raise invalid(f"JSON Value: {leaf!r:.80} is not of expected type: {dtype}")
    try:
        with np.errstate(over="raise"):
            array = np.array(value, np.int64 if dtype.kind in "iu" else dtype)
            return tf.make_tensor_proto(array.astype(dtype))  # wraps integers around
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise invalid(f"Cannot convert JSON value to {dtype}: {error}") from error
