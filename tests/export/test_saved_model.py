import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from model_server import Servable
from small_agents import CARTPOLE, make_agent
from tensorflow.core.protobuf import saved_model_pb2

from rainbow_tf.config import ConfigError
from rainbow_tf.export import saved_model
from rainbow_tf.export.client import SavedModelPolicy
from rainbow_tf.export.saved_model import export_policy


def variable_names(folder):
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = model.meta_graphs[0].graph_def.node
    return [n.attr["shared_name"].s.decode() for n in nodes if n.op == "VarHandleOp"]


def test_only_the_variables_that_are_read_are_written(qbert, qbert_model):
    names = variable_names(qbert_model / "1")
    assert len(names) == 12  # A kernel and a bias of two convolutions and four dense layers.
    assert not any("sigma" in name or "seed" in name for name in names)
    data = qbert_model / "1" / "variables" / "variables.data-00000-of-00001"
    weights = [w for w in qbert[0].trainable_variables if "sigma" not in w.path]
    size = 4 * sum(int(np.prod(w.shape)) for w in weights)
    assert data.stat().st_size == pytest.approx(size, rel=0.01)


def test_a_noisy_export_draws_noise_in_every_call(cartpole, tmp_path):
    network, settings = cartpole
    folder = export_policy(network, output_dir=tmp_path, noisy=True, **settings).folder
    assert len(variable_names(folder)) == 5 * 5  # Kernel, bias, two scales and a seed per layer.
    servable = Servable(folder, batching=False)
    inputs = {"observations": tf.make_tensor_proto(np.ones((3, 4), np.float32))}
    first, second = (servable.run("serving_default", inputs)["q_values"] for _ in range(2))
    assert np.abs(first - second).min() > 0
    assert servable.run("metadata", {"query": tf.make_tensor_proto([0])})["noisy"]


def test_versions_count_up(cartpole, tmp_path):
    network, settings = cartpole
    for name in ("7", "abc", "99x"):
        (tmp_path / name).mkdir()
    folders = [export_policy(network, output_dir=tmp_path, **settings).folder for _ in range(2)]
    assert [folder.name for folder in folders] == ["8", "9"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8", "9", "99x", "abc"]


def test_a_concurrent_export_is_not_overwritten(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    rename = os.rename

    def late(source, target):
        monkeypatch.setattr(os, "rename", rename)
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    export = export_policy(network, output_dir=tmp_path, **settings)
    assert export.folder == tmp_path / "2"
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["theirs"]


def test_a_watcher_never_sees_an_incomplete_model(cartpole, tmp_path):
    network, settings = cartpole
    seen, done = [], threading.Event()

    def watch():
        while not seen and not done.is_set():
            for path in tmp_path.iterdir():
                if path.name.isdigit():
                    seen.append({file.relative_to(path) for file in path.rglob("*")})

    watcher = threading.Thread(target=watch)
    watcher.start()
    folder = export_policy(network, output_dir=tmp_path, **settings).folder
    watcher.join(30)
    done.set()
    assert seen == [{file.relative_to(folder) for file in folder.rglob("*")}]


@pytest.mark.parametrize("stage", ["write_model", "check_version", "_publish", "write_warmup"])
def test_a_failure_leaves_nothing(cartpole, tmp_path, monkeypatch, stage):
    network, settings = cartpole
    owner = saved_model.check if stage == "check_version" else saved_model
    original = getattr(owner, stage)

    def fail(*arguments, **keywords):
        if stage != "_publish":
            original(*arguments, **keywords)
        assert not [path for path in tmp_path.iterdir() if path.name.isdigit()]
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, stage, fail)
    with pytest.raises(KeyboardInterrupt):
        export_policy(network, output_dir=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_other_users_can_read_the_export(cartpole, tmp_path):
    network, settings = cartpole
    folder = export_policy(network, output_dir=tmp_path, **settings).folder
    assert folder.stat().st_mode & 0o055 == 0o055


def planted(body):
    """A signature that must not be exported."""
    specs = [tf.TensorSpec((None,), tf.float32, "x")]
    return tf.function(lambda x: {"y": body(x)}, input_signature=specs).get_concrete_function()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda x: tf.numpy_function(np.sin, [x], tf.float32), "Python"),
        (lambda x: tf.py_function(np.sin, [x], tf.float32), "Python"),
        (lambda x: tf.fill(tf.shape(x), "/home/me/table.csv"), "/home/me/table.csv"),
        (lambda x: tf.fill(tf.shape(x), '{"log": "/var/log/x"}'), "/var/log/x"),
        (tf.function(lambda x: x * x, jit_compile=True), "XLA"),
    ],
)
def test_signatures_that_cannot_be_served_are_refused(cartpole, tmp_path, monkeypatch, body, named):
    network, settings = cartpole
    make = saved_model.make_signatures
    monkeypatch.setattr(
        saved_model, "make_signatures", lambda *a, **k: {**make(*a, **k), "planted": planted(body)}
    )
    with pytest.raises(ConfigError, match="refused") as error:
        export_policy(network, output_dir=tmp_path, **settings)
    assert named in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_target_network_is_refused(cartpole, tmp_path):
    _, settings = cartpole
    network, _, _ = make_agent(CARTPOLE, name="target")
    with pytest.raises(ConfigError, match="only training needs"):
        export_policy(network, output_dir=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_a_missing_signature_is_refused(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    write = saved_model.write_model

    def forgetful(network, signatures, folder):
        write(network, {k: v for k, v in signatures.items() if k != "risk"}, folder)

    monkeypatch.setattr(saved_model, "write_model", forgetful)
    with pytest.raises(ConfigError, match="risk is missing"):
        export_policy(network, output_dir=tmp_path, **settings)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_lite_gives_the_same_answers(cartpole, tmp_path):
    network, settings = cartpole
    folder = export_policy(network, output_dir=tmp_path, lite=True, **settings).folder
    interpreter = tf.lite.Interpreter(str(folder / saved_model.LITE_FILE))
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    answers = interpreter.get_signature_runner("serving_default")(observations=observations)
    expected = SavedModelPolicy(folder).predict({"observations": observations})
    np.testing.assert_allclose(answers["q_values"], expected["q_values"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(answers["actions"], expected["actions"])


def test_an_output_that_cannot_be_written_is_one_sentence(cartpole, tmp_path):
    network, settings = cartpole
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/models cannot be written"):
        export_policy(network, output_dir=tmp_path / "file" / "models", **settings)


def test_a_full_disk_is_one_sentence(cartpole, tmp_path, monkeypatch):
    def full(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    network, settings = cartpole
    monkeypatch.setattr(saved_model, "write_model", full)
    with pytest.raises(ConfigError, match="No space left"):
        export_policy(network, output_dir=tmp_path, **settings)
    assert not list(tmp_path.iterdir())
