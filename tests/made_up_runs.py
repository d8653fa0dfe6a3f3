"""Run folders made up for the tests of scores and reports."""

import json

import numpy as np

from rainbow_tf.config import Config

EVAL_HEADER = (
    "frames,episodes,score_mean,score_median,score_stderr,score_min,score_max,length_mean,"
    "protocol,seconds,value_mean,return_mean,outside_support\n"
)
PARTS = {
    "double": {"double": False},
    "priority": {"prioritized": False},
    "dueling": {"dueling": False},
    "multi_step": {"n_step": 1},
    "distributional": {"distributional": False},
    "noisy": {"noisy": False},
}
# The paper's agents by the parts they lack, but A3C, which is not a DQN.
AGENTS = {
    "rainbow": [],
    "dqn": list(PARTS),
    "ddqn": ["priority", "dueling", "multi_step", "distributional", "noisy"],
    "prioritized_ddqn": ["dueling", "multi_step", "distributional", "noisy"],
    "dueling_ddqn": ["priority", "multi_step", "distributional", "noisy"],
    "distributional_dqn": ["double", "priority", "dueling", "multi_step", "noisy"],
    "noisy_dqn": ["double", "priority", "dueling", "multi_step", "distributional"],
    **{f"no_{part}": [part] for part in PARTS},
    # A fourteenth, which the paper does not have.
    "n5": None,
}


def settings(agent):
    """The settings that make an agent of `AGENTS`."""
    if agent == "n5":
        return {"n_step": 5}
    return {name: value for part in AGENTS[agent] for name, value in PARTS[part].items()}


def write_run(
    folder,
    scores,
    *,
    agent="rainbow",
    seed=1,
    period=1_000_000,
    protocol="paper/noop",
    **environment,
):
    """A finished run with an evaluation every `period` frames; `scores` may be empty."""
    environment = environment or {"game": "pong"}
    rules = {"protocol": protocol.split("/")[0]} if "/" in protocol else {}
    values = {
        "frames": max(len(scores), 1) * period,
        "eval_period_frames": period,
        "seed": seed,
        **rules,
        **settings(agent),
        **environment,
    }
    config = Config(**values)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    rows = "".join(
        f"{(i + 1) * period},10,{score:.6g},{score:.6g},1,0,9,500,{protocol},60,0.5,0.4,0\n"
        for i, score in enumerate(scores)
    )
    (folder / "eval.csv").write_text(EVAL_HEADER + rows)
    return folder


def write_evaluation(folder, scores, *, protocol="paper/noop", episodes=20, rng=None, **summary):
    """What the evaluate command writes, with a value check if there is a generator.

    `scores` is one score, or those of the episodes; `summary` is more to put in the summary.
    """
    scores = [scores] * episodes if isinstance(scores, float) else scores
    path = folder / "evaluations" / protocol.replace("/", "_")
    path.mkdir(parents=True)
    rows = ["episode,score,length,start,value_mean,return_mean,outside_support"]
    for i, score in enumerate(scores):
        if rng is None:
            rows.append(f"{i},{score},100,,,,")
        else:
            gained = rng.uniform(0, 14)
            value = min(gained, 9.5) * 0.95 + rng.normal() * 0.5
            rows.append(f"{i},{score},100,,{value:.4f},{gained:.4f},{max(gained - 10, 0) / 14:.3f}")
    (path / "scores.csv").write_text("\n".join(rows) + "\n")
    summary = {
        "protocol": protocol,
        "score_mean": float(np.mean(scores)),
        "episodes": len(scores),
        "starts_origin": protocol.split("/")[-1],
        "human_normalised": None,
        **summary,
    }
    (path / "summary.json").write_text(json.dumps(summary))


def learning_curve(rng, reference, *, quality, points):
    """A noisy curve from random play to `quality` times human."""
    time = np.linspace(0.02, 1, points)
    rise = 1 - np.exp(-time * rng.uniform(1.5, 5))
    span = abs(reference.human - reference.random)
    return reference.random + span * (quality * rise + 0.04 * rng.normal(size=points))
