"""A run as a model folder for the Hugging Face Hub."""

import sys
from types import SimpleNamespace

import huggingface_hub as hub
import numpy as np
import yaml

import rainbow_tf
from rainbow_tf.agent.networks import make_network
from rainbow_tf.config import Config
from rainbow_tf.runs.folder import environment_spec
from rainbow_tf.runs.store import Best
from rainbow_tf.runs.weights import write_best


def test_the_folder_loads_and_is_uploaded(run_command, tmp_path, monkeypatch):
    run_dir, out, config = tmp_path, tmp_path / "hub", Config(environment="CartPole-v1", seed=7)
    command = ("push", f"--run_dir={run_dir}", f"--out={out}", "--repo=me/cartpole")
    (run_dir / "config.json").write_text(config.to_json())
    assert "no best weights" in run_command(*command).stderr
    network = make_network(config, environment_spec(config), seed=2, name="online")
    write_best(run_dir, network, Best(1234, 87.25, 20, "gymnasium"))
    for module, message in ((None, "[hub]"), (SimpleNamespace(get_token=lambda: None), "HF_TOKEN")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "huggingface_hub", module)
            assert message in run_command(*command).stderr
    assert not out.exists()

    monkeypatch.setattr(hub, "get_token", lambda: "token")
    monkeypatch.setattr(hub, "create_repo", lambda repo, exist_ok: f"https://hub/{repo}")
    monkeypatch.setattr(hub, "upload_folder", lambda repo_id, folder_path: None)
    result = run_command(*command)
    assert result.stdout.endswith("Uploaded to https://hub/me/cartpole.\n"), result.stderr
    assert {"README.md", "best", "model", "replay.mp4"} < {path.name for path in out.iterdir()}
    _, front, page = (out / "README.md").read_text().split("---\n", 2)
    (scored,) = yaml.safe_load(front)["model-index"][0]["results"]
    assert scored["dataset"]["name"] == "CartPole-v1"
    assert scored["metrics"][0]["value"] == 87.2
    assert "protocol `gymnasium`) after 1,234 frames" in page
    agent = rainbow_tf.load(out)
    assert (agent.frames, agent.act(np.zeros(4, np.float32)) in (0, 1)) == (1234, True)
    assert "exists already" in run_command(*command).stderr
