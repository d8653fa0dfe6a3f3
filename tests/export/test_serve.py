"""The command that starts TensorFlow Serving; the server itself is not installed here."""

import os
import shlex

import pytest
import yaml

from rainbow_tf.export import serve


@pytest.fixture
def run_serve(run_command, monkeypatch, tmp_path):
    """A function that runs the command where these programs are installed; what it started."""
    (tmp_path / "models" / "qbert" / "3").mkdir(parents=True)
    (tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    started = []
    monkeypatch.setattr(os, "execvp", lambda program, command: started.append(command))
    monkeypatch.setattr(serve, "check_apart", lambda version: [])

    def run(*arguments, installed=()):
        for name in installed:
            (tmp_path / "programs" / name).touch(mode=0o755)
        started.clear()
        result = run_command("serve", f"--model_dir={tmp_path}/models/qbert", *arguments)
        return result, list(started)

    return run


def test_the_program_is_started_with_our_files_and_settings(run_serve, tmp_path):
    result, (command,) = run_serve("--port=7", installed=["tensorflow_model_server", "docker"])
    assert result.status == 0, result.stderr
    assert shlex.split(result.stdout) == command
    assert command[:5] == [
        "tensorflow_model_server",
        "--port=7",
        "--rest_api_port=8501",
        "--model_name=qbert",
        f"--model_base_path={tmp_path}/models/qbert",
    ]
    assert "--grpc_max_threads=64" in command
    assert f"--monitoring_config_file={serve.FILES}/monitoring.config" in command
    assert not any("batching" in flag for flag in command)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_is_closed_to_the_network_and_cannot_write(run_serve, tmp_path, engine):
    _, (command,) = run_serve("--batching", "--model=other", installed=[engine])
    assert command[:3] == [engine, "run", "--rm"]
    before, after = command[: command.index(serve.IMAGE)], command[command.index(serve.IMAGE) :]
    for option in (
        "--read-only",
        "--cap-drop=ALL",
        "--publish=127.0.0.1:8500:8500",
        "--publish=127.0.0.1:8501:8501",
        f"--volume={tmp_path}/models/qbert:/models/other:ro",
        "--env=MODEL_NAME=other",
    ):
        assert option in before
    assert "--user=0" not in before
    assert "--grpc_max_threads=64" in after
    assert "--batching_parameters_file=/serving/batching.config" in after


def test_the_settings_are_those_of_the_container_files():
    compose = yaml.safe_load((serve.FILES / "compose.yaml").read_text())["services"]["policy"]
    assert set(serve.SETTINGS) <= set(compose["command"])


def test_without_a_program_the_commands_are_printed(run_serve):
    result, started = run_serve()
    assert (result.status, started) == (1, [])
    programs = [shlex.split(line)[0] for line in result.stdout.splitlines()]
    assert programs == ["tensorflow_model_server", "docker", "podman"]
    assert "No server was started" in result.stderr
    result, started = run_serve("--dry_run", installed=["podman"])
    assert (result.status, started) == (0, [])
    assert len(result.stdout.splitlines()) == 3


def test_a_version_that_cannot_be_served_is_not(run_serve, monkeypatch):
    monkeypatch.setattr(serve, "check_apart", lambda version: ["it is damaged."])
    result, started = run_serve(installed=["docker"])
    assert (result.status, started) == (1, [])
    assert result.stderr.endswith("models/qbert/3 is not served: it is damaged.\n")
