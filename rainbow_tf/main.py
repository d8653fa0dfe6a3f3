"""Trains an agent: python -m rainbow_tf.main --game=qbert --n_step=3."""

import re
import shlex
import signal
import sys
from pathlib import Path

from absl import flags

import rainbow_tf.flags as presets
from rainbow_tf import config as config_module
from rainbow_tf.command import StopSignals, load_tensorflow, run_command
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.runs.folder import (
    RunFolder,
    check_folder,
    check_settings,
    is_finished,
    resumes,
)
from rainbow_tf.runs.store import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    kept_best,
)
from rainbow_tf.types import BEGINNING
from rainbow_tf.video.encoder import VIDEOS, check_video

FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """Checks the settings, then trains; what a user can mend ends in one sentence."""
    if FLAGS.list_presets:
        _list_presets()
        return
    try:
        if len(arguments) > 1:
            raise ConfigError(f"'{arguments[1]}' is not a flag; settings look like --game=qbert.")
        if FLAGS.preset:  # those of the command line are flagfiles by now
            raise ConfigError("--preset is in a flagfile; give it on the command line instead.")
        config = config_module.from_flags()
        check_folder(config)
        run(config)
    except (ConfigError, CheckpointError) as error:
        sys.exit(f"rainbow_tf: {error}")
    except OSError as error:
        sys.exit(f"rainbow_tf: {error}; free the disk or give another --run_dir.")
    except KeyboardInterrupt:
        sys.exit("rainbow_tf: interrupted before training began; nothing was changed.")


def _list_presets() -> None:
    width = max(map(len, presets.names()))
    lines = [f"{name:<{width}}  {presets.sentence(name)}" for name in presets.names()]
    print("\n".join(lines))  # at once: who reads only the first closes the pipe


def run(config: Config) -> None:
    """Builds the parts, restores what an earlier process saved, and trains."""
    folder = RunFolder(config)
    store = CheckpointStore(config.folder / CHECKPOINTS)
    checkpoint = _find_checkpoint(config, folder, store)
    if checkpoint is not None and is_finished(config, checkpoint):
        print(
            f"The run in {folder.path} has its {checkpoint.state['frames']:,} frames; "
            "give a larger --frames to go on, or --restart to begin again."
        )
        return
    if config.record_period_frames > 0:
        check_video(config.folder / VIDEOS / "0.mp4")
    # TensorFlow takes seconds to load: settings are checked before it.
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.agent.learner import DivergedError
    from rainbow_tf.evaluation.evaluator import Evaluator
    from rainbow_tf.training import checkpoint as checkpoint_module
    from rainbow_tf.training.build import AnyParts, build_parts
    from rainbow_tf.training.diagnosis import write_diagnosis
    from rainbow_tf.training.loop import train
    from rainbow_tf.training.metrics import Metrics
    from rainbow_tf.training.progress import ProgressBar, describe
    from rainbow_tf.training.recorder import Recorder

    start = BEGINNING if checkpoint is None else checkpoint_module.counters(checkpoint)
    parts: AnyParts
    if config.actors > 0:
        from rainbow_tf.distributed.apex import learner as apex

        parts = apex.build_fleet(config, start.steps)
        ticks = apex.train(config, parts, start)
    else:
        parts = build_parts(config, start.steps)
        ticks = train(config, parts, start)
    frames = start.steps * config.frames_per_step
    if checkpoint is not None:
        checkpoint_module.restore(parts, store, checkpoint)
        print(f"Going on from checkpoint {checkpoint.number} at {frames:,} frames.")
    elif resumes(config):
        print(f"{config.folder} has no checkpoint yet: beginning anew.")
    print(describe(config, parts, frames), flush=True)

    stop = StopSignals(second=signal.SIG_DFL)
    folder.begin()
    bar = ProgressBar(config.frames, frames)
    metrics = Metrics(
        config=config,
        network=parts.learner.online,
        replay=parts.replay,
        frames=frames,
        evaluated=0 if checkpoint is None else checkpoint.state["evaluator"]["evaluated"],
        say=bar.say,
    )
    evaluator = Evaluator(
        config=config,
        parts=parts,
        metrics=metrics,
        is_stopping=lambda: stop.requested,
        say=bar.say,
        show=bar.show_evaluation,
    )
    checkpointer = checkpoint_module.Checkpointer(
        config=config, store=store, parts=parts, metrics=metrics, evaluator=evaluator, say=bar.say
    )
    recorder = Recorder(
        config=config,
        parts=parts,
        metrics=metrics,
        frames=frames,
        is_stopping=lambda: stop.requested,
        say=bar.say,
    )
    if checkpoint is not None:
        store.discard_newer(checkpoint.number)
        checkpointer.resume(checkpoint)
    reached = start
    try:
        if checkpoint is not None:  # What a stop or a kill left undone at this very step.
            if evaluator.observe(frames):
                checkpointer.save(start, again=True)
            if evaluator.best != kept_best(config.folder):
                evaluator.keep_best(frames)
        for tick in ticks:
            frames, reached = tick.frames, tick.counters
            metrics.observe(tick)
            bar.show(frames, metrics)
            evaluated = evaluator.observe(frames)
            checkpointer.observe(tick, now=evaluated or stop.requested)
            if evaluated:
                evaluator.keep_best(frames)
            recorder.observe(frames)
            if stop.requested:
                break
        checkpointer.save(reached)
    except DivergedError as error:
        try:
            known = f"is in {write_diagnosis(config, parts, error, frames)}"
        except OSError as full:
            known = f"could not be written to {config.folder} ({full.strerror})"
        sys.exit(
            f"rainbow_tf: {error} What is known of it {known}; a smaller --learning_rate "
            "or --clip_rewards may help."
        )
    finally:
        bar.close()
        metrics.close()
        parts.close()
    if stop.requested and (frames < config.frames or evaluator.is_due(frames)):
        _say_how_to_go_on(config, frames)
        return
    print(f"Done after {frames:,} frames; the run is in {config.folder}.")
    if config.export_dir is not None:
        from rainbow_tf.export.runs import export_run

        is_best = evaluator.best is not None
        export = export_run(config, Path(config.export_dir), is_best=is_best)
        print(f"The {'best' if is_best else 'last'} policy is in {export.folder}.")


def _say_how_to_go_on(config: Config, frames: int) -> None:
    again = [a for a in sys.argv[1:] if not re.fullmatch("--?restart(=.*)?", a)]
    again += ["--norestart"] if config.restart else []  # it may stand in a flagfile
    print(f"Stopped after {frames:,} frames. To go on:")
    print(f"  python -m rainbow_tf.main {shlex.join(again)}")


def _find_checkpoint(
    config: Config, folder: RunFolder, store: CheckpointStore
) -> Checkpoint | None:
    """The checkpoint that the run goes on from, in a folder that no other process trains in."""
    if not resumes(config):
        return None
    folder.lock()
    checkpoint, problems = store.newest_whole()
    for problem in problems:
        print(f"{problem}.")
    if checkpoint is None and problems:
        raise ConfigError(
            f"No checkpoint in {store.folder} is whole, and nothing was changed; give --restart "
            "to move the run aside and begin again, or another --run_dir."
        )
    if checkpoint is not None:
        check_settings(Config(**checkpoint.state["config"]), config)
    return checkpoint


def define_flags() -> None:
    """Defines a flag for every setting, and those of presets."""
    config_module.define_flags()
    flags.adopt_module_key_flags(config_module)
    flags.DEFINE_multi_string(
        "preset",
        [],
        "Settings by name, such as baselines/dqn or minatar. Several can be given: the later one "
        "wins, and other flags win over all of them.",
    )
    flags.DEFINE_bool("list_presets", False, "Print the presets, a sentence each, and end.")


if __name__ == "__main__":
    define_flags()
    run_command(main, rewrite=presets.expand)
