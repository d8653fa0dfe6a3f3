"""Says whether TF Serving would serve a folder: python -m rainbow_tf.export.check models/qbert.

A SavedModel is a program. The check reads its graph first, and does not load it if an operation
reaches files or other programs. It finds no other bad intent: serve models of people you trust.
"""

import contextlib
import importlib.util
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from rainbow_tf.command import Command, Flag
from rainbow_tf.config import ConfigError
from rainbow_tf.files import MOST_BYTES, FileError, open_file
from rainbow_tf.process import one_line

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")

_TRAINING_NAMES = re.compile(
    r"(^|/)(target|optimizer|adam|sgd|rmsprop)(_\d+)?(/|$)|_(momentum|velocity)$", re.IGNORECASE
)
_ABSOLUTE_PATH = re.compile(
    r"""(?:^|[\s"'=:,;(\[])(/[\w.~-]+/[\w./~-]+)|^(/\w+)$|\b([A-Za-z]:\\\w[^\s"']*)|(file:/\S+)"""
)
# Operations that reach files, Python, other programs, or the screen; a policy needs none of them.
_OUTSIDE = re.compile(
    "Abort|Checkpoint|DataService|Dataset|Debug|Dump|File|Host|Import|LMDB|LoadAndRemap|Print|Py|"
    "Reader|Recv|Remap|Remote|Restore|Rpc|Save|Send|Server|SummaryDb|SummaryWriter|^Write"
)
_HARMLESS = ("RestoreV2", "ShardedFilename")  # they only read checkpoints and join strings
_SAVING = ("MergeV2Checkpoints", "SaveV2")  # in every SavedModel, to save it again
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
    for path in sorted(folder.glob(".export_*")):  # TF Serving ignores them
        print(f"Note: {path} was left by an export that was interrupted; delete it.")
    versions = find_versions(folder)
    problems = [f"{version}: {text}" for version in versions for text in check_apart(version)]
    if problems:
        sys.exit("\n".join(problems))
    print(f"{versions[-1]} would be served.")
    if values.server is not None:
        newest = versions[-1].resolve()
        _wait_until_served(
            values.server, values.model or newest.parent.name, newest, values.timeout
        )
        print(f"{versions[-1]} is AVAILABLE at {values.server}.")


def _wait_until_served(server: str, model: str, newest: Path, timeout: float) -> None:
    """Raises an error unless the newest version is served: a damaged one stays LOADING."""
    from rainbow_tf.export.client import RestPolicy, ServingError

    deadline = time.monotonic() + timeout
    with contextlib.closing(RestPolicy(server, model=model, timeout=timeout)) as policy:
        while (states := policy.versions()).get(int(newest.name)) != "AVAILABLE":
            if time.monotonic() > deadline:
                found = ", ".join(f"{version} {state}" for version, state in sorted(states.items()))
                raise ServingError(
                    f"{newest} is not AVAILABLE at {server} after {timeout:g} s: the server has "
                    f"{found or 'no version'}; see its log, and delete the version or wait longer."
                )
            time.sleep(min(1.0, timeout / 10))


def sorted_versions(paths: Iterable[Path]) -> list[Path]:
    """The paths whose names TF Serving reads as a version number, lowest first."""
    versions = [path for path in paths if re.fullmatch(r"[0-9]{1,18}", path.name)]
    return sorted(versions, key=lambda path: int(path.name))


def find_versions(folder: Path) -> list[Path]:
    """The version folders in a model's folder, oldest first; the folder itself if it is one."""
    try:
        versions = sorted_versions(folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"{folder} is not a folder that can be read ({error.strerror}); give the one that "
            "holds the versions."
        ) from error
    is_version = bool(sorted_versions([folder.resolve()]))
    if is_version and (not versions or (folder / "saved_model.pb").exists()):
        return [folder]
    if not versions:
        raise ConfigError(
            f"{folder} holds no version: TF Serving looks for models in folders named by an "
            f"integer, such as {folder / '1'}."
        )
    return versions


def check_apart(folder: Path) -> list[str]:
    """Runs `check_version` in another process: a damaged graph can hang or crash TensorFlow."""
    try:
        command = [sys.executable, "-c", _CHECK_APART, str(folder)]
        result = subprocess.run(command, capture_output=True, timeout=_LONGEST_CHECK_SECONDS)
        return json.loads(result.stdout)
    except subprocess.TimeoutExpired:
        return [f"TensorFlow did not load it within {_LONGEST_CHECK_SECONDS} seconds; {_AGAIN}."]
    except ValueError:
        return [f"TensorFlow crashed while loading it; {_AGAIN}."]


def check_version(folder: Path, signatures: tuple[str, ...] = ()) -> list[str]:
    """The reasons why TF Serving cannot or should not serve a version; it needs `signatures`."""
    try:
        model = _read_model(folder)
    except FileError as error:
        return [f"{error}; {_AGAIN}."]
    graphs = [graph for graph in model.meta_graphs if list(graph.meta_info_def.tags) == ["serve"]]
    if len(graphs) != 1:
        return [f"it has {len(graphs)} graphs with only the tag 'serve'; it must have one."]
    # Names with underscores are TensorFlow's own, for loading.
    found = {k: v for k, v in graphs[0].signature_def.items() if not k.startswith("__")}
    problems = [f"the signature {name} is missing." for name in signatures if name not in found]
    if not found:
        problems.append("it has no signature, so it cannot answer requests.")
    problems += _graph_problems(graphs[0])
    return problems or _loading_problems(found, folder)


def _read_model(folder: Path) -> Any:
    """The message in saved_model.pb; raises a FileError that says what is wrong with the file."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    with open_file(folder / "saved_model.pb", MOST_BYTES) as stream:
        try:
            return saved_model_pb2.SavedModel.FromString(stream.read())
        except DecodeError as error:
            raise ValueError("it is damaged or cut short") from error


def unsafe_operations(folder: Path) -> list[str]:
    """Operations of a SavedModel that reach files or other programs; the model is not loaded."""
    graphs = _read_model(folder).meta_graphs
    return sorted({operation for graph in graphs for operation in _outside_operations(graph)})


def _outside_operations(graph: Any) -> set[str]:
    nodes = {node.name: node for node in graph.graph_def.node}
    functions = {item.signature.name: item.node_def for item in graph.graph_def.library.function}
    tensors = [graph.saver_def.restore_op_name]
    for signature in graph.signature_def.values():
        tensors += [info.name for info in (*signature.inputs.values(), *signature.outputs.values())]
    for collection in graph.collection_def.values():  # which name what runs first
        tensors += collection.node_list.value
    used: set[str] = set()
    while tensors:
        name = tensors.pop().lstrip("^").partition(":")[0]
        if name in nodes and name not in used:
            used.add(name)
            tensors += nodes[name].input
    # What nothing uses never runs: in every SavedModel, the nodes that save it again.
    idle = [node for name, node in nodes.items() if name not in used]
    only_saving = _called(idle, functions)
    runs = [nodes[name] for name in used]
    for name in functions.keys() - only_saving:
        runs += functions[name]
    allowed = _HARMLESS if only_saving & _called(runs, functions) else (*_HARMLESS, *_SAVING)
    for name in only_saving:
        idle += functions[name]
    operations = [node.op for node in runs if node.op not in _HARMLESS]
    operations += [node.op for node in idle if node.op not in allowed]
    return {operation for operation in operations if _OUTSIDE.search(operation)}


def _called(nodes: Iterable[Any], functions: Mapping[str, Any]) -> set[str]:
    names = set()
    for node in nodes:
        names.add(node.op)
        for value in node.attr.values():
            names |= {value.func.name, *(function.name for function in value.list.func)}
    return names & functions.keys()


def _graph_problems(graph: Any) -> Iterator[str]:
    """What a server cannot run, or should not be given."""
    functions = graph.graph_def.library.function
    nodes = [*graph.graph_def.node, *(node for function in functions for node in function.node_def)]
    for name in sorted(_outside_operations(graph)):
        yield (
            f"it holds {one_line(name)}, which reaches files, Python, other programs or the "
            "screen; it was not loaded."
        )
    if any(item.attr["_XlaMustCompile"].b for item in (*functions, *nodes)):
        yield "it requires compilation with XLA, which a server may not support."
    texts = {asset.filename.encode() for asset in graph.asset_file_def}
    names = set()
    for node in nodes:
        for value in node.attr.values():
            texts |= {value.s, *value.list.s, *value.tensor.string_val}
        if node.op in ("VarHandleOp", "VariableV2"):
            names.add(node.attr["shared_name"].s)
    for text in sorted(texts):
        match = _ABSOLUTE_PATH.search(text.decode(errors="replace"))
        if match is not None:
            path = one_line(next(group for group in match.groups() if group is not None))
            yield f"it contains the absolute path {path}, which other machines may not have."
    for name in sorted(name.decode(errors="replace") for name in names):
        if _TRAINING_NAMES.search(name):
            yield f"it holds {one_line(name)}, which only training needs."


def _loading_problems(signatures: dict[str, Any], folder: Path) -> list[str]:
    """Reads the variables, loads the model and runs its warm-up requests, as the server would."""
    import tensorflow as tf

    failure, way_out = "the files in variables/ are incomplete or damaged", _AGAIN
    try:
        reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # compares the checksum
        failure = "it cannot be loaded"
        new_session = tf.compat.v1.Session(graph=tf.Graph())
        with quiet_tensorflow(), contextlib.closing(new_session) as session:
            with session.graph.as_default():
                tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            for signature in signatures.values():
                for tensor in (*signature.inputs.values(), *signature.outputs.values()):
                    session.graph.get_tensor_by_name(tensor.name)
            failure, way_out = f"{WARMUP_FILE} is damaged or does not fit the model", "delete it"
            requests = _warmup_requests(folder / WARMUP_FILE)
            if len(requests) > 1000:
                raise ValueError(f"{len(requests)} requests, but TF Serving accepts at most 1000")
            for request in requests:
                signature = signatures[request.model_spec.signature_name]
                feed = {
                    signature.inputs[key].name: tf.make_ndarray(tensor)
                    for key, tensor in request.inputs.items()
                }
                session.run([tensor.name for tensor in signature.outputs.values()], feed)
    except Exception as error:  # TensorFlow can raise anything.
        return [f"{failure} ({one_line(error)}); {way_out}."]
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
    """Silences log messages below errors, such as TensorFlow's about the files it handles."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


COMMAND = Command(
    options={
        "server": Flag(
            None, "REST address, http://host:port, at which the newest version must be AVAILABLE."
        ),
        "model": Flag(None, "The model's name at the server; by default the folder's."),
        "timeout": Flag(60.0, "Seconds until it must be AVAILABLE.", minimum=0.1, maximum=86400),
    },
    run=run,
    argument="model_dir",
    example="give one folder, as in python -m rainbow_tf.export.check models/qbert",
)

if __name__ == "__main__":
    COMMAND.main()
