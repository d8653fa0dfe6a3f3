"""Servers that send anything, or nothing: each answer is a sentence, soon, and stays small."""

import contextlib
import json
import random
import socket
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from fuzz import mutate_json
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from rainbow_tf.export import answers
from rainbow_tf.export.client import RestPolicy, ServingError

OBSERVATIONS = {"observations": np.ones((2, 4), np.float32)}
TENSOR = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "4"}]}}
ACTIONS = {"dtype": "DT_INT32", "tensor_shape": {"dim": [{"size": "-1"}]}}
VALUES = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "2"}]}}
SIGNATURE = {"inputs": {"observations": TENSOR}, "outputs": {"actions": ACTIONS, "q": VALUES}}
METADATA = {"metadata": {"signature_def": {"signature_def": {"serving_default": SIGNATURE}}}}
GOOD = {"outputs": {"actions": [0, 1], "q": [[0.5, 1], [2, 3.5]]}}


@pytest.fixture
def serve():
    """A function that starts a server which runs `reply(connection)` for each connection."""
    with contextlib.ExitStack() as stack:

        def start(reply):
            listener = stack.enter_context(socket.create_server(("localhost", 0)))
            # A shutdown wakes the thread that accepts; closing alone does not.
            stack.callback(listener.shutdown, socket.SHUT_RDWR)

            def accept():
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        with connection, contextlib.suppress(OSError):
                            connection.recv(65536)
                            reply(connection)

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            return f"http://localhost:{listener.getsockname()[1]}"

        yield start


def drip(connection, pieces):
    for piece in pieces:
        connection.sendall(piece)
        time.sleep(0.02)


def ask(connect, url, *, timeout=0.3):
    started = time.monotonic()
    with pytest.raises(ServingError) as error:
        connect("rest", url, timeout=timeout).signature()
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 450
    return time.monotonic() - started, text


HEAD = b"HTTP/1.1 200 OK\r\n"
SLOW = {
    "silence": lambda c: time.sleep(2),
    "dripping status": lambda c: drip(c, [b"H"] * 100),
    "dripping headers": lambda c: drip(c, [HEAD] + [b"X-A: b\r\n"] * 100),
    "dripping body": lambda c: drip(c, [HEAD, b"Content-Length: 1000\r\n\r\n"] + [b" "] * 100),
    "dripping chunks": lambda c: drip(
        c, [HEAD, b"Transfer-Encoding: chunked\r\n\r\n"] + [b"1\r\n \r\n"] * 100
    ),
    "dripping error": lambda c: drip(
        c, [b"HTTP/1.1 400 Bad\r\nContent-Length: 999\r\n\r\n"] + [b" "] * 100
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_answer_ends_at_the_deadline(serve, connect, name):
    seconds, text = ask(connect, serve(SLOW[name]))
    assert seconds < 1
    assert "did not answer within 0.3 s" in text


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_large_answer_is_not_read(serve, connect, monkeypatch, status, is_chunked):
    monkeypatch.setattr(answers, "MOST_BYTES", 10_000)
    sent = []

    def reply(connection):
        kind = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 100000000000"
        connection.sendall(b"HTTP/1.1 " + status + b"\r\n" + kind + b"\r\n\r\n")
        piece = b"3e8\r\n" + b" " * 1000 + b"\r\n" if is_chunked else b" " * 1000
        for _ in range(100_000):
            connection.sendall(piece)
            sent.append(1000)

    _, text = ask(connect, serve(reply), timeout=20)
    assert "no message as large as this (above 10,000 bytes)" in text
    assert sum(sent) < 10**7, "the client reads on"


def test_a_large_grpc_answer_is_not_read(connect, monkeypatch):
    monkeypatch.setattr(answers, "MOST_BYTES", 10_000)
    with grpc_server(lambda request, context: b" " * 10_001) as address:
        with pytest.raises(ServingError, match=r"no message as large as this .*10001 vs") as error:
            connect("grpc", address, retry=True).signature()
        assert error.value.status == "TOO_LARGE", "and not overloaded, which is retried"


def test_redirects_are_not_followed(server, serve, connect):
    target = f"{server.url}/v1/models/cartpole_v1/metadata".encode()
    head = b"HTTP/1.1 302 Found\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"
    _, text = ask(connect, serve(lambda c: c.sendall(head)))
    assert "is not TensorFlow Serving (HTTP 302; redirects are not followed)" in text
    assert not server.peers


def http_answer(body, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize(
    "body", [b"<html>Hello</html>", b"{}", b"[1]", b'{"metadata": 3}', b"[" * 100_000, b"\xff\xfe"]
)
def test_another_program_is_reported(serve, connect, body):
    _, text = ask(connect, serve(lambda c: c.sendall(http_answer(body))), timeout=5)
    assert "is not TensorFlow Serving" in text


def test_an_answer_that_is_cut_short_is_no_answer(serve, connect):
    _, text = ask(connect, serve(lambda c: c.sendall(http_answer(b"{}" * 99)[:-9])))
    assert "No server answers" in text
    assert "cut short" in text


def test_escape_sequences_of_a_server_are_not_shown(serve, connect):
    error = json.dumps({"error": "\x1b[2J\x1b]0;title\a no"}).encode()
    _, text = ask(connect, serve(lambda c: c.sendall(http_answer(error, b"400 Bad"))))
    assert "refused the request: ?[2J?]0;title? no" in text
    names = json.loads(json.dumps(METADATA).replace("serving_default", "\\u001b[31mred"))
    _, text = ask(connect, serve(lambda c: c.sendall(http_answer(json.dumps(names).encode()))))
    assert "it has ?[31mred" in text


class Replies(RestPolicy):
    """A client whose server answers with these documents."""

    def __init__(self, metadata, answer):
        super().__init__("http://localhost:1", model="cartpole", timeout=5, retry=False)
        self._answers = {"/metadata": metadata, ":predict": answer}

    def _fetch(self, request, timeout):
        path = request[0].removeprefix("/v1/models/cartpole")
        return json.loads(json.dumps(self._answers[path]))


def test_a_good_answer_is_used():
    outputs = Replies(METADATA, GOOD).predict(OBSERVATIONS)
    np.testing.assert_array_equal(outputs["actions"], np.int32([0, 1]))
    np.testing.assert_array_equal(outputs["q"], np.float32([[0.5, 1], [2, 3.5]]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actions", [0]),
        ("actions", [0, 1, 1]),
        ("actions", [[0, 1]]),
        ("actions", [0.5, 1]),
        ("actions", [2**31, 0]),
        ("actions", [True, False]),
        ("actions", ["0", "1"]),
        ("actions", [None, 0]),
        ("actions", {"0": 1}),
        ("actions", 7),
        ("q", [[1, 2, 3], [1, 2, 3]]),
        ("q", [[1], [1, 2]]),
        ("q", [[1e300, 0], [0, 0]]),
        ("q", None),
        ("actions", []),
    ],
)
def test_an_answer_that_does_not_fit_the_signature_is_refused(name, value):
    answer = {"outputs": GOOD["outputs"] | {name: value}}
    with pytest.raises(ServingError, match=r"unexpected response|signature says"):
        Replies(METADATA, answer).predict(OBSERVATIONS)
    del answer["outputs"][name]
    with pytest.raises(ServingError, match=r"unexpected response|signature says"):
        Replies(METADATA, answer).predict(OBSERVATIONS)


@pytest.mark.parametrize("value", [7, [7], [[7]] * 3])
def test_outputs_of_an_unknown_shape_have_a_row_for_each_observation(value):
    text = json.dumps(METADATA).replace(
        json.dumps(VALUES), json.dumps(VALUES | {"tensor_shape": {}})
    )
    answer = {"outputs": GOOD["outputs"] | {"q": value}}
    with pytest.raises(ServingError, match="signature says"):
        Replies(json.loads(text), answer).predict(OBSERVATIONS)
    assert Replies(json.loads(text), GOOD).predict(OBSERVATIONS)["q"].shape == (2, 2)


def outputs_or_none(policy):
    """The outputs of a policy, or none if they were refused in a sentence."""
    try:
        return policy.predict(OBSERVATIONS)
    except ServingError as error:
        text = str(error)
    assert text.isprintable()
    assert len(text) < 1000
    return None


@pytest.mark.parametrize("cases", [2_000, pytest.param(50_000, marks=pytest.mark.stress)])
def test_random_answers_give_sentences_or_arrays_of_the_signature(cases):
    rng = random.Random(0)
    answered = 0
    for _ in range(cases):
        metadata, answer = METADATA, GOOD
        if rng.random() < 0.5:
            metadata = mutate_json(METADATA, rng)
        else:
            answer = mutate_json(GOOD, rng)
        policy = Replies(metadata, answer)
        if (outputs := outputs_or_none(policy)) is not None:
            answered += 1
            for name, spec in policy.signature().outputs.items():
                assert outputs[name].dtype == spec.dtype
    assert 0 < answered < cases / 2


@contextlib.contextmanager
def grpc_server(reply):
    """A server that answers every gRPC method with the bytes that `reply` returns."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(reply)

    server = grpc.server(futures.ThreadPoolExecutor(2), [Handler()])
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


def grpc_metadata():
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def["serving_default"]
    for side, name, dtype, sizes in (
        (signature.inputs, "observations", tf.float32, (-1, 4)),
        (signature.outputs, "actions", tf.int32, (-1,)),
    ):
        side[name].dtype = dtype.as_datatype_enum
        for size in sizes:
            side[name].tensor_shape.dim.add(size=size)
    response.metadata["signature_def"].Pack(signatures)
    return response.SerializeToString()


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.stress)])
def test_random_grpc_answers_give_sentences(connect, cases, caplog):
    caplog.set_level("CRITICAL")  # gRPC logs bytes that it cannot decode
    rng = np.random.default_rng(0)
    good = predict_pb2.PredictResponse()
    good.outputs["actions"].CopyFrom(tf.make_tensor_proto(np.int32([0, 1])))
    replies = {"GetModelMetadata": grpc_metadata(), "Predict": good.SerializeToString()}
    damaged = ["Predict"]

    def reply(request, context):
        # The requests differ: that for metadata names it.
        name = "GetModelMetadata" if b"signature_def" in request else "Predict"
        content = bytearray(replies[name])
        if name == damaged[0]:
            for _ in range(rng.integers(1, 4)):
                content[rng.integers(len(content))] = rng.integers(256)
        return bytes(content)

    answered = 0
    with grpc_server(reply) as address:
        policy = connect("grpc", address)
        for case in range(cases):
            damaged[0] = "Predict" if case % 2 else "GetModelMetadata"
            policy._signatures = None
            if (outputs := outputs_or_none(policy)) is not None:
                answered += 1
                assert outputs.get("actions", np.zeros(2)).shape == (2,)
    assert 0 < answered < cases


def test_a_small_grpc_answer_cannot_stand_for_a_huge_array(connect):
    bomb = predict_pb2.PredictResponse()
    bomb.outputs["actions"].CopyFrom(tf.make_tensor_proto(np.int32(1), tf.int32, (1,)))
    bomb.outputs["actions"].tensor_shape.dim[0].size = 2**28  # a gigabyte
    replies = {True: grpc_metadata(), False: bomb.SerializeToString()}
    server = grpc_server(lambda request, context: replies[b"signature_def" in request])
    with server as address, pytest.raises(ServingError, match="unexpected response"):
        connect("grpc", address).predict(OBSERVATIONS)
