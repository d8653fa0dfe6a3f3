"""Starts TensorFlow Serving for a model: rainbow-tf serve --model_dir=models/qbert.

It runs tensorflow_model_server, or its container image with docker or podman, and is not a server
itself. Without any of them it prints the commands. The newest version is checked first.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from absl import flags

from rainbow_tf.command import Command, Flag
from rainbow_tf.config import ConfigError
from rainbow_tf.export.check import check_apart, find_versions

BINARY, IMAGE, ENGINES = "tensorflow_model_server", "tensorflow/serving", ("docker", "podman")
FILES = Path(__file__).resolve().parent / "serving"
# Each request keeps a thread until it is answered; by default there are only 4 for each core.
SETTINGS = (
    "--grpc_max_threads=64",
    "--file_system_poll_wait_seconds=5",
    "--rest_api_timeout_in_ms=10000",
)


def server_commands(base: Path, values: flags.FlagValues) -> dict[str, list[str]]:
    """The command of each program that can serve the model folder `base`, by the program's name."""
    model = values.model or base.name
    port, rest_port = values.port, values.rest_port

    def settings(files: str) -> list[str]:
        batched = ["--enable_batching=true", f"--batching_parameters_file={files}/batching.config"]
        monitored = [f"--monitoring_config_file={files}/monitoring.config"]
        return [*SETTINGS, *monitored, *(batched if values.batching else [])]

    commands = {
        BINARY: [
            *(BINARY, f"--port={port}", f"--rest_api_port={rest_port}"),
            *(f"--model_name={model}", f"--model_base_path={base}", *settings(str(FILES))),
        ]
    }
    for engine in ENGINES:
        commands[engine] = [
            *(engine, "run", "--rm", "--read-only", "--cap-drop=ALL"),
            *("--security-opt=no-new-privileges", f"--user={os.getuid() or 65534}"),
            # Only this machine reaches the ports.
            *(f"--publish=127.0.0.1:{port}:8500", f"--publish=127.0.0.1:{rest_port}:8501"),
            *(f"--volume={base}:/models/{model}:ro", f"--volume={FILES}:/serving:ro"),
            *(f"--env=MODEL_NAME={model}", IMAGE, *settings("/serving")),
        ]
    return commands


def run(values: flags.FlagValues) -> None:
    """Checks the newest version, then becomes the server."""
    if values.model_dir is None:
        raise ConfigError("Give --model_dir, the folder of an exported model.")
    newest = find_versions(Path(values.model_dir))[-1].resolve()
    commands = server_commands(newest.parent, values)
    found = next((name for name in commands if shutil.which(name) is not None), None)
    if values.dry_run or found is None:
        print("\n".join(shlex.join(command) for command in commands.values()))
    if found is None:
        raise ConfigError(
            f"No server was started: {', '.join(commands)} are not installed; install one of them "
            "and run its command above."
        )
    if values.dry_run:
        return
    problems = check_apart(newest)
    if problems:
        raise ConfigError(f"{newest} is not served: {' '.join(problems)}")
    print(shlex.join(commands[found]))
    sys.stdout.flush()
    os.execvp(found, commands[found])


COMMAND = Command(
    options={
        "model_dir": Flag(None, "Folder of the model, which holds its versions."),
        "model": Flag(None, "Name by which clients ask for it; by default the folder's."),
        "port": Flag(8500, "Port of gRPC.", minimum=1, maximum=65535),
        "rest_port": Flag(8501, "Port of REST and metrics.", minimum=1, maximum=65535),
        "batching": Flag(
            False,
            "Run requests that arrive together as one batch. Only if all clients are trusted: a "
            "wrong request fails those that share its batch.",
        ),
        "dry_run": Flag(False, "Print the commands, and start none."),
    },
    run=run,
    example="settings look like --model_dir=models/qbert",
)

if __name__ == "__main__":
    COMMAND.main()
