import json
import random
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from fuzz import mutate
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import error_interpolation

from rainbow_tf.export import check
from rainbow_tf.export.client import SavedModelPolicy, ServingError

WARMUP = "assets.extra/tf_serving_warmup_requests"
DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture
def model(cartpole_model, tmp_path):
    """A copy to break."""
    return shutil.copytree(cartpole_model, tmp_path / "model")


def rewrite(folder, change):
    """Changes the graph of version 1."""
    path = folder / "1" / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(model.meta_graphs[0])
    path.write_bytes(model.SerializeToString())


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def rename_operation(graph, name="MyOwnOp"):
    # Of a signature: TensorFlow may load the functions that save a model without running them.
    functions = graph.graph_def.library.function
    wrapper = next(item for item in functions if "signature_wrapper" in item.signature.name)
    wrapper.node_def[0].op = name


def add_python(graph):
    node = graph.graph_def.node.add()
    node.name, node.op = "python", "PyFunc"


def add_path(graph):
    node = graph.graph_def.node.add()
    node.name, node.op = "path", "Const"
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(["/home/me/x.txt"]))


def lose_a_tensor(graph):
    graph.signature_def["serving_default"].outputs["actions"].name = "Nowhere:0"


def add_requests(folder):
    """More than TF Serving accepts."""
    record = next(iter(tf.data.TFRecordDataset(str(folder / "1" / WARMUP)))).numpy()
    with tf.io.TFRecordWriter(str(folder / "1" / WARMUP)) as writer:
        for _ in range(1001):
            writer.write(record)


BROKEN = {
    "empty": (lambda f: shutil.rmtree(f / "1"), "holds no version"),
    "no integer": (lambda f: (f / "1").rename(f / "v1"), "holds no version"),
    "only leftovers": (lambda f: (f / "1").rename(f / ".export_x"), "holds no version"),
    "a file": (lambda f: (f / "2").write_text(""), "cannot be read (Not a directory)"),
    "an empty version": (lambda f: (f / "2").mkdir(), "saved_model.pb cannot be read"),
    "no graph": (lambda f: (f / "1/saved_model.pb").unlink(), "saved_model.pb cannot be read"),
    "graph cut": (lambda f: cut(f / "1/saved_model.pb"), "damaged or cut short"),
    "graph empty": (lambda f: (f / "1/saved_model.pb").write_bytes(b""), "0 graphs"),
    "no variables": (lambda f: shutil.rmtree(f / "1/variables"), "variables/ are incomplete"),
    "no index": (
        lambda f: (f / "1/variables/variables.index").unlink(),
        "variables/ are incomplete",
    ),
    "no data": (lambda f: (f / "1" / DATA).unlink(), "variables/ are incomplete"),
    "data cut": (lambda f: cut(f / "1" / DATA), "variables/ are incomplete or damaged"),
    "data flipped": (lambda f: flip(f / "1" / DATA), "variables/ are incomplete or damaged"),
    "index cut": (lambda f: cut(f / "1/variables/variables.index"), "variables/ are incomplete"),
    "no tag": (
        lambda f: rewrite(f, lambda g: g.meta_info_def.ClearField("tags")),
        "the tag 'serve'",
    ),
    "another tag": (
        lambda f: rewrite(f, lambda g: g.meta_info_def.tags.append("gpu")),
        "the tag 'serve'",
    ),
    "no signatures": (
        lambda f: rewrite(f, lambda g: [g.signature_def.pop(k) for k in list(g.signature_def)]),
        "no signature",
    ),
    "a lost tensor": (lambda f: rewrite(f, lose_a_tensor), "cannot be loaded"),
    "python": (lambda f: rewrite(f, add_python), "holds PyFunc, which reaches files, Python"),
    "a folder as graph": (
        lambda f: ((f / "1/saved_model.pb").unlink(), (f / "1/saved_model.pb").mkdir()),
        "is not a regular file",
    ),
    "unknown operation": (
        lambda f: rewrite(f, rename_operation),
        "cannot be loaded (Op type not registered",
    ),
    "unprintable operation": (
        lambda f: rewrite(f, lambda g: rename_operation(g, "My\aOwn\nOp")),
        "not registered 'My?Own Op'",
    ),
    "absolute path": (lambda f: rewrite(f, add_path), "absolute path /home/me/x.txt"),
    "warm-up flipped": (lambda f: flip(f / "1" / WARMUP), "tf_serving_warmup_requests is damaged"),
    "too many requests": (add_requests, "1001 requests"),
}


@pytest.fixture
def run_check(monkeypatch, capsys):
    """A function that runs the command in this process: its exit code and lines."""
    monkeypatch.setattr(check, "check_apart", check.check_version)

    def run(folder):
        try:
            check.COMMAND.main(["check", str(folder)])
        except SystemExit as end:
            return 1, str(end.code).splitlines()
        return 0, capsys.readouterr().out.splitlines()

    return run


def save_signature(folder, function):
    """A SavedModel with one signature, which maps x to `function(x)`."""
    module = tf.Module()
    module.f = tf.function(
        lambda x: {"y": function(x)}, input_signature=[tf.TensorSpec((), tf.float32, "x")]
    )
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.f})


def written(path):
    def write(x):
        with tf.control_dependencies([tf.io.write_file(path, "text")]):
            return x + 1

    return write


def printed(path):
    def show(x):
        tf.print(x, output_stream=f"file://{path}")
        return x + 1

    return show


def saved(path):
    def save(x):
        operation = tf.raw_ops.SaveV2(
            prefix=path, tensor_names=["x"], shape_and_slices=[""], tensors=[x]
        )
        with tf.control_dependencies([operation]):
            return x + 1

    return save


def parsed(path):
    return lambda x: x + tf.numpy_function(lambda v: v, [x], tf.float32)


@pytest.mark.parametrize(
    ("make", "operations"),
    [
        (written, ["WriteFile"]),
        (printed, ["PrintV2"]),
        (saved, ["SaveV2"]),
        (parsed, ["PyFunc"]),
        (lambda path: lambda x: x + tf.strings.to_number(tf.io.read_file(path)), ["ReadFile"]),
    ],
)
def test_operations_that_reach_outside_are_found_before_loading(
    tmp_path, monkeypatch, make, operations
):
    folder, target = tmp_path / "1", tmp_path / "target"
    save_signature(folder, make(str(target)))
    # Nothing may be loaded: a model can act while it loads.
    monkeypatch.setattr(tf.compat.v1.saved_model, "load", None)
    monkeypatch.setattr(tf.saved_model, "load", None)
    assert check.unsafe_operations(folder) == operations
    problems = check.check_version(folder)
    assert any(f"it holds {operations[0]}, which reaches files" in text for text in problems)
    with pytest.raises(ServingError, match=f"was not loaded: its graph holds {operations[0]}"):
        SavedModelPolicy(tmp_path)
    assert not target.exists()


@pytest.mark.parametrize("through", [None, "node", "function", "signature", "main"])
def test_the_function_that_saves_a_model_must_not_be_called(model, through):
    def call_it(graph):
        name = graph.saver_def.save_tensor_name.partition(":")[0]
        (saver,) = [node for node in graph.graph_def.node if node.name == name]
        if through == "node":
            graph.graph_def.node.add(name="other", op="Identity", input=[f"^{name}"])
        elif through == "function":
            graph.graph_def.node.add().CopyFrom(saver)
            graph.graph_def.node[-1].name = "other"
        if through in ("node", "function"):
            graph.signature_def["serving_default"].outputs["actions"].name = "other:0"
        elif through == "signature":
            graph.signature_def["serving_default"].outputs["actions"].name = f"{name}:0"
        elif through == "main":
            graph.collection_def["saved_model_main_op"].node_list.value[:] = [name]

    rewrite(model, call_it)
    expected = [] if through is None else ["MergeV2Checkpoints", "SaveV2"]
    assert check.unsafe_operations(model / "1") == expected


@pytest.mark.parametrize("cases", [200, pytest.param(20_000, marks=pytest.mark.stress)])
def test_damaged_graphs_are_read_and_described(model, monkeypatch, cases):
    monkeypatch.setattr(check, "_loading_problems", lambda *_: [])  # in a process of its own
    path, rng = model / "1/saved_model.pb", random.Random(1)
    good = path.read_bytes()
    for _ in range(cases):
        path.write_bytes(mutate(good, rng))
        for sentence in check.check_version(model / "1"):
            assert sentence.isprintable()
            assert len(sentence) < 1000


def test_a_good_folder(model, run_check):
    assert run_check(model) == (0, [f"{model}/1 would be served."])
    assert run_check(model / "1") == (0, [f"{model}/1 would be served."])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder(model, run_check, name):
    break_it, sentence = BROKEN[name]
    if name == "too many requests" or name.startswith("warm-up"):
        pytest.importorskip("tensorflow_serving")
    break_it(model)
    code, lines = run_check(model)
    assert code == 1
    assert len(lines) == 1, lines
    assert sentence in lines[0]
    assert str(model) in lines[0]


def test_the_newest_version_is_named_and_all_are_checked(model, run_check):
    for name in ("9", "10"):
        shutil.copytree(model / "1", model / name)
    assert run_check(model) == (0, [f"{model}/10 would be served."])
    (model / "9" / "saved_model.pb").unlink()
    code, lines = run_check(model)
    assert code == 1
    assert [line.split(":")[0] for line in lines] == [f"{model}/9"]


def test_leftovers_are_named(model, run_check):
    (model / ".export_abc").mkdir()
    code, lines = run_check(model)
    assert code == 0
    assert ".export_abc" in lines[0]
    assert lines[1] == f"{model}/1 would be served."


def test_a_model_in_the_wrong_place(model, run_check):
    code, lines = run_check((model / "1").rename(model / "policy"))
    assert code == 1
    assert "named by an integer" in lines[0]


def test_no_folder(tmp_path, run_check):
    code, lines = run_check(tmp_path / "nowhere")
    assert code == 1
    assert "is not a folder" in lines[0]


def test_training_variables_are_found(tmp_path):
    variable = keras.Variable(np.ones(3, np.float32), name="kernel")
    optimizer = keras.optimizers.Adam()
    optimizer.build([variable])
    module = tf.Module()
    module.variable, module.moments = variable.value, [v.value for v in optimizer.variables]
    module.read = tf.function(
        lambda x: {"y": x + module.variable + sum(tf.cast(m, tf.float32) for m in module.moments)},
        input_signature=[tf.TensorSpec((), tf.float32, "x")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.read})
    problems = check.check_version(tmp_path / "1")
    assert problems
    assert all("only training needs" in problem for problem in problems)


@pytest.mark.parametrize("cases", [20, pytest.param(80, marks=pytest.mark.slow)])
def test_random_damage_gives_sentences(model, monkeypatch, cases):
    # TensorFlow takes minutes to format some of its messages; the command limits that with a
    # process and a timeout, which would be slow for so many cases.
    monkeypatch.setattr(error_interpolation, "interpolate_graph", lambda message, graph: message)
    rng = np.random.default_rng(0)
    version = model / "1"
    files = [path for path in version.rglob("*") if path.is_file()]
    found = 0
    for _ in range(cases):
        path = files[rng.integers(len(files))]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        if rng.random() < 0.3:
            damaged = damaged[: rng.integers(len(damaged))]
        else:
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(damaged)
        problems = check.check_version(version)
        path.write_bytes(whole)
        found += bool(problems)
        for problem in problems:
            assert problem.endswith(".")
            assert problem.isprintable()
            assert len(problem) < 400
    assert found > cases / 2
    assert check.check_version(version) == []


@pytest.mark.parametrize(
    ("code", "seconds", "sentence"),
    [
        ("import os; os.abort()", 60, "TensorFlow crashed"),
        ("import time; time.sleep(60)", 0.2, "did not load it within 0.2 seconds"),
    ],
)
def test_crashes_and_hangs_of_tensorflow_are_sentences(model, monkeypatch, code, seconds, sentence):
    monkeypatch.setattr(check, "_CHECK_APART", code)
    monkeypatch.setattr(check, "_LONGEST_CHECK_SECONDS", seconds)
    (problem,) = check.check_apart(model / "1")
    assert sentence in problem


def test_the_process_s_findings_are_returned(model, monkeypatch):
    script = "import json, sys; print(json.dumps([sys.argv[1], 'damaged.']))"
    monkeypatch.setattr(check, "_CHECK_APART", script)
    assert check.check_apart(model / "1") == [str(model / "1"), "damaged."]


@pytest.mark.parametrize("is_good", [True, False])
def test_the_process_s_script(model, monkeypatch, capsys, is_good):
    if not is_good:
        cut(model / "1" / DATA)
    monkeypatch.setattr(sys, "argv", ["-c", str(model / "1")])
    exec(check._CHECK_APART, {})
    assert (json.loads(capsys.readouterr().out) == []) == is_good


@pytest.mark.slow
@pytest.mark.parametrize("is_good", [True, False])
def test_the_command(model, is_good):
    if not is_good:
        cut(model / "1" / DATA)
    result = subprocess.run(
        [sys.executable, "-m", "rainbow_tf.export.check", str(model)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = (result.stdout + result.stderr).splitlines()
    assert len(lines) == 1, lines
    assert result.returncode == (0 if is_good else 1)
    assert ("would be served" in lines[0]) == is_good


def test_the_command_wants_one_folder():
    with pytest.raises(SystemExit, match="give one folder"):
        check.COMMAND.main(["check"])


def test_the_help_says_whom_to_trust(capsys):
    check.COMMAND.main(["check", "--help"])
    assert "serve models of people you trust" in capsys.readouterr().out
