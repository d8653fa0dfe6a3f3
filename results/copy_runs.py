"""Copies what this folder keeps of runs: python results/copy_runs.py runs results/pong/runs.

Settings, CSV files and evaluations, without checkpoints, weights and events.
"""

import json
import shutil
import sys
from pathlib import Path

KEPT = ("train.csv", "eval.csv", "evaluations/*/scores.csv", "evaluations/*/summary.json")


def main() -> None:
    """Copies every run below the first folder to the second one."""
    source, target = map(Path, sys.argv[1:])
    for config in sorted(source.rglob("config.json")):
        folder = config.parent
        copy = target / folder.relative_to(source)
        copy.mkdir(parents=True, exist_ok=True)
        settings = json.loads(config.read_text()) | {"run_dir": None}
        (copy / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        for path in (path for pattern in KEPT for path in folder.glob(pattern)):
            place = copy / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        print(copy)


if __name__ == "__main__":
    main()
