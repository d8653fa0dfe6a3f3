import re
import socket
import sys
import threading
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from model_server import ModelServer, StatusError

from rainbow_tf.export import client
from rainbow_tf.export.client import GrpcPolicy, RestPolicy, SavedModelPolicy, ServingError

RNG = np.random.default_rng(0)
CARTPOLE = RNG.normal(size=(3, 4)).astype(np.float32)
RISK = {"observations": CARTPOLE, "alpha": np.array([0.1, 0.5, 1.0], np.float32)}


@pytest.fixture(params=["grpc", "rest"])
def transport(request):
    return request.param


@pytest.fixture(params=["grpc", "rest", "in_process"])
def policy(request, server, models, connect):
    if request.param == "in_process":
        return SavedModelPolicy(models["cartpole_v1"])
    return connect(request.param, server)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def assert_one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert re.fullmatch(r"(--|[A-Z']).*[^.]\.", text), text
    assert len(text) < 450


def observations(model, batch):
    if model == "qbert":
        return RNG.integers(256, size=(batch, 84, 84, 4), dtype=np.uint8)
    if model == "minatar_breakout_v1":
        return RNG.random((batch, 10, 10, 4)) < 0.3
    return RNG.normal(size=(batch, 4)).astype(np.float32)


@pytest.mark.parametrize("model", ["cartpole_v1", "qbert", "minatar_breakout_v1"])
@pytest.mark.parametrize("batch", [1, 3])
def test_transports_agree(server, models, connect, transport, model, batch):
    served, local = connect(transport, server, model), SavedModelPolicy(models[model])
    inputs = {"observations": observations(model, batch)}
    risk = {**inputs, "alpha": np.linspace(0.1, 1, batch, dtype=np.float32)}
    for name, values in (("serving_default", inputs), ("risk", risk)):
        assert served.signature(name).inputs == local.signature(name).inputs
        answer, expected = served.predict(values, name), local.predict(values, name)
        assert answer.keys() == expected.keys()
        for key, value in expected.items():
            assert answer[key].dtype == value.dtype
            np.testing.assert_allclose(answer[key], value, rtol=1e-6, atol=1e-6)
        assert answer["actions"].shape == (batch,)


def test_actions_and_values_by_hand(policy):
    # It pushes to the side of angle plus angular velocity: right, left, left.
    states = np.array([[0, 0, 0.1, 0.1], [9, 9, -0.1, 0.05], [0, 0, 0.1, -0.2]], np.float32)
    answer = policy.predict({"observations": states})
    np.testing.assert_array_equal(answer["actions"], [1, 0, 0])
    np.testing.assert_allclose(answer["q_values"], [[0, 0.2], [0, -0.05], [0, -0.1]], atol=1e-6)


@pytest.mark.parametrize("transport", ["grpc", "rest"])
@pytest.mark.parametrize("batching", [False, True])
def test_metadata(server, batching_server, models, connect, transport, batching):
    query = {"query": np.zeros(2, np.int32)}
    expected = SavedModelPolicy(models["qbert"]).predict(query, "metadata")
    served = connect(transport, batching_server if batching else server, "qbert")
    answer = served.predict(query, "metadata")
    assert answer.keys() == expected.keys()
    for key, value in expected.items():
        assert answer[key].dtype == value.dtype
        np.testing.assert_array_equal(answer[key], value)
    assert answer["game"].tolist() == [b"qbert", b"qbert"]


def test_versions_start_at_zero(tmp_path):
    for name in ("0", "latest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    assert client.newest_version(tmp_path) == tmp_path / "0"


def test_the_newest_version_by_number_is_played(models):
    newest = SavedModelPolicy(models["cartpole_v1"])
    assert newest.name.endswith("10")
    wobbly = SavedModelPolicy(models["cartpole_v1"] / "9")
    falls = {"observations": np.array([[0, 0, 0.1, -0.2]], np.float32)}
    assert newest.predict(falls)["actions"] == [0]
    assert wobbly.predict(falls)["actions"] == [1]


@pytest.mark.parametrize(
    ("inputs", "signature", "said"),
    [
        ({"observations": CARTPOLE[:, :3]}, "serving_default", ["float32 [3, 3]", "[B, 4]"]),
        ({"observations": CARTPOLE[0]}, "serving_default", ["float32 [4]", "[B, 4]"]),
        ({"observations": CARTPOLE.astype(float)}, "serving_default", ["float64", "float32"]),
        ({"observations": CARTPOLE[:0]}, "serving_default", ["float32 [0, 4]", "at least 1"]),
        ({"observations": CARTPOLE}, "rsik", ["rsik", "metadata, risk, serving_default"]),
        (
            {"observation": CARTPOLE},
            "serving_default",
            ["takes 'observations'", "but 'observation' "],
        ),
        ({}, "serving_default", ["takes 'observations'", "but nothing"]),
        (
            {"observations": CARTPOLE},
            "risk",
            ["takes 'alpha' float32 [B], 'observations' float32 [B, 4]"],
        ),
        (
            {**RISK, "alpha": RISK["alpha"][:2]},
            "risk",
            ["'alpha' float32 [2], 'observations' float32 [3, 4]"],
        ),
    ],
)
def test_bad_inputs_are_one_sentence_and_are_not_sent(policy, server, inputs, signature, said):
    with pytest.raises(ServingError) as error:
        policy.predict(inputs, signature)
    assert_one_sentence(error)
    for part in said:
        assert part in str(error.value)
    assert server.requests == 0


def test_missing_model(server, connect, transport):
    with pytest.raises(ServingError, match=r"has no model 'pong'.*--model") as error:
        connect(transport, server, "pong").signature()
    assert_one_sentence(error)


def test_server_down(connect, transport):
    address = f"localhost:{free_port()}"
    policy = connect(
        transport, address if transport == "grpc" else f"http://{address}", timeout=0.3
    )
    policy.retry = True
    with pytest.raises(ServingError, match=f"No server answers at .*{address}.*refused") as error:
        policy.signature()
    assert policy.retried > 0
    assert_one_sentence(error)


@pytest.mark.parametrize("server", ["localhost:8501", "http://host:port", "ftp://host", "http://"])
def test_an_address_that_is_none(server):
    with pytest.raises(ServingError, match=rf"--server={server} is not an address") as error:
        RestPolicy(server, model="qbert", timeout=5)
    assert_one_sentence(error)


def test_unknown_host():
    policy = RestPolicy("http://no.such.host.invalid:8501", model="qbert", timeout=5, retry=False)
    with pytest.raises(ServingError, match=r"No server answers at .*--server") as error:
        policy.signature()
    assert_one_sentence(error)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("INVALID_ARGUMENT", "refused the request: the moon"),
        ("INTERNAL", "failed .*the moon.*log"),
    ],
)
def test_refused_requests_are_not_retried(server, connect, transport, code, said):
    policy = connect(transport, server, retry=True)
    policy.signature()
    server.faults.append(StatusError(getattr(grpc.StatusCode, code), "the moon\nis full"))
    with pytest.raises(ServingError, match=said) as error:
        policy.predict({"observations": CARTPOLE})
    assert_one_sentence(error)
    assert server.requests == 1


BUSY = {
    "UNAVAILABLE": StatusError(grpc.StatusCode.UNAVAILABLE, "loading"),
    "RESOURCE_EXHAUSTED": StatusError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "Server Threadpool Exhausted"
    ),
}


@pytest.mark.parametrize("status", BUSY)
def test_retries_until_the_server_takes_the_request(server, connect, transport, status):
    policy = connect(transport, server, retry=True)
    server.faults += [BUSY[status]] * 2
    assert policy.predict({"observations": CARTPOLE})["actions"].shape == (3,)
    assert (server.requests, policy.retried) == (3, 2)


@pytest.mark.parametrize("status", BUSY)
def test_without_retries_the_first_refusal_is_reported(server, connect, transport, status):
    policy = connect(transport, server)
    server.faults += [BUSY[status]]
    with pytest.raises(ServingError, match=r"loading|overloaded .*--grpc_max_threads") as error:
        policy.predict({"observations": CARTPOLE})
    assert_one_sentence(error)
    assert error.value.status == status
    assert server.requests == 1


def test_retries_end_at_the_deadline(server, connect, transport):
    policy = connect(transport, server, timeout=0.4, retry=True)
    policy.signature()
    server.faults += [BUSY["UNAVAILABLE"]] * 100
    started = time.monotonic()
    with pytest.raises(ServingError, match=r"No server answers .*loading") as error:
        policy.predict({"observations": CARTPOLE})
    assert time.monotonic() - started < 0.5
    assert_one_sentence(error)
    assert 2 < server.requests < 10


def test_a_spoiled_batch_is_retried_once(server, connect, transport):
    spoiled = StatusError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "Tensors with name 'x' from different tasks have different shapes and padding is off.",
    )
    policy = connect(transport, server, retry=True)
    server.faults.append(spoiled)
    assert policy.predict({"observations": CARTPOLE})["actions"].shape == (3,)
    server.faults += [spoiled] * 2
    with pytest.raises(ServingError, match=r"refused the request: .*different shapes") as error:
        policy.predict({"observations": CARTPOLE})
    assert_one_sentence(error)
    assert server.requests == 4


def test_waits_double_with_jitter_up_to_a_second(connect, monkeypatch):
    waits = []
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    policy = connect("rest", f"http://localhost:{free_port()}", timeout=20, retry=True)
    monkeypatch.setattr(client, "time", clock)
    with pytest.raises(ServingError):
        policy.signature()
    longest = np.minimum(0.05 * 2.0 ** np.arange(len(waits)), 1)
    shares = np.array(waits) / longest
    assert shares.min() >= 0.5
    assert shares.max() <= 1
    assert len(np.unique(shares)) == len(waits) > 20
    assert 18 < sum(waits) <= 20


def test_one_connection_is_kept(server, connect, transport):
    policy = connect(transport, server)
    for _ in range(5):
        policy.predict({"observations": CARTPOLE})
    assert (server.requests, len(server.peers)) == (5, 1)


def test_a_connection_that_the_server_closed_is_opened_again(server, connect):
    policy = connect("rest", server)
    policy.signature()
    policy.close()
    assert policy.predict({"observations": CARTPOLE})["actions"].shape == (3,)


def test_large_batches_are_sent_in_parts(models, start_server, connect, transport):
    server = start_server({"cartpole_v1": models["cartpole_v1"]}, batching=True)
    policy = connect(transport, server)
    inputs = {
        "observations": observations("cartpole_v1", 150),
        "alpha": RNG.uniform(0.1, 1, 150).astype(np.float32),
    }
    answer = policy.predict(inputs, "risk")
    assert server.requests == 3
    for key, value in SavedModelPolicy(models["cartpole_v1"]).predict(inputs, "risk").items():
        np.testing.assert_allclose(answer[key], value, rtol=1e-6)
    policy.max_batch_size = 150
    with pytest.raises(ServingError, match="refused the request: Task size 150 is larger than"):
        policy.predict(inputs, "risk")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("observations", np.nan, "'observations' holds values that are not finite"),
        ("observations", -np.inf, "'observations' holds values that are not finite"),
        ("alpha", np.nan, "'alpha' holds values that are not finite"),
        ("alpha", 0.0, "'alpha' holds values from 0 to 1; it must be above 0 and at most 1"),
        ("alpha", 1.5, "'alpha' holds values from 0.1 to 1.5; it must be above 0"),
    ],
)
def test_values_out_of_range_are_not_sent(policy, server, name, value, said):
    inputs = {key: array.copy() for key, array in RISK.items()}
    inputs[name].flat[1] = value
    with pytest.raises(ServingError, match=said) as error:
        policy.predict(inputs, "risk")
    assert_one_sentence(error)
    assert server.requests == 0


def test_a_server_that_starts_late_is_found(models, connect):
    port, server = free_port(), []
    policy = connect("grpc", f"localhost:{port}", "wobbly", retry=True)

    def start():
        time.sleep(0.4)
        server.append(ModelServer({"wobbly": models["wobbly"]}, port=port))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        assert policy.predict({"observations": CARTPOLE})["actions"].shape == (3,)
    finally:
        thread.join()
        server[0].stop()


def test_deadline(server, connect, transport):
    policy = connect(transport, server, timeout=0.3, retry=True)
    policy.signature()
    released = threading.Event()
    server.faults.append(lambda: released.wait(20))
    started = time.monotonic()
    with pytest.raises(ServingError, match=r"within 0\.3 s.*--timeout") as error:
        policy.predict({"observations": CARTPOLE})
    assert time.monotonic() - started < 5
    released.set()
    assert_one_sentence(error)
    assert server.requests == 1


def test_exchanged_ports_are_reported(server, connect):
    rest = connect("rest", f"http://{server.address}", timeout=5)
    grpc_policy = connect("grpc", server.url.removeprefix("http://"), timeout=5)
    for policy in (rest, grpc_policy):
        with pytest.raises(ServingError, match="--server") as error:
            policy.signature()
        assert_one_sentence(error)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    with pytest.raises(ServingError, match=r'pip install "rainbow_tf\[serving\]"') as error:
        GrpcPolicy("localhost:8500", model="qbert", timeout=5, retry=False)
    assert_one_sentence(error)


def test_folder_without_a_model(tmp_path):
    (tmp_path / "1").mkdir()
    with pytest.raises(ServingError, match="holds no SavedModel") as error:
        SavedModelPolicy(tmp_path)
    assert_one_sentence(error)


def test_damaged_model(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(ServingError, match="cannot be loaded") as error:
        SavedModelPolicy(tmp_path)
    assert_one_sentence(error)
