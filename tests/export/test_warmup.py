import pytest
import tensorflow as tf

from rainbow_tf.export import saved_model
from rainbow_tf.export.saved_model import export_policy


def test_one_request_per_signature_and_batch_size(qbert_model):
    prediction_log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = qbert_model / "1" / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(path)):
        request = prediction_log.PredictionLog.FromString(record.numpy()).predict_log.request
        shapes = {k: tf.make_ndarray(v).shape for k, v in request.inputs.items()}
        found.append((request.model_spec.signature_name, shapes))
    assert found == [
        (name, shapes)
        for name, make in {
            "serving_default": lambda b: {"observations": (b, 84, 84, 4)},
            "from_frames": lambda b: {"frames": (b, 4, 2, 210, 160, 3)},
            "risk": lambda b: {"observations": (b, 84, 84, 4), "alpha": (b,)},
            "metadata": lambda b: {"query": (b,)},
        }.items()
        for shapes in (make(1), make(8))
    ]
    assert path.stat().st_size < 10_000


def test_without_the_serving_api_there_are_no_warmup_requests(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    monkeypatch.setattr(saved_model.importlib.util, "find_spec", lambda name: None)
    export = export_policy(network, output_dir=tmp_path, **settings)
    assert not (export.folder / "assets.extra").exists()
