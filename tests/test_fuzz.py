"""Every file of a run, damaged in thousands of ways: a sentence, a fallback, or no effect."""

import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import lz4.frame
import numpy as np
import pytest
import stub_run
from fuzz import mutate, outcome
from made_up_runs import write_evaluation, write_run

from rainbow_tf.config import Config
from rainbow_tf.distributed.sweep.cells import read_state
from rainbow_tf.files import FileError, read_npz
from rainbow_tf.runs.folder import RunFolder, environment_spec, read_config
from rainbow_tf.runs.store import CHECKPOINTS, Best, CheckpointStore, has_best
from rainbow_tf.runs.weights import restore_best, restore_online, write_best
from rainbow_tf.scoring.runs import read_runs
from rainbow_tf.starts import file as starts
from rainbow_tf.types import EnvironmentSpec

SPEC = EnvironmentSpec((4,), np.dtype(np.float32), 1, 2, ("left", "right"))
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
SECONDS, MEGABYTES = 5, 600


def network(value=WEIGHTS):
    variable = stub_run.Variable()
    variable.value = np.array(value)
    return SimpleNamespace(variables=[variable])


class Case(NamedTuple):
    """A file of a run, what reads it, and the check of what was read."""

    file: str
    read: object
    is_right: object
    sign: object = None  # gives JSON a matching checksum, so that only its content is wrong


def write_folder(folder):
    """A run with everything that our readers read."""
    write_run(folder, [1.0, 2.0, 3.5], environment="CartPole-v1", protocol="gymnasium")
    write_evaluation(folder, 7.5, protocol="gymnasium", episodes=3)
    lines = "".join(f"{100 * i},{i},1.5,60\n" for i in range(1, 5))
    (folder / "train.csv").write_text("frames,updates,return_mean_100,frames_per_second\n" + lines)
    config = read_config(folder)
    RunFolder(config).begin(SPEC)
    write_best(folder, network(), Best(7, 1.0, 1, "gymnasium"))
    state = {
        "config": json.loads(config.to_json()),
        "counters": [30, 5],
        "frames": 30,
        "evaluator": {"best": [7, 1.0, 1, "gymnasium"], "evaluated": 20},
    }
    store, arrays = CheckpointStore(folder / CHECKPOINTS), {"online/0": WEIGHTS}
    for _ in range(2):
        store.write(state=state, new={"agent": lambda: arrays}, old={})
    settings = starts.recorder_settings("pong", action_repeat=4, seed=1)
    actions = tuple(i % 6 for i in range(40))
    trajectory = starts.Trajectory("human", actions, ("00000000",) * 3)
    (folder / "starts.json").write_text(starts.text_of(settings, [trajectory]))
    return folder


def signed_manifest(data):
    content = json.loads(data)
    content["crc32"] = zlib.crc32(json.dumps(content["body"], sort_keys=True).encode())
    return json.dumps(content).encode()


def signed_starts(data):
    content = json.loads(data)
    body = json.dumps(content["body"], sort_keys=True).encode()
    return json.dumps(
        {"body": content["body"], "sha256": hashlib.sha256(body).hexdigest()}
    ).encode()


def read_online(folder):
    said, loaded = io.StringIO(), network(np.zeros((3, 4), np.float32))
    with contextlib.redirect_stdout(said):
        restore_online(folder, loaded)
    return loaded.variables[0].value


def read_best(folder):
    loaded = network(np.zeros((3, 4), np.float32))
    best = restore_best(folder, loaded)
    return best, loaded.variables[0].value


def read_checkpoint(folder):
    checkpoint, problems = CheckpointStore(folder / CHECKPOINTS).newest_whole()
    assert checkpoint is not None, problems
    return checkpoint.frames, checkpoint.counters, checkpoint.config, checkpoint.evaluated, problems


def is_sound(runs):
    """Whether curves can be drawn: rising frames, finite scores, short names."""
    (run,) = runs
    numbers = [*run.curve.scores, *(evaluation.score for evaluation in run.evaluations)]
    return (np.diff(run.curve.frames) > 0).all() and np.isfinite(numbers).all()


def is_same_best(found):
    best, weights = found
    return best == Best(7, 1.0, 1, "gymnasium") and np.array_equal(weights, WEIGHTS)


def quiet_runs(folder):
    return read_runs(folder, lambda problem: None)


MANIFEST, AGENT = "checkpoints/000002/manifest.json", "checkpoints/000002/agent.lz4"
SUMMARY = "evaluations/gymnasium/summary.json"
CASES = {
    "config.json": Case("config.json", read_config, lambda c: isinstance(c, Config)),
    "config.json in a report": Case("config.json", quiet_runs, is_sound),
    "environment.json": Case(
        "environment.json",
        lambda folder: environment_spec(read_config(folder)),
        lambda spec: 0 < np.prod(spec.frame_shape) * spec.num_actions < 2**28,
    ),
    "score.json": Case("best/score.json", has_best, lambda found: found in (True, False)),
    "online.npz": Case("best/online.npz", read_best, is_same_best),
    "manifest": Case(MANIFEST, read_online, lambda w: np.array_equal(w, WEIGHTS)),
    "agent.lz4": Case(AGENT, read_online, lambda w: np.array_equal(w, WEIGHTS)),
    "signed manifest": Case(
        MANIFEST,
        read_checkpoint,
        lambda found: all(type(number) is int for number in (found[0], *found[1], found[3])),
        signed_manifest,
    ),
    "manifest in a sweep": Case(
        MANIFEST,
        lambda f: read_state(read_config(f)),
        lambda state: state.frames < 2**63,
        signed_manifest,
    ),
    "train.csv in a sweep": Case(
        "train.csv", lambda f: read_state(read_config(f)), lambda state: state.frames < 2**63
    ),
    "train.csv": Case("train.csv", quiet_runs, is_sound),
    "eval.csv": Case("eval.csv", quiet_runs, is_sound),
    "scores.csv": Case("evaluations/gymnasium/scores.csv", quiet_runs, is_sound),
    "summary.json": Case(SUMMARY, quiet_runs, is_sound),
    "starts": Case(
        "starts.json",
        lambda folder: starts.read(folder / "starts.json"),
        lambda file: file.trajectories[0].actions == tuple(i % 6 for i in range(40)),
    ),
    "signed starts": Case(
        "starts.json",
        lambda folder: starts.read(folder / "starts.json"),
        lambda file: isinstance(file.origin if file.trajectories else "", str),
        signed_starts,
    ),
}


def judge(case, folder):
    """Reads, and fails unless there is a sentence or what was read is right."""
    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        found = outcome(case.read, folder)
    assert time.monotonic() - started < SECONDS
    assert isinstance(found, str) or case.is_right(found), found
    return found


def fuzz(name, folder, *, seed, count):
    case, rng = CASES[name], random.Random(seed)
    path = write_folder(folder) / case.file
    whole = path.read_bytes()
    assert case.is_right(judge(case, folder)), "what is whole is read"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = []
    for _ in range(count):
        data = mutate(whole, rng)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            data = data if case.sign is None else case.sign(data)
        path.write_bytes(data)
        found.append(judge(case, folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert memory < 1000 * MEGABYTES
    path.write_bytes(whole)
    assert case.is_right(judge(case, folder)), "reading changed nothing"
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_gives_a_sentence_or_its_content(name, tmp_path):
    found = fuzz(name, tmp_path / "run", seed=1, count=250)
    sentences = {text for text in found if isinstance(text, str)}
    if name not in ("score.json", "manifest", "agent.lz4") and "sweep" not in name:
        assert len(sentences) > 5, "most damage is noticed"
    assert len(sentences) < len(found), "some damage has no effect"


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", CASES)
def test_many_damaged_files(name, seed, tmp_path):
    fuzz(name, tmp_path / "run", seed=100 + seed, count=1000)


SPECIAL = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a huge file": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
    "a deep list": lambda path: path.write_text("[" * 1_000_000),
    "a long string": lambda path: path.write_text('{"game": "' + 10_000_000 * "x" + '"}'),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_refused_quickly(name, kind, tmp_path):
    case = CASES[name]
    path = write_folder(tmp_path / "run") / case.file
    path.unlink()
    SPECIAL[kind](path)
    started = time.monotonic()
    found = judge(case, tmp_path / "run")
    assert isinstance(found, str) or case.is_right(found)
    assert time.monotonic() - started < 1


def resumed(folder, monkeypatch, **changes):
    """What a resumed run prints, or its sentence."""
    stub_run.patch(monkeypatch)
    return outcome(lambda path: stub_run.train_stub(path, **changes), folder)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
def test_a_manifest_with_the_right_checksum_and_wrong_content_does_not_end_in_a_traceback(
    tmp_path, monkeypatch
):
    stub_run.patch(monkeypatch)
    whole, rng = tmp_path / "whole", random.Random(3)
    stub_run.train_stub(whole)
    # Wrong counters lead to evaluations that the stub has no scores for.
    place = "rainbow_tf.evaluation.evaluator.make_environment"
    monkeypatch.setattr(place, lambda config, **_: stub_run.Environment(0))
    number = CheckpointStore(whole / CHECKPOINTS).numbers()[-1]
    manifest = whole / CHECKPOINTS / f"{number:06d}" / "manifest.json"
    data, sentences = manifest.read_bytes(), set()
    for _ in range(25):
        changed = mutate(data, rng)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            changed = signed_manifest(changed)
        folder = tmp_path / "run"
        shutil.copytree(whole, folder)
        (folder / manifest.relative_to(whole)).write_bytes(changed)
        sentences.add(outcome(lambda path: stub_run.train_stub(path, frames=260), folder))
        shutil.rmtree(folder)
    assert any("cannot be used" in text for text in sentences)
    assert any("is damaged" in text for text in sentences)


def test_nothing_outside_the_run_folder_is_deleted_renamed_or_written(tmp_path, monkeypatch):
    stub_run.patch(monkeypatch)
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    stub_run.train_stub(run)
    for name in ("manifest.json", "notes.txt", "online.npz", "train.csv"):
        (outside / name).write_text("mine")
    (run / CHECKPOINTS / "000001").symlink_to(outside)
    (run / CHECKPOINTS / "000099").symlink_to(outside)
    (run / "best/.online.npz.part").symlink_to(outside / "online.npz")
    (run / "best/.score.json.part").symlink_to(outside / "notes.txt")
    assert "Done after 300 frames" in resumed(run, monkeypatch, frames=300)
    for name in ("train.csv", "best", CHECKPOINTS, ".lock"):
        kept = run.rename(tmp_path / f"kept_{name}")
        run.mkdir()
        for path in kept.iterdir():
            path.rename(run / path.name)
        original = run / name
        original.rename(tmp_path / "aside") if original.exists() else None
        original.symlink_to(outside if name in ("best", CHECKPOINTS) else outside / "train.csv")
        said = resumed(run, monkeypatch, frames=320)
        assert f"{name} cannot be read (it leads out of" in said
        original.unlink()
        (tmp_path / "aside").rename(original) if (tmp_path / "aside").exists() else None
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ("manifest.json", "notes.txt", "online.npz", "train.csv"), "mine"
    )


@pytest.mark.parametrize(
    "file", ["../outside.lz4", "/etc/passwd", "000001/../../outside.lz4", "a\0"]
)
def test_a_manifest_cannot_name_files_outside(file, tmp_path):
    store = CheckpointStore(tmp_path / CHECKPOINTS)
    checkpoint = store.write(state={}, new={"agent": lambda: {"a": WEIGHTS}}, old={})
    (tmp_path / "outside.lz4").write_bytes((store.folder / "000001/agent.lz4").read_bytes())
    lying = checkpoint.files["agent"]._replace(path=file)
    store.write(state={}, new={}, old={"agent": lying})
    _, problems = store.newest_whole()
    assert "Checkpoint 2 is damaged" in problems[0]


@pytest.mark.parametrize("name", ["1²", "9" * 255, "0000003", "-00001", "٣٣٣٣٣٣"])
def test_folders_that_are_no_checkpoints_are_ignored(name, tmp_path):
    store = CheckpointStore(tmp_path)
    store.write(state={}, new={}, old={})
    (tmp_path / name).mkdir()
    assert store.numbers() == [1]
    assert store.write(state={}, new={}, old={}).number == 2


def test_an_lz4_bomb_is_refused_before_it_is_unpacked(tmp_path):
    store = CheckpointStore(tmp_path)
    checkpoint = store.write(state={}, new={"agent": lambda: {"a": WEIGHTS}}, old={})
    header = io.BytesIO()
    form = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(header, form)
    with lz4.frame.open(tmp_path / "000001/agent.lz4", "wb") as stream:
        stream.write(b'["a"]\n' + header.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match="is not expected"):
        store.read(checkpoint.files["agent"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_an_npz_bomb_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(1_000_000))
    with pytest.raises(FileError, match="compressed or overlap"):
        read_npz(tmp_path / "bomb.npz")


def test_every_flipped_bit_of_the_best_weights_is_noticed_or_has_no_effect(tmp_path):
    write_folder(tmp_path / "run")
    path = tmp_path / "run/best/online.npz"
    whole, noticed = path.read_bytes(), 0
    for bit in range(0, 8 * len(whole), 3):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        found = judge(CASES["online.npz"], tmp_path / "run")
        noticed += isinstance(found, str)
    assert noticed > len(whole) * 8 / 3 * 0.6


def test_a_run_folder_that_links_to_itself_is_searched_once(tmp_path):
    write_run(tmp_path / "runs/one", [1.0])
    for name in ("a", "b", "c"):
        (tmp_path / "runs" / name).symlink_to(tmp_path / "runs")
    assert [run.folder.name for run in read_runs(tmp_path / "runs")] == ["one"]
