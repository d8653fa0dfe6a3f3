"""The files in export/serving, parsed as the server parses them."""

import importlib.resources
import re
import shutil
import urllib.error
import urllib.request

import pytest
import yaml
from google.protobuf import descriptor_pb2, message_factory, text_format, wrappers_pb2
from model_server import MAX_BATCH_SIZE
from tensorflow_serving.config import model_server_config_pb2

from rainbow_tf.export.client import Policy

FOLDER = importlib.resources.files("rainbow_tf.export") / "serving"
FIELD = descriptor_pb2.FieldDescriptorProto


def read(name):
    return (FOLDER / name).read_text()


# Fields of TensorFlow Serving's monitoring_config.proto and session_bundle_config.proto, which
# are missing in tensorflow-serving-api.
NUMBER = ".google.protobuf.Int64Value"
MESSAGES = {
    "PrometheusConfig": {"enable": FIELD.TYPE_BOOL, "path": FIELD.TYPE_STRING},
    "MonitoringConfig": {"prometheus_config": ".PrometheusConfig"},
    "BatchingParameters": {
        "max_batch_size": NUMBER,
        "batch_timeout_micros": NUMBER,
        "max_enqueued_batches": NUMBER,
        "num_batch_threads": NUMBER,
        "thread_pool_name": ".google.protobuf.StringValue",
        "allowed_batch_sizes": FIELD.TYPE_INT64,
        "pad_variable_length_inputs": FIELD.TYPE_BOOL,
    },
}


@pytest.fixture(scope="module")
def messages():
    """An empty message of each type, by name."""
    wrappers = descriptor_pb2.FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(wrappers)
    file = descriptor_pb2.FileDescriptorProto(
        name="serving.proto", syntax="proto3", dependency=[wrappers.name]
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            is_list = field == "allowed_batch_sizes"
            label = FIELD.LABEL_REPEATED if is_list else FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = FIELD.TYPE_MESSAGE, kind
            else:
                added.type = kind
    classes = message_factory.GetMessages([wrappers, file])
    return {name: classes[name]() for name in MESSAGES}


def test_models_config():
    config = text_format.Parse(read("models.config"), model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert model.name == "qbert"
    assert model.base_path == "/models/qbert"
    assert model.model_platform == "tensorflow"
    assert model.model_version_policy.latest.num_versions == 2


def test_batching_config(messages):
    config = text_format.Parse(read("batching.config"), messages["BatchingParameters"])
    assert config.max_batch_size.value == Policy.max_batch_size == MAX_BATCH_SIZE
    sizes = list(config.allowed_batch_sizes)
    assert sizes == sorted(sizes)
    assert sizes[-1] == config.max_batch_size.value, "otherwise the server does not start"
    assert config.num_batch_threads.value > 0


def test_monitoring_config(messages):
    config = text_format.Parse(read("monitoring.config"), messages["MonitoringConfig"])
    assert config.prometheus_config.enable
    pod = next(yaml.safe_load_all(read("kubernetes.yaml")))["spec"]["template"]
    assert config.prometheus_config.path == pod["metadata"]["annotations"]["prometheus.io/path"]


@pytest.fixture
def compose():
    return yaml.safe_load(read("compose.yaml"))["services"]["policy"]


@pytest.fixture
def kubernetes():
    """Deployment, Service and NetworkPolicy, and the one container."""
    documents = list(yaml.safe_load_all(read("kubernetes.yaml")))
    assert [d["kind"] for d in documents] == ["Deployment", "Service", "NetworkPolicy"]
    (container,) = documents[0]["spec"]["template"]["spec"]["containers"]
    return *documents, container


def test_compose_and_kubernetes_start_the_same_server(compose, kubernetes):
    *_, service, _, container = kubernetes
    assert compose["command"] == container["args"]
    assert [port["containerPort"] for port in container["ports"]] == [8500, 8501]
    assert [port["port"] for port in service["spec"]["ports"]] == [8500, 8501]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"models": "/models", "serving": "/serving"}
    assert [volume.rsplit(":", 2)[1] for volume in compose["volumes"]] == ["/models", "/serving"]
    files = re.findall(r"=/serving/(\S+)", " ".join(container["args"]))
    assert len(files) == 2
    assert all((FOLDER / name).is_file() for name in files)


def test_threads_are_set_and_batching_is_a_choice(compose):
    assert "--grpc_max_threads=64" in compose["command"]
    assert not any("batching" in argument for argument in compose["command"])
    assert "# - --enable_batching=true" in read("compose.yaml")


def test_the_server_cannot_write_and_is_not_root(compose, kubernetes):
    assert compose["read_only"]
    assert compose["user"] == "65534"
    assert compose["cap_drop"] == ["ALL"]
    assert all(volume.endswith(":ro") for volume in compose["volumes"])
    deployment, _, _, container = kubernetes
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_memory_is_limited_and_health_is_probed(compose, kubernetes):
    assert compose["mem_limit"] == "2g"
    container = kubernetes[-1]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "2Gi"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models/qbert/metadata"
    assert container["livenessProbe"]["tcpSocket"] == {"port": "grpc"}


def test_the_readiness_probe_fails_until_a_version_is_loaded(start_server, models, tmp_path):
    (tmp_path / "1").mkdir()
    server = start_server({"qbert": tmp_path})
    url = f"{server.url}/v1/models/qbert/metadata"
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        urllib.request.urlopen(url)
    error.value.close()
    shutil.copytree(models["qbert"] / "1", tmp_path / "2")
    server.load_versions()
    with urllib.request.urlopen(url) as response:
        assert response.status == 200


def test_nothing_is_exposed_beyond_the_machine_or_the_cluster(compose, kubernetes):
    assert compose["ports"] == ["127.0.0.1:8500:8500", "127.0.0.1:8501:8501"]
    deployment, service, network, _ = kubernetes
    assert service["spec"]["type"] == "ClusterIP"
    spec = network["spec"]
    assert (
        spec["podSelector"] == deployment["spec"]["selector"] == {"matchLabels": {"app": "policy"}}
    )
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec
    (rule,) = spec["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"policy-client": "true"}}}]


def test_the_page_explains_every_setting():
    page = read("README.md")
    settings = re.findall(r"^      (?:# )?- (--\w+)", read("compose.yaml"), re.MULTILINE)
    assert len(settings) == 8
    settings += re.findall(r"^(\w+)", read("batching.config"), re.MULTILINE)
    for setting in settings:
        assert setting in page
