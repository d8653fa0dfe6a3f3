"""The load tool, and the client under load: many clients, few threads, one bad neighbour."""

import re
import threading
import time

import grpc
import numpy as np
import psutil
import pytest
from model_server import StatusError
from test_malformed import malformed_grpc
from test_model_server import send

from rainbow_tf.export.client import ServingError, TensorSpec
from rainbow_tf.export.load import Load, random_inputs, run_load

FULL = pytest.mark.stress


@pytest.mark.parametrize("kind", ["grpc", "rest"])
def test_the_command_prints_rates_and_percentiles(server, run_command, kind):
    address = server.address if kind == "grpc" else server.url
    result = run_command(
        "load", f"--server={address}", "--model=wobbly", "--clients=3", "--seconds=0.3"
    )
    assert result.status == 0, result.stderr
    count, rate = re.search(
        r"([\d,]+) requests answered in \S+ s, (\S+) per", result.stdout
    ).groups()
    assert int(count.replace(",", "")) == server.requests >= 3
    assert float(rate.replace(",", "")) > 0
    assert "; 0 failed, 0 retries" in result.stdout
    found = re.search(
        r"latency: p50 (\S+) ms, p90 (\S+) ms, p99 (\S+) ms, p100 (\S+) ms", result.stdout
    )
    latencies = [float(text) for text in found.groups()]
    assert 0 < latencies[0] <= latencies[1] <= latencies[2] <= latencies[3]


def test_errors_are_counted_by_kind():
    errors = [ServingError("slow.", "DEADLINE_EXCEEDED"), ServingError("full.", "UNAVAILABLE")]
    text = str(Load([0.001] * 9, [*errors, errors[1]], 4, 3.0))
    assert text.startswith("9 requests answered in 3.0 s, 3.0 per second; 3 failed, 4 retries\n")
    assert text.endswith(
        "UNAVAILABLE: 2 requests, such as: full.\nDEADLINE_EXCEEDED: 1 requests, such as: slow."
    )


def test_a_server_that_answers_nothing_is_an_error(run_command, server):
    server.faults += [StatusError(grpc.StatusCode.INTERNAL, "out of luck")] * 10_000
    arguments = [f"--server={server.address}", "--model=wobbly", "--clients=1", "--seconds=0.1"]
    result = run_command("load", *arguments)
    assert result.status == 1
    assert re.search(r"INTERNAL: \d+ requests, such as: .*out of luck", result.stdout)
    assert "answered no request; see above" in result.stderr
    result = run_command("load", "--server=http://localhost:1", "--model=x", "--timeout=0.1")
    assert result.status == 1
    assert "No server answers at http://localhost:1" in result.stderr
    assert "Give --server" in run_command("load").stderr


def test_random_inputs_fill_the_range_of_their_type():
    specs = {
        kind: TensorSpec(np.dtype(kind), (None, 50, 50)) for kind in ("uint8", "bool", "float32")
    }
    inputs = random_inputs(specs, 2, np.random.default_rng(0))
    assert all(inputs[kind].shape == (2, 50, 50) for kind in specs)
    assert all(inputs[kind].dtype == kind for kind in specs)
    assert (inputs["uint8"].min(), inputs["uint8"].max()) == (0, 255)
    assert 0.4 < inputs["bool"].mean() < 0.6


@pytest.fixture
def neighbour():
    """A function that runs a client of malformed requests beside the test."""
    stop, threads = threading.Event(), []

    def start(server, pause=0.0):
        def annoy():
            rng = np.random.default_rng(0)
            while not stop.wait(pause):
                send(server, np.ones((rng.integers(1, 4), rng.integers(5, 9))))

        threads.append(threading.Thread(target=annoy))
        threads[0].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def measure(server, connect, *, clients, seconds, retry=True):
    policies = [connect("grpc", server, retry=retry) for _ in range(clients)]
    load = run_load(policies, seconds=seconds, batch_size=1)
    print(f"\n{clients} clients, retry={retry}: {load}")
    return load


@pytest.mark.parametrize(
    ("seconds", "delay"), [(1, 0.01), pytest.param(60, 0, marks=FULL)]
)  # a short test needs slow answers, so that requests meet
def test_32_clients_of_8_threads_lose_no_request(
    start_server, models, connect, monkeypatch, seconds, delay
):
    server = start_server({"cartpole_v1": models["cartpole_v1"]}, max_threads=8)
    predict = server.predict
    monkeypatch.setattr(server, "predict", lambda r: time.sleep(delay) or predict(r))
    without = measure(server, connect, clients=32, seconds=max(seconds / 4, 1), retry=False)
    assert {error.status for error in without.errors} == {"RESOURCE_EXHAUSTED"}
    load = measure(server, connect, clients=32, seconds=seconds)
    assert not load.errors, str(load)
    assert load.retried > 0


@pytest.mark.parametrize("seconds", [0.5, pytest.param(60, marks=FULL)])
def test_a_bad_neighbour_costs_nothing_without_batching(
    start_server, models, connect, neighbour, seconds
):
    server = start_server({"cartpole_v1": models["cartpole_v1"]})
    neighbour(server)
    assert not measure(server, connect, clients=8, seconds=seconds, retry=False).errors


@pytest.mark.parametrize(
    ("seconds", "pause"),
    [(1, 0.02), pytest.param(60, 0.02, marks=FULL), pytest.param(60, 0, marks=FULL)],
)
def test_with_batching_a_retry_saves_requests_from_a_bad_neighbour(
    start_server, models, connect, neighbour, seconds, pause
):
    server = start_server({"cartpole_v1": models["cartpole_v1"]}, batching=True)
    neighbour(server, pause)
    without = measure(server, connect, clients=8, seconds=seconds, retry=False)
    load = measure(server, connect, clients=8, seconds=seconds)
    assert {error.status for error in without.errors} == {"FAILED_PRECONDITION"}
    lost = [len(x.errors) / (len(x.errors) + len(x.latencies)) for x in (without, load)]
    print(f"lost {lost[0]:.1%} without retry, {lost[1]:.1%} with it")
    assert lost[1] < lost[0]


@pytest.mark.stress
def test_memory_stays_flat_over_10_000_malformed_requests(start_server, models, connect, caplog):
    caplog.set_level("CRITICAL")  # gRPC logs bytes that it cannot decode
    server = start_server({"cartpole_v1": models["cartpole_v1"]})
    rng, process = np.random.default_rng(0), psutil.Process()
    codes, sizes = set(), []
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        started = time.monotonic()
        for number in range(10_000):
            with pytest.raises(grpc.RpcError) as error:
                ask(malformed_grpc(rng), timeout=20)
            codes.add(error.value.code().name)
            if number % 1000 == 999:
                sizes.append(process.memory_info().rss / 2**20)
    print(f"\n{codes} in {time.monotonic() - started:.0f} s; MB after each 1,000: {sizes}")
    assert codes == {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL"}
    assert sizes[-1] < sizes[1] + 3
    load = measure(server, connect, clients=4, seconds=1)
    assert not load.errors
