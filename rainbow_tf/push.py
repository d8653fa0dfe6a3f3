"""Writes a run as a model folder for the Hugging Face Hub, and uploads it if --repo is given.

python -m rainbow_tf.push --run_dir=runs/qbert/rainbow/seed_1 --out=hub/qbert --repo=me/qbert
"""

import shutil
from pathlib import Path

from absl import flags

from rainbow_tf.command import RUN_FLAGS, Command, Flag, run_settings
from rainbow_tf.config import ConfigError
from rainbow_tf.process import load_tensorflow, one_line, optional
from rainbow_tf.runs.store import kept_best
from rainbow_tf.video.encoder import check_video
from rainbow_tf.watch import film

_FILES = ("config.json", "environment.json", "torso.keras", "train.csv", "eval.csv")
_VIDEO = "replay.mp4"  # the name that the Hub shows on a model's page
_CARD = """---
library_name: rainbow_tf
pipeline_tag: reinforcement-learning
tags: [reinforcement-learning, rainbow]
model-index:
- name: "{agent}"
  results:
  - task: {{type: reinforcement-learning}}
    dataset: {{name: "{game}", type: "{game}"}}
    metrics: [{{type: mean_reward, value: {score_mean:.1f}, name: mean_reward}}]
---

# {agent} on {game}

Mean score {score_mean:.1f} over {episodes} episodes (protocol `{protocol}`) after {frames:,} frames
of training with seed {seed}: the best evaluation during training, which chose these weights.

- `rainbow_tf.load("this folder").act(observation)` acts with them.
- `model/` is a SavedModel for TF Serving; `rainbow-tf play --model_dir=model` plays with it.
- `config.json` has every setting, `train.csv` and `eval.csv` have the learning curves.
"""


def run(values: flags.FlagValues) -> None:
    """Checks everything, then writes the folder and uploads it."""
    if values.run_dir is None or values.out is None:
        raise ConfigError("Give --run_dir, the run to publish, and --out, the folder to write.")
    config, out, repo = run_settings(values, values.run_dir), Path(values.out), values.repo
    if (best := kept_best(config.folder)) is None:
        raise ConfigError(f"{config.folder} has no best weights; train until an evaluation.")
    if out.exists():
        raise ConfigError(f"--out={out} exists already; give another folder.")
    check_video(out / _VIDEO)
    if repo is not None:
        with optional(f"--repo={repo}", extra="hub"):
            import huggingface_hub as hub
        if hub.get_token() is None:
            raise ConfigError(
                f"--repo={repo} needs an account; run hf auth login, or set HF_TOKEN."
            )
    load_tensorflow(config.tensorflow_threads)
    from rainbow_tf.export.saved_model import export_run

    film(config, out / _VIDEO, "best")
    export_run(config, out / "model", "best")
    for name in _FILES:
        if (config.folder / name).exists():
            shutil.copyfile(config.folder / name, out / name)
    shutil.copytree(config.folder / "best", out / "best")
    about = {"agent": config.agent, "game": config.game or config.environment, "seed": config.seed}
    (out / "README.md").write_text(_CARD.format(**about, **best._asdict()))
    print(f"The model card is {out / 'README.md'}.")
    if repo is not None:
        try:
            url = hub.create_repo(repo, exist_ok=True)
            hub.upload_folder(repo_id=repo, folder_path=out)
        except Exception as error:  # of the network or the server
            raise ConfigError(f"--repo={repo}: the upload failed ({one_line(error)}).") from error
        print(f"Uploaded to {url}.")


COMMAND = Command(
    options=RUN_FLAGS
    | {
        "out": Flag(None, "Folder to write: model card, weights, SavedModel, video, curves."),
        "repo": Flag(None, "Repository to upload to, such as me/qbert; default: no upload."),
    },
    run=run,
    example="give --run_dir and --out",
    interrupted="interrupted; the folder is incomplete.",
)

if __name__ == "__main__":
    COMMAND.main()
