"""The command rainbow-tf: one entry point for all commands."""

import importlib
import sys

from rainbow_tf import __version__
from rainbow_tf.config import hint
from rainbow_tf.console import table
from rainbow_tf.process import INTERRUPTED

# Imported on demand: TensorFlow takes seconds to load.
COMMANDS = {
    "train": ("rainbow_tf.main", "trains an agent"),
    "sweep": ("rainbow_tf.sweep", "trains many agents on many games, on Ray"),
    "evaluate": ("rainbow_tf.evaluate", "scores a run as the paper does"),
    "watch": ("rainbow_tf.watch", "records a video of a run's policy"),
    "report": ("rainbow_tf.report", "tables and figures of runs"),
    "record_starts": ("rainbow_tf.record_starts", "records starts for evaluation"),
    "export": ("rainbow_tf.export.__main__", "exports a run's policy as a SavedModel"),
    "check": ("rainbow_tf.export.check", "checks whether TF Serving can load an export"),
    "serve": ("rainbow_tf.export.serve", "starts TF Serving with an export"),
    "load": ("rainbow_tf.export.load", "measures a model server under load"),
    "play": ("rainbow_tf.export.play", "plays with an exported policy"),
    "push": ("rainbow_tf.push", "writes a run as a model for the Hugging Face Hub"),
    "benchmark": ("rainbow_tf.benchmark", "measures the agent on this machine"),
}


def main() -> None:
    """Runs the command named first, with the flags after it."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print("Rainbow (Hessel et al. 2018) in TensorFlow: rainbow-tf COMMAND --flag=value ...\n")
        print(table({name: does for name, (_, does) in COMMANDS.items()}))
        print("\nrainbow-tf COMMAND --help shows its flags.")
        return
    if name == "--version":
        print(f"rainbow_tf {__version__}")
        return
    if name not in COMMANDS:
        way_out = hint(name, COMMANDS, f"there are {', '.join(COMMANDS)}.")
        sys.exit(f"rainbow_tf: '{name}' is not a command; {way_out}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the working folder, as with python -m
    try:
        module = importlib.import_module(COMMANDS[name][0])
    except KeyboardInterrupt:
        print("rainbow_tf: interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    module.COMMAND.main([name, *arguments])


if __name__ == "__main__":
    main()
