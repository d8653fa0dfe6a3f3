"""A thousand malformed requests: each gets an error, and the server stays up."""

import json
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from model_server import Servable, StatusError
from tensorflow_serving.apis import predict_pb2

GOOD = {"observations": np.ones((2, 4), np.float32)}
DTYPES = [np.float64, np.int32, np.uint8, np.int64, np.bool_, np.complex64, np.float16]


def random_name(rng):
    return "".join(rng.choice(list("abcxyz_/.:é\n"), size=rng.integers(1, 30)))


def good_request():
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "cartpole_v1"
    request.inputs["observations"].CopyFrom(tf.make_tensor_proto(GOOD["observations"]))
    return request


def random_shape(rng):
    if rng.random() < 0.5:  # the right count of numbers in another shape
        return [(2, 2, 2), (2, 1, 4), (4, 2), (8,)][rng.integers(4)]
    while True:
        shape = tuple(rng.integers(0, 6, size=rng.integers(0, 5)))
        if len(shape) != 2 or shape[1] != 4:
            return shape


def malformed_grpc(rng):
    """The bytes of a request that is wrong in one way."""
    request = good_request()
    tensor = request.inputs["observations"]
    kind = rng.integers(12)
    if kind == 0:
        return rng.bytes(rng.integers(1, 200))
    if kind == 1:
        tensor.CopyFrom(tf.make_tensor_proto(np.ones((2, 4), rng.choice(DTYPES))))
    elif kind == 2:
        tensor.CopyFrom(tf.make_tensor_proto(np.ones(random_shape(rng), np.float32)))
    elif kind == 3:
        tensor.tensor_content = rng.bytes(rng.choice([1, 3, 31, 33, 4096]))
    elif kind == 4:
        request.model_spec.signature_name = random_name(rng)
    elif kind == 5:
        request.model_spec.name = random_name(rng)
    elif kind == 6:
        request.inputs[random_name(rng)].CopyFrom(tensor)
    elif kind == 7:
        request.ClearField("inputs")
    elif kind == 8:
        request.model_spec.version.value = int(rng.integers(11, 2**62))
    elif kind == 9:  # a huge size without content
        tensor.ClearField("tensor_content")
        tensor.tensor_shape.dim[rng.integers(2)].size = int(rng.integers(2**40, 2**62))
    elif kind == 10:
        tensor.tensor_shape.dim[rng.integers(2)].size = -int(rng.integers(1, 2**40))
    else:
        tensor.tensor_shape.unknown_rank = True
        tensor.dtype = int(rng.integers(2, 200))
    return request.SerializeToString()


def malformed_rest(rng):
    """Path and body of a request that is wrong in one way."""
    path = "/v1/models/cartpole_v1:predict"
    inputs = {"observations": GOOD["observations"].tolist()}
    document = {"signature_name": "serving_default", "inputs": inputs}
    kind = rng.integers(9)
    if kind == 0:
        return path, rng.bytes(rng.integers(0, 200))
    if kind == 1:
        return path, json.dumps(document).encode()[: rng.integers(1, 60)]
    if kind == 2:
        inputs["observations"] = np.ones(random_shape(rng)).tolist()
    elif kind == 3:
        strange = ["a", None, True, {}, {"b64": "AA=="}, [], [[1.0]], 10**400]
        inputs["observations"][0][rng.integers(4)] = strange[rng.integers(len(strange))]
    elif kind == 4:
        document["signature_name"] = [random_name(rng), 3, None, {}][rng.integers(4)]
    elif kind == 5:
        del document["inputs"]
    elif kind == 6:
        document["inputs"] = [[], 3, None, "x"][rng.integers(4)]
    elif kind == 7:
        return path, b"[" * int(rng.integers(1, 100_000))
    else:
        paths = ["/", "/v1/models/pong:predict", "/v1/models/cartpole_v1/versions/77:predict"]
        path = [*paths, "/v1/models/cartpole_v1:dance", "/v1/models/:predict"][rng.integers(5)]
    return path, json.dumps(document).encode()


@pytest.fixture
def stays_up(server, connect):
    """Checks before and after the test that good requests are answered alike."""
    asked = [connect("grpc", server), connect("rest", server)]
    before = [policy.predict(GOOD) for policy in asked]
    yield
    for policy, answer in zip(asked, before, strict=True):
        for key, value in policy.predict(GOOD).items():
            np.testing.assert_array_equal(value, answer[key])


@pytest.mark.usefixtures("stays_up")
def test_malformed_grpc_requests(server, caplog):
    caplog.set_level("CRITICAL")  # gRPC logs bytes that it cannot decode
    rng = np.random.default_rng(1)
    codes = set()
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for _ in range(600):
            request = malformed_grpc(rng)
            with pytest.raises(grpc.RpcError) as error:
                ask(request, timeout=20)
            codes.add(error.value.code())
    codes -= {grpc.StatusCode.INTERNAL}  # for bytes that are not a message
    assert codes == {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    }


@pytest.mark.usefixtures("stays_up")
def test_malformed_rest_requests(server):
    rng = np.random.default_rng(2)
    for _ in range(400):
        path, body = malformed_rest(rng)
        request = urllib.request.Request(server.url + path, body)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=20)
        with error.value:
            assert error.value.code in (400, 404), (path, body)
            assert json.load(error.value)["error"]


@pytest.fixture(scope="module")
def exported(cartpole_model):
    """One version of an exported model, without a server."""
    return Servable(cartpole_model / "1", batching=False)


@pytest.mark.parametrize(
    ("signature", "shapes", "said"),
    [
        ("serving_default", {"observations": (2, 4)}, None),
        ("risk", {"observations": (2, 4), "alpha": (2,)}, None),
        # The right count of numbers in another shape: only the graph can find out.
        ("serving_default", {"observations": (2, 2, 2)}, "Shape of tensor"),
        ("serving_default", {"observations": (4, 2)}, "Shape of tensor"),
        ("serving_default", {"observations": (8,)}, "Shape of tensor"),
        ("serving_default", {"observations": (0, 4)}, "The batch is empty"),
        ("risk", {"observations": (2, 4), "alpha": (1,)}, "assertion failed"),
        ("risk", {"observations": (2, 4), "alpha": (2, 1)}, "assertion failed|Shape of"),
        ("risk", {"observations": (2, 2, 2), "alpha": (2,)}, "Shape of tensor"),
        ("metadata", {"query": (0,)}, "The batch is empty"),
        ("serving_default", {"observations": (1025, 4)}, "at most 1024 examples, not.*1025"),
        ("metadata", {"query": (10**6,)}, "at most 1024 examples, not.*1000000"),
    ],
)
def test_an_export_refuses_what_does_not_fit_its_signature(exported, signature, shapes, said):
    inputs = {
        name: tf.make_tensor_proto(np.ones(shape, np.int32 if name == "query" else np.float32))
        for name, shape in shapes.items()
    }
    if said is None:
        assert exported.run(signature, inputs)["actions"].shape == (2,)
    else:
        with pytest.raises(StatusError, match=said) as caught:
            exported.run(signature, inputs)
        assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("alpha", [0, -0.5, 1.001, np.nan, np.inf])
def test_an_export_refuses_alpha_outside_its_range(exported, alpha):
    inputs = {"observations": GOOD["observations"], "alpha": np.float32([0.5, alpha])}
    with pytest.raises(StatusError, match="alpha must be above 0 and at most 1") as caught:
        exported.run("risk", {name: tf.make_tensor_proto(v) for name, v in inputs.items()})
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("shape", [(4, 2, 84, 84, 3), (4, 2, 160, 210, 3), (4, 2, 210, 160, 1)])
def test_an_export_refuses_screens_of_another_size(qbert_model, shape):
    screens = tf.make_tensor_proto(np.zeros((1, *shape), np.uint8))
    with pytest.raises(StatusError, match=r"Shape of tensor .*210,160,3\]") as caught:
        Servable(qbert_model / "1", batching=False).run("from_frames", {"frames": screens})
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
