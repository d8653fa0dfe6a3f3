"""Scores runs as the paper does.

python -m rainbow_tf.evaluate --run_dir=runs/qbert/rainbow/seed_1 --starts=noop --episodes=200
python -m rainbow_tf.evaluate --runs=runs/ --snapshot=latest     # every run below the folder
"""

import csv
import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from absl import flags

from rainbow_tf.command import SNAPSHOT_FLAGS, Command, Flag, run_settings, wanted_snapshot
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.console import table
from rainbow_tf.environments.base import Environment, make_environment
from rainbow_tf.evaluation.episodes import EvaluatedEpisode, evaluate
from rainbow_tf.evaluation.statistics import protocol_name, score_summary
from rainbow_tf.files import inside, read_json
from rainbow_tf.process import load_tensorflow
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.scoring.normalise import references
from rainbow_tf.scoring.runs import run_folders
from rainbow_tf.starts import file as starts_module
from rainbow_tf.starts.environment import StartEnvironment
from rainbow_tf.starts.file import StartFile

_COLUMNS = ("episode", "score", "length", "start", "value_mean", "return_mean", "outside_support")


def run(values: flags.FlagValues) -> None:
    """Evaluates one run, or every run below a folder."""
    if (values.run_dir is None) == (values.runs is None):
        raise ConfigError("Give --run_dir, the run to evaluate, or --runs, a folder of runs.")
    if values.runs is not None:
        _evaluate_all(values)
    else:
        _evaluate(values)


def _evaluate_all(values: flags.FlagValues) -> None:
    """Evaluates the runs below a folder, some at a time; skips those that are done."""
    if values.starts != "noop" or values.checkpoint is not None:
        raise ConfigError("--runs takes neither --starts=human nor --checkpoint; give --run_dir.")
    folders = list(run_folders(Path(values.runs)))
    if not folders:
        raise ConfigError(f"--runs={values.runs} holds no run; give a folder of runs.")
    todo = [folder for folder in folders if not _is_done(values, folder)]
    print(f"Runs: {len(folders)}, already evaluated: {len(folders) - len(todo)}.", flush=True)
    shared = [
        values[name].serialize()
        for name in values
        if values[name].present and name not in ("runs", "parallel")
    ]

    def evaluate(folder: Path) -> tuple[Path, subprocess.CompletedProcess]:
        command = [sys.executable, "-m", "rainbow_tf.evaluate", *shared, f"--run_dir={folder}"]
        return folder, subprocess.run(command, capture_output=True, text=True, check=False)

    failed = 0
    with futures.ThreadPoolExecutor(values.parallel) as pool:
        for folder, process in pool.map(evaluate, todo):
            failed += process.returncode != 0
            text = process.stdout if process.returncode == 0 else process.stderr.splitlines()[-1]
            print(f"{folder}\n{text}", flush=True)
    if failed:
        raise ConfigError(f"{failed} of {len(todo)} runs failed; rerun the command to retry them.")


def _is_done(values: flags.FlagValues, folder: Path) -> bool:
    """Whether the run has this evaluation already."""
    try:
        config = _config(values, folder)
        summary = read_json(_folder(config, protocol_name(config)) / "summary.json")
    except ConfigError:  # its own process says what is wrong
        return False
    wanted = {
        "episodes": values.episodes,
        "snapshot": wanted_snapshot(values, config),
        "eval_epsilon": config.eval_epsilon,
        "eval_noise": config.eval_noise and config.noisy,
        "eval_seed": values.seed,
    }
    return wanted.items() <= summary.items()


def _folder(config: Config, protocol: str) -> Path:
    return inside(config.folder, f"evaluations/{protocol.replace('/', '_')}")


def _evaluate(values: flags.FlagValues) -> None:
    """Plays the episodes, writes their scores, and prints a summary."""
    config = _config(values, Path(values.run_dir))
    _folder(config, protocol_name(config))  # refuses a link before anything is played
    snapshot = wanted_snapshot(values, config)
    start_file = _read_starts(values, config)
    # TensorFlow takes seconds to load: flags are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.runs.weights import load_policy

    num_envs = min(values.num_envs, values.episodes)
    environment, starts, about = _setting(values, config, start_file, num_envs)
    policy, frames = load_policy(config, snapshot, seed=values.seed)
    episodes = evaluate(policy, environment, config=config, episodes=values.episodes)
    scores = score_summary(episodes)
    summary = {
        "game": config.game,
        "environment": config.environment,
        "agent": config.agent,
        "seed": config.seed,
        "frames": frames,
        "snapshot": "checkpoint" if isinstance(snapshot, int) else snapshot,
        "checkpoint": values.checkpoint,
        **scores,
        "human_normalised": _normalised(config, scores["score_mean"], about["starts_origin"]),
        **about,
        "eval_noise": config.eval_noise and config.noisy,
        "eval_epsilon": config.eval_epsilon,
        "eval_seed": values.seed,
        "num_envs": num_envs,
        "max_episode_frames": config.max_episode_frames,
        "discount": config.discount,
        "clip_rewards": config.clip_rewards,
        "support": [config.v_min, config.v_max] if config.has_support else None,
        # Where returns end, for predicted values and obtained returns alike.
        "returns_end_at": "life" if config.game and config.terminal_on_life_loss else "episode",
    }
    folder = _folder(config, about["protocol"])
    _write(folder, _rows(episodes, starts), summary)
    print(_table(summary))
    print(f"Scores and summary are in {folder}.")


def _config(values: flags.FlagValues, folder: Path) -> Config:
    """The run's settings, with those of this evaluation."""
    config = run_settings(values, folder)
    if values.eval_noise and not config.noisy:
        raise ConfigError("--eval_noise has nothing to keep: this agent has no noisy layers.")
    given = {name: values[name].value for name in ("eval_noise", "eval_epsilon")}
    return dataclasses.replace(config, **{k: v for k, v in given.items() if v is not None})


def _read_starts(values: flags.FlagValues, config: Config) -> StartFile | None:
    if values.starts == "noop":
        if values.start_file is not None:
            raise ConfigError("--start_file is for --starts=human; give both or neither.")
        return None
    if values.start_file is None:
        raise ConfigError(
            "--starts=human needs --start_file; record one with python -m rainbow_tf.record_starts."
        )
    start_file = starts_module.read(Path(values.start_file))
    starts_module.check_fits(start_file, config)
    return start_file


def _setting(
    values: flags.FlagValues, config: Config, start_file: StartFile | None, num_envs: int
) -> tuple[Environment, list[str], dict[str, Any]]:
    """The environment to play, the start of every episode, and the starts for the summary."""
    about: dict[str, Any]
    if start_file is None:
        environment = make_environment(config, num_envs=num_envs, seed=values.seed)
        about = {"protocol": protocol_name(config), "starts_origin": None}
        about |= {"noop_max": config.noop_max} if config.game is not None else {}
        start = "noop" if config.game is not None else "reset"
        return environment, [start] * values.episodes, about
    points = starts_module.sample_points(start_file, values.episodes, seed=values.seed)
    about = {
        "protocol": f"{config.protocol}/{start_file.origin}",
        "starts_origin": start_file.origin,
        "start_file": start_file.path.name,
        "start_trajectories": len(start_file.trajectories),
    }
    lanes = StartEnvironment(config=config, starts=start_file, points=points, num_envs=num_envs)
    return lanes, [str(point) for point in points], about


def _normalised(config: Config, mean: float, origin: str | None) -> float | None:
    """Human-normalised score in percent; None for starts that no person recorded."""
    if config.game is None or origin in ("policy", "random"):
        return None
    return references("noop" if origin is None else "human")[config.game].percent(mean)


def _rows(episodes: Sequence[EvaluatedEpisode], starts: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number, (episode, start) in enumerate(zip(episodes, starts, strict=True)):
        writer.writerow({"episode": number, "start": start, **episode._asdict()})
    return text.getvalue()


def _write(folder: Path, rows: str, summary: dict[str, Any]) -> None:
    text = json.dumps(summary, indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "scores.csv", rows.encode())
        write_atomically(folder / "summary.json", text.encode())
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}); free the disk or move the run."
        ) from error


def _table(summary: dict[str, Any]) -> str:
    of_human = summary["human_normalised"]
    stderr = summary["score_stderr"]
    outside = summary["outside_support"]
    score = f"mean {summary['score_mean']:.1f}"
    if stderr is not None:
        score += f" +- {stderr:.1f} (standard error)"
    check = f"predicted {summary['value_mean']:.2f}, obtained {summary['return_mean']:.2f}"
    if outside is not None:
        low, high = summary["support"]
        check += f", {100 * outside:.1f} % of returns outside [{low:g}, {high:g}]"
    rows = {
        "environment": summary["game"] or summary["environment"],
        "agent": f"{summary['agent']}, seed {summary['seed']}, {summary['snapshot']} weights "
        f"after {summary['frames']:,} frames",
        "protocol": summary["protocol"],
        "episodes": f"{summary['episodes']}, {summary['length_mean']:.0f} steps on average",
        "score": f"{score}, median {summary['score_median']:.1f}, "
        f"from {summary['score_min']:g} to {summary['score_max']:g}",
        "of human": "-" if of_human is None else f"{of_human:.1f} %",
        "values": check,
    }
    return table(rows)


OPTIONS = SNAPSHOT_FLAGS | {
    "runs": Flag(None, "Folder of runs to evaluate, instead of --run_dir."),
    "parallel": Flag(2, "Runs evaluated at a time with --runs.", minimum=1, maximum=1024),
    "starts": Flag(
        "noop",
        "noop: up to the run's --noop_max no-ops. human: points in the first half of the recorded "
        "games of a --start_file; the protocol names who played them.",
        choices=("noop", "human"),
    ),
    "start_file": Flag(None, "Recorded starts, for --starts=human."),
    "episodes": Flag(200, "Episodes to play.", minimum=1, maximum=1_000_000),
    "num_envs": Flag(8, "Environments stepped together.", minimum=1, maximum=1024),
    "eval_noise": Flag(None, "Keep the noise of the noisy layers; default: as in training.", bool),
    "eval_epsilon": Flag(None, "Epsilon; default: as in training.", float, minimum=0, maximum=1),
    "seed": Flag(1, "Seed of the starts and of random actions.", minimum=0, maximum=2**31 - 1),
}
COMMAND = Command(
    options=OPTIONS,
    run=run,
    example="give --run_dir",
    interrupted="interrupted; nothing was written.",
)

if __name__ == "__main__":
    COMMAND.main()
