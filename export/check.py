"""Says whether TF Serving would serve a folder: python -m rainbow_tf.export.check models/qbert."""

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags, logging

from rainbow_tf.command import Command

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")

_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_TRAINING_NAMES = re.compile(
    r"(^|/)(target|optimizer|adam|sgd|rmsprop)(_\d+)?(/|$)|_(momentum|velocity)$", re.IGNORECASE
)
_ABSOLUTE_PATH = re.compile(
    r"""(?:^|[\s"'=:,;(\[])(/[\w.~-]+/[\w./~-]+)|^(/\w+)$|\b([A-Za-z]:\\\w[^\s"']*)|(file:/\S+)"""
)
_MOST_WARMUP_REQUESTS = 1000  # more, and TF Serving refuses the model
_AGAIN = "export or copy it again"
_LONGEST_CHECK_SECONDS = 300
_CHECK_APART = """
import json, pathlib, sys
from rainbow_tf.export import check
from rainbow_tf.process import load_tensorflow
load_tensorflow()
print(json.dumps(check.check_version(pathlib.Path(sys.argv[1]))))
"""


def run(values: flags.FlagValues, model_dir: str) -> None:
    """Prints one sentence per finding; the exit code is 1 if a version cannot be served."""
    folder = Path(model_dir)
    versions, problems = find_versions(folder)
    for version in versions:
        problems += [f"{version}: {problem}" for problem in check_apart(version)]
    for path in leftovers(folder):
        print(f"Note: {path} was left by an export that was interrupted; delete it.")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{versions[-1]} would be served.")


def version_number(name: str) -> int | None:
    """The version number in a folder's name, as TF Serving reads it, or None."""
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else None


def find_versions(folder: Path) -> tuple[list[Path], list[str]]:
    """The version folders, oldest first, and the problems that kept them from being found."""
    if not folder.is_dir():
        return [], [f"{folder} is not a folder; give the one that holds the versions."]
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        return [], [f"{folder} cannot be read ({error.strerror})."]
    is_version = version_number(folder.resolve().name) is not None
    numbers = {name: number for name in names if (number := version_number(name)) is not None}
    if "saved_model.pb" in names or (is_version and not numbers):
        if is_version:
            return [folder], []
        return [], [
            f"{folder} is a model itself, but TF Serving looks for models in folders named by an "
            f"integer; move it to {folder / '1'}."
        ]
    if not numbers:
        return [], [f"{folder} holds no version: it has no folder named by an integer, such as 1."]
    return [folder / name for name in sorted(numbers, key=lambda name: numbers[name])], []


def leftovers(folder: Path) -> list[Path]:
    """Folders left by interrupted exports; TF Serving ignores them."""
    return sorted(folder.glob(".export_*")) if folder.is_dir() else []


def check_apart(folder: Path) -> list[str]:
    """Runs `check_version` in another process: a damaged graph can hang or crash TensorFlow."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", _CHECK_APART, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_CHECK_SECONDS,
        )
        return json.loads(result.stdout)
    except subprocess.TimeoutExpired:
        return [f"TensorFlow did not load it within {_LONGEST_CHECK_SECONDS} seconds; {_AGAIN}."]
    except ValueError:
        return [f"TensorFlow crashed while loading it; {_AGAIN}."]


def check_version(folder: Path, signatures: tuple[str, ...] = ()) -> list[str]:
    """The reasons why TF Serving cannot or should not serve a version; it needs `signatures`."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    if not folder.is_dir():
        return ["it is a file, not a folder; versions are folders."]
    path = folder / "saved_model.pb"
    if not path.is_file():
        return [f"saved_model.pb is missing; {_AGAIN}."]
    try:
        model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except OSError as error:
        return [f"saved_model.pb cannot be read ({error.strerror})."]
    except DecodeError:
        return [f"saved_model.pb is damaged or cut short; {_AGAIN}."]
    graphs = [graph for graph in model.meta_graphs if list(graph.meta_info_def.tags) == ["serve"]]
    if len(graphs) != 1:
        return [f"it has {len(graphs)} graphs with only the tag 'serve'; it must have one."]
    problems = [
        *_signature_problems(graphs[0], signatures),
        *_operation_problems(graphs[0]),
        *_path_problems(graphs[0]),
        *_variable_problems(graphs[0], folder),
    ]
    return problems or _loading_problems(graphs[0], folder)


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.graph_def.node
    for function in graph.graph_def.library.function:
        yield from function.node_def


def _signatures(graph: Any) -> dict[str, Any]:
    return {
        name: signature
        for name, signature in graph.signature_def.items()
        if not name.startswith("__saved_model")  # TensorFlow's own, for loading
    }


def _signature_problems(graph: Any, wanted: tuple[str, ...]) -> Iterator[str]:
    found = _signatures(graph)
    if not found:
        yield "it has no signature, so it cannot answer requests."
    for name in wanted:
        if name not in found:
            yield f"the signature {name} is missing."


def _operation_problems(graph: Any) -> Iterator[str]:
    import tensorflow as tf

    functions = {function.signature.name for function in graph.graph_def.library.function}
    for name in sorted({node.op for node in _nodes(graph)} - functions):
        if name in _PYTHON_OPS:
            yield f"it calls Python ({name}), which a server cannot run."
        elif not hasattr(tf.raw_ops, name):
            yield f"it needs the operation {_printable(name)}, which is not part of TensorFlow."
    compiled = [*graph.graph_def.library.function, *_nodes(graph)]
    if any(item.attr["_XlaMustCompile"].b for item in compiled if "_XlaMustCompile" in item.attr):
        yield "it requires compilation with XLA, which a server may not support."


def _path_problems(graph: Any) -> Iterator[str]:
    texts = {asset.filename.encode() for asset in graph.asset_file_def}
    for node in _nodes(graph):
        for value in node.attr.values():
            texts |= {value.s, *value.list.s, *value.tensor.string_val}
    for text in sorted(texts):
        match = _ABSOLUTE_PATH.search(text.decode("utf-8", errors="replace"))
        if match is not None:
            path = next(group for group in match.groups() if group is not None)
            yield f"it contains the absolute path {path}, which other machines may not have."


def _variable_problems(graph: Any, folder: Path) -> Iterator[str]:
    import tensorflow as tf

    nodes = [node for node in _nodes(graph) if node.op in ("VarHandleOp", "VariableV2")]
    names = {node.attr["shared_name"].s.decode("utf-8", errors="replace") for node in nodes}
    for name in sorted(names):
        if _TRAINING_NAMES.search(name):
            yield f"it holds {_printable(name)}, which only training needs."
    if not nodes:
        return
    prefix = folder / "variables" / "variables"
    if not prefix.with_name("variables.index").is_file():
        yield f"variables/variables.index is missing; {_AGAIN}."
        return
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # compares the checksum
    except Exception as error:  # TensorFlow can raise anything.
        yield f"the files in variables/ are incomplete or damaged ({_short(error)}); {_AGAIN}."


def _loading_problems(graph: Any, folder: Path) -> list[str]:
    """Loads the model and runs its warm-up requests, as the server would."""
    import tensorflow as tf

    signatures = _signatures(graph)
    try:
        requests = _warmup_requests(folder / WARMUP_FILE)
    except Exception as error:  # A damaged file can raise anything.
        return [f"{WARMUP_FILE} is damaged ({_short(error)}); delete it."]
    if len(requests) > _MOST_WARMUP_REQUESTS:
        return [f"{WARMUP_FILE} has {len(requests)} requests, but TF Serving accepts at most 1000."]
    with quiet_tensorflow(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        try:
            tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            for signature in signatures.values():
                for tensor in (*signature.inputs.values(), *signature.outputs.values()):
                    session.graph.get_tensor_by_name(tensor.name)
        except Exception as error:  # TensorFlow can raise anything.
            return [f"it cannot be loaded ({_short(error)}); {_AGAIN}."]
        try:
            for request in requests:
                signature = signatures[request.model_spec.signature_name]
                feed = {
                    signature.inputs[key].name: tf.make_ndarray(tensor)
                    for key, tensor in request.inputs.items()
                }
                session.run([tensor.name for tensor in signature.outputs.values()], feed)
        except Exception as error:
            return [f"the requests in {WARMUP_FILE} fail ({_short(error)}); delete the file."]
    return []


def _warmup_requests(path: Path) -> list[Any]:
    """The requests of a warm-up file; none if the API that reads them is not installed."""
    if not path.is_file() or importlib.util.find_spec("tensorflow_serving") is None:
        return []
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    return [
        prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        for record in tf.data.TFRecordDataset(str(path))
    ]


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Silences TensorFlow's log messages about files that it reads and writes."""
    import tensorflow as tf

    logger, level, verbosity = tf.get_logger(), tf.get_logger().level, logging.get_verbosity()
    logger.setLevel("ERROR")
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        logging.set_verbosity(verbosity)


def _short(error: Exception) -> str:
    """The first line of a TensorFlow message, which can fill pages."""
    text = re.sub(r"\{\{.*?\}\} ?", "", str(error)[:2000]).strip() or type(error).__name__
    return _printable(text.splitlines()[0][:200].rstrip("."))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


COMMAND = Command(
    about=str(__doc__),
    define_flags=lambda values: None,
    run=run,
    argument="model_dir",
    example="give one folder, as in python -m rainbow_tf.export.check models/qbert",
)

if __name__ == "__main__":
    COMMAND.main()
