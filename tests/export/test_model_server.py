"""The stand-in does what a real TensorFlow Serving was seen to do, and the client copes with it."""

import json
import shutil
import threading
import time
import urllib.request

import grpc
import model_server
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from rainbow_tf.export import check
from rainbow_tf.export.client import ServingError

GOOD = {"observations": np.ones((2, 4), np.float32)}


def send(server, observations, *, timeout=20.0):
    """Sends observations of any shape over gRPC; the status."""
    request = predict_pb2.PredictRequest(
        model_spec={"name": "cartpole_v1"},
        inputs={"observations": tf.make_tensor_proto(np.float32(observations))},
    )
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        try:
            ask(request.SerializeToString(), timeout=timeout)
            return "OK"
        except grpc.RpcError as error:
            return error.code().name


@pytest.fixture
def cartpoles(models):
    return {"cartpole_v1": models["cartpole_v1"]}


def test_more_requests_than_threads_are_refused_and_retried(start_server, cartpoles, connect):
    server = start_server(cartpoles, max_threads=2)
    released = threading.Event()
    server.faults += [released.wait] * 2
    busy = [threading.Thread(target=send, args=(server, np.ones((1, 4)))) for _ in range(2)]
    for thread in busy:
        thread.start()
    while server.requests < 2:
        time.sleep(0.01)
    with pytest.raises(ServingError, match=r"overloaded \(Server Threadpool Exhausted\)"):
        connect("grpc", server).predict(GOOD)
    patient = connect("grpc", server, retry=True)
    threading.Timer(0.3, released.set).start()
    assert patient.predict(GOOD)["actions"].shape == (2,)
    assert patient.retried > 0
    for thread in busy:
        thread.join()


@pytest.mark.parametrize("retry", [False, True])
def test_a_request_of_another_shape_spoils_the_batch(
    start_server, cartpoles, connect, monkeypatch, retry
):
    monkeypatch.setattr(model_server, "BATCH_TIMEOUT_SECONDS", 0.2)
    server = start_server(cartpoles, batching=True)
    policy = connect("grpc", server, retry=retry)
    policy.signature()
    bad = threading.Thread(target=send, args=(server, np.ones((2, 5))))
    bad.start()
    time.sleep(0.05)
    if retry:
        assert policy.predict(GOOD)["actions"].shape == (2,)
        assert policy.retried == 1
    else:
        with pytest.raises(ServingError, match="different tasks have different shapes"):
            policy.predict(GOOD)
    bad.join()


def test_requests_of_one_shape_share_a_batch(start_server, cartpoles, connect, monkeypatch):
    monkeypatch.setattr(model_server, "BATCH_TIMEOUT_SECONDS", 0.2)
    server = start_server(cartpoles, batching=True)
    servable = server._servables["cartpole_v1"][10]
    sizes, run = [], servable._run_feeds
    monkeypatch.setattr(
        servable, "_run_feeds", lambda s, feeds: sizes.append(len(feeds[0])) or run(s, feeds)
    )
    policies = [connect("grpc", server) for _ in range(3)]
    states = np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32)
    found = [None] * 3

    def ask(i):
        found[i] = policies[i].predict({"observations": states[i]})["q_values"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [3]
    expected = connect("grpc", server).predict({"observations": states[:, 0]})["q_values"]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-6)


def test_empty_batches_hang_and_keep_their_threads(start_server, cartpoles, connect):
    server = start_server(cartpoles, batching=True, max_threads=2)
    for _ in range(2):
        assert send(server, np.ones((0, 4)), timeout=0.2) == "DEADLINE_EXCEEDED"
    assert send(server, np.ones((1, 4))) == "RESOURCE_EXHAUSTED"
    policy = connect("rest", server)
    with pytest.raises(ServingError, match="at least 1"):
        policy.predict({"observations": np.ones((0, 4), np.float32)})


def test_integers_out_of_range_wrap_around_over_rest(server):
    def ask(pixel):
        screens = np.zeros((1, 84, 84, 4), int)
        screens[0, 5, 5, 0] = pixel
        body = json.dumps({"inputs": {"observations": screens.tolist()}}).encode()
        with urllib.request.urlopen(f"{server.url}/v1/models/qbert:predict", body) as response:
            return response.read()

    assert ask(300) == ask(300 - 256) != ask(255)


def test_a_batch_above_the_limit_is_refused(batching_server):
    assert send(batching_server, np.ones((64, 4))) == "OK"
    assert send(batching_server, np.ones((65, 4))) == "INVALID_ARGUMENT"


def test_a_damaged_version_stays_loading(models, start_server, tmp_path, connect, run_command):
    folder = shutil.copytree(models["wobbly"], tmp_path / "wobbly")
    shutil.copytree(folder / "1", folder / "2")
    server = start_server({"wobbly": folder})
    policy = connect("rest", server, "wobbly")
    assert policy.versions() == {1: "AVAILABLE", 2: "AVAILABLE"}
    shutil.copytree(folder / "1", folder / "3")
    (folder / "3" / "saved_model.pb").write_bytes(b"\x08")
    server.load_versions()
    assert policy.versions() == {2: "AVAILABLE", 3: "LOADING"}
    assert policy.predict(GOOD)["actions"].shape == (2,), "the version before is served"
    shutil.copytree(models["wobbly"] / "1", folder / "3", dirs_exist_ok=True)
    server.load_versions()
    assert policy.versions() == {2: "AVAILABLE", 3: "AVAILABLE"}


def test_the_check_notices_a_version_that_is_not_served(
    server, models, monkeypatch, tmp_path, run_command
):
    monkeypatch.setattr(check, "check_apart", lambda folder: [])
    arguments = [f"--server={server.url}", "--timeout=0.2"]
    result = run_command("check", models["cartpole_v1"], *arguments)
    assert result.status == 0, result.stderr
    assert result.stdout.endswith(f"{models['cartpole_v1']}/10 is AVAILABLE at {server.url}.\n")
    (tmp_path / "12").mkdir()
    result = run_command("check", tmp_path, "--model=cartpole_v1", *arguments)
    assert result.status == 1
    assert "12 is not AVAILABLE at" in result.stderr
    assert "the server has 9 AVAILABLE, 10 AVAILABLE; see its log" in result.stderr
