"""A real server, where one is installed: tensorflow_model_server or the official image."""

import importlib.resources
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid

import grpc
import numpy as np
import pytest

from rainbow_tf.export.client import GrpcPolicy, SavedModelPolicy, ServingError
from rainbow_tf.export.load import run_load

IMAGE = "tensorflow/serving"
SERVING = importlib.resources.files("rainbow_tf.export") / "serving"
BINARY = "tensorflow_model_server"


def engine_with_image():
    """A container engine that has the image, or None and the reason."""
    reasons = []
    for engine in ("docker", "podman"):
        if shutil.which(engine) is None:
            reasons.append(f"no {engine}")
            continue
        try:
            command = [engine, "image", "inspect", IMAGE]
            result = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            reasons.append(f"{engine} does not answer")
            continue
        if result.returncode == 0:
            return engine, ""
        lines = result.stderr.strip().splitlines() or ["no message"]
        reasons.append(f"{engine} shows no image {IMAGE} ({lines[-1]})")
    return None, ", ".join(reasons)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def real_server(models, tmp_path_factory):
    """Addresses of a real server of all models with the settings in export/serving."""
    engine, reason = (None, "") if shutil.which(BINARY) else engine_with_image()
    if engine is None and shutil.which(BINARY) is None:
        pytest.skip(f"no real server: no {BINARY} on PATH, {reason}")
    folder = tmp_path_factory.mktemp("serving")
    base = next(iter(models.values())).parent
    inside = "/models" if engine else str(base)
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{inside}/{name}" model_platform: "tensorflow" }}\n'
        for name in models
    )
    (folder / "models.config").write_text(f"model_config_list {{\n{entries}}}\n")
    for name in ("batching.config", "monitoring.config"):
        (folder / name).write_text((SERVING / name).read_text())
    settings = "/serving" if engine else str(folder)
    arguments = [
        f"--model_config_file={settings}/models.config",
        "--enable_batching=true",
        f"--batching_parameters_file={settings}/batching.config",
        f"--monitoring_config_file={settings}/monitoring.config",
        "--grpc_max_threads=64",
    ]
    ports, name = (free_port(), free_port()), f"rainbow_tf_{uuid.uuid4().hex}"
    if engine is None:
        start = [BINARY, f"--port={ports[0]}", f"--rest_api_port={ports[1]}"]
    else:
        start = [engine, "run", "--rm", "--name", name]
        start += ["-p", f"{ports[0]}:8500", "-p", f"{ports[1]}:8501"]
        start += ["-v", f"{base}:/models:ro", "-v", f"{folder}:/serving:ro", IMAGE]
    log = (folder / "log").open("w+")
    process = subprocess.Popen([*start, *arguments], stdout=log, stderr=log)
    try:
        policy = GrpcPolicy(f"localhost:{ports[0]}", model="qbert", timeout=10, retry=False)
        deadline = time.monotonic() + 120
        while True:
            try:
                policy.signature()
                break
            except ServingError:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"the server did not start: {log.read()[-3000:]}")
                time.sleep(0.5)
        yield {"grpc": f"localhost:{ports[0]}", "rest": f"http://localhost:{ports[1]}"}
    finally:
        if engine is not None:
            subprocess.run([engine, "stop", name], capture_output=True, timeout=60)
        process.terminate()
        process.wait(60)
        log.close()


@pytest.mark.parametrize("model", ["cartpole_v1", "qbert", "minatar_breakout_v1"])
def test_answers_equal_those_in_process(real_server, models, connect, model):
    local = SavedModelPolicy(models[model])
    spec = local.signature().inputs["observations"]
    rng = np.random.default_rng(1)
    observations = (100 * rng.random((3, *spec.shape[1:]))).astype(spec.dtype)
    inputs = {"observations": observations, "alpha": np.array([0.1, 0.5, 1], np.float32)}
    for kind, address in real_server.items():
        policy = connect(kind, address, model, retry=True)
        answer, expected = policy.predict(inputs, "risk"), local.predict(inputs, "risk")
        for key, value in expected.items():
            np.testing.assert_allclose(answer[key], value, rtol=1e-5, atol=1e-5)


def test_missing_model_is_reported(real_server, connect):
    for kind, address in real_server.items():
        with pytest.raises(ServingError, match="has no model 'pong'"):
            connect(kind, address, "pong").signature()


def test_the_newest_version_is_available(real_server, connect):
    assert connect("rest", real_server["rest"]).versions()[10] == "AVAILABLE"


@pytest.mark.parametrize("kind", ["grpc", "rest"])
def test_32_clients_lose_no_request(real_server, connect, kind):
    policies = [connect(kind, real_server[kind], retry=True) for _ in range(32)]
    load = run_load(policies, seconds=5, batch_size=1)
    print(load)
    assert load.latencies
    assert not load.errors


def test_malformed_requests_are_refused(real_server):
    from test_malformed import malformed_grpc

    rng = np.random.default_rng(3)
    with grpc.insecure_channel(real_server["grpc"]) as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for _ in range(200):
            with pytest.raises(grpc.RpcError):
                ask(malformed_grpc(rng), timeout=20)


def test_prometheus_metrics(real_server):
    url = f"{real_server['rest']}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url, timeout=20) as response:
        assert b"tensorflow" in response.read()
