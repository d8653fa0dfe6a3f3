"""Scores a run as the paper does.

python -m rainbow_tf.evaluate --run_dir=runs/qbert/rainbow/seed_1 --starts=noop --episodes=200
"""

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from tqdm import tqdm

from rainbow_tf.command import Command, define_snapshot_flags, wants_best
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.base import World, make_world
from rainbow_tf.evaluation.episodes import JudgedEpisode, JudgedGames, play_episodes
from rainbow_tf.evaluation.statistics import protocol_name, score_summary
from rainbow_tf.process import load_tensorflow
from rainbow_tf.runs.folder import read_config
from rainbow_tf.runs.store import write_atomically
from rainbow_tf.scoring.normalise import human_normalised
from rainbow_tf.starts import file as starts_module
from rainbow_tf.starts.environment import StartWorld
from rainbow_tf.starts.file import StartFile

_COLUMNS = ("episode", "score", "length", "start", "value_mean", "return_mean", "outside_support")


class Setting(NamedTuple):
    """The world that is played in, and where its episodes begin."""

    world: World
    protocol: str
    starts: list[str]  # of every episode
    origin: str | None  # who recorded the starts
    about: dict[str, Any]  # what else the summary says of the starts


def run(values: flags.FlagValues) -> None:
    """Plays the episodes, writes their scores, and prints a summary."""
    config = _config(values)
    is_best = wants_best(values)
    start_file = _read_starts(values, config)
    # TensorFlow takes seconds to load: flags are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.runs.weights import load_actor

    num_envs = min(values.num_envs, values.episodes)
    setting = _setting(values, config, start_file, num_envs)
    actor, frames = load_actor(
        config, setting.world.spec, is_best=is_best, checkpoint=values.checkpoint, seed=values.seed
    )
    games = JudgedGames(actor, setting.world, config=config)
    try:
        finished = play_episodes(games, num_lanes=num_envs, episodes=values.episodes)
        episodes = dict(_shown(finished, values.episodes, games))
    finally:
        setting.world.close()
    ordered = [episodes[number] for number in range(values.episodes)]
    summary = {
        "game": config.game,
        "environment": config.environment,
        "agent": config.agent,
        "seed": config.seed,
        "frames": frames,
        "snapshot": "best" if is_best else "latest" if values.checkpoint is None else "checkpoint",
        "checkpoint": values.checkpoint,
        **score_summary(ordered),
        "human_normalised": _normalised(config, setting, ordered),
        "protocol": setting.protocol,
        "starts_origin": setting.origin,
        **setting.about,
        "eval_noise": config.eval_noise and config.noisy,
        "eval_epsilon": config.eval_epsilon,
        "eval_seed": values.seed,
        "num_envs": num_envs,
        "max_episode_frames": config.max_episode_frames,
        "discount": config.discount,
        "clip_rewards": config.clip_rewards,
        "support": [config.v_min, config.v_max] if config.distributional else None,
        # What a value speaks of, and so what it is held against.
        "returns_end_at": "life" if config.game and config.terminal_on_life_loss else "episode",
    }
    folder = config.folder / "evaluations" / setting.protocol.replace("/", "_")
    _write(folder, _rows(ordered, setting.starts), summary)
    print(_table(summary))
    print(f"Scores and summary are in {folder}.")


def _config(values: flags.FlagValues) -> Config:
    """The run's settings, with those of this evaluation."""
    if values.run_dir is None:
        raise ConfigError("Give --run_dir, the run to evaluate.")
    config = read_config(Path(values.run_dir))
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
) -> Setting:
    # Lost lives as in training: values speak of returns that end there. Games go on all the same.
    if start_file is None:
        world = make_world(config, num_envs=num_envs, seed=values.seed, training=True)
        start = "noop" if config.game is not None else "reset"
        about = {"noop_max": config.noop_max} if config.game is not None else {}
        return Setting(world, protocol_name(config), [start] * values.episodes, None, about)
    points = starts_module.sample_points(start_file, values.episodes, seed=values.seed)
    origin = start_file.origin
    return Setting(
        world=StartWorld(config=config, starts=start_file, points=points, num_envs=num_envs),
        protocol=f"{config.protocol}/{origin}",
        starts=[str(point) for point in points],
        origin=origin,
        about={
            "start_file": start_file.path.name,
            "start_trajectories": len(start_file.trajectories),
        },
    )


def _shown(
    finished: Iterable[tuple[int, JudgedEpisode]], total: int, games: Any
) -> Iterator[tuple[int, JudgedEpisode]]:
    """The same episodes, with a bar."""
    is_person = sys.stderr.isatty()
    scores = []
    with tqdm(
        total=total, unit="episode", file=sys.stderr, mininterval=0.5 if is_person else 30.0
    ) as bar:
        for number, episode in finished:
            scores.append(episode.score)
            # Not the mean so far: the first to finish are the short ones.
            bar.set_postfix_str(f"{games.steps:,} steps, last {episode.score:g}", refresh=False)
            bar.update()
            yield number, episode


def _normalised(
    config: Config, setting: Setting, episodes: Sequence[JudgedEpisode]
) -> float | None:
    """Percent of a person's score; there is none for starts that no person recorded."""
    if config.game is None or setting.origin in ("policy", "random"):
        return None
    mean = float(np.mean([episode.score for episode in episodes]))
    return human_normalised(config.game, mean, "noop" if setting.origin is None else "human")


def _rows(episodes: Sequence[JudgedEpisode], starts: Sequence[str]) -> str:
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
        write_atomically(folder / "scores.csv", lambda file: file.write(rows.encode()))
        write_atomically(folder / "summary.json", lambda file: file.write(text.encode()))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}); make room or give another --run_dir."
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
        "world": summary["game"] or summary["environment"],
        "agent": f"{summary['agent']}, seed {summary['seed']}, {summary['snapshot']} weights "
        f"after {summary['frames']:,} frames",
        "protocol": summary["protocol"],
        "episodes": f"{summary['episodes']}, {summary['length_mean']:.0f} steps on average",
        "score": f"{score}, median {summary['score_median']:.1f}, "
        f"from {summary['score_min']:g} to {summary['score_max']:g}",
        "of human": "-" if of_human is None else f"{of_human:.1f} %",
        "values": check,
    }
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    define_snapshot_flags(values)
    flags.DEFINE_enum(
        "starts",
        "noop",
        ["noop", "human"],
        "noop: up to the run's --noop_max no-ops. human: points in the first half of the games of "
        "a --start_file; the protocol says who played these.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "start_file", None, "Recorded starts, for --starts=human.", flag_values=values
    )
    flags.DEFINE_integer("episodes", 200, "Whole games to play.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer(
        "num_envs", 8, "Lanes stepped together.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_bool(
        "eval_noise",
        None,
        "Keep the noise of the noisy layers; by default as the run did.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "eval_epsilon",
        None,
        "Share of random actions; by default as the run did.",
        lower_bound=0,
        upper_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "seed", 1, "Seed of the starts and of random actions.", lower_bound=0, flag_values=values
    )


COMMAND = Command(
    about=str(__doc__),
    define_flags=define_flags,
    run=run,
    example="give --run_dir",
    interrupted="interrupted; nothing was written.",
)

if __name__ == "__main__":
    COMMAND.main()
