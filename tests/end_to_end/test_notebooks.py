"""The notebooks run from top to bottom on tiny settings, and call nothing but commands."""

import ast
import os
import re
import shlex
import shutil
import socket
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
BADGE = re.compile(r"https://colab\.research\.google\.com/github/([^)\s]+)/blob/main/colab/(\w+)")
COMMANDS = re.compile(
    r"python -m rainbow_tf\.\w+|pip (install|list) |git clone |find |grep ", re.ASCII
)
# The notebooks show files; what makes them is in the package.
IMPORTS = {
    *("csv", "html", "importlib", "os", "pathlib", "shutil", "subprocess", "sys"),
    *("IPython", "matplotlib", "google", "rainbow_tf"),
}
# A stand-in for TensorFlow Serving, as the serving tests have it.
SERVER = """#!{python}
import signal, sys, threading
sys.path.insert(0, "{tests}/export")
from pathlib import Path
from model_server import ModelServer
given = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
models = {{given["model_name"]: Path(given["model_base_path"])}}
server = ModelServer(models, rest_port=int(given["rest_api_port"]))
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
stop.wait()
server.stop()
"""


def stem(path):
    return path.stem


def code_cells(path):
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def python_of(cell):
    """A cell's source with its magics and shell lines as the calls that they stand for."""
    return ast.parse(TransformerManager().transform_cell(cell.source))


def shell_lines(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("system", "getoutput"):
                yield ast.literal_eval(node.args[0])
            assert node.func.attr != "run_cell_magic", "a cell magic may hide what is called"


def commands(line):
    """The commands of a shell line, without quotes."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return re.split(r" (?:\||;|&&|\|\|) ", " ".join(words))


def test_there_are_four():
    assert [path.stem for path in NOTEBOOKS] == ["atari", "quickstart", "serve", "study"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_notebook_is_valid_and_has_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(path):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_only_commands_and_public_names_are_used(path):
    called = []
    for cell in code_cells(path):
        tree = python_of(cell)
        for line in shell_lines(tree):
            for command in commands(line):
                assert COMMANDS.match(command), command
            called.append(line)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= IMPORTS
            assert not any(name.startswith("rainbow_tf.") for name in names), "not a public name"
    trains = "rainbow_tf.Agent(" if path.stem == "quickstart" else "rainbow_tf.main"
    assert any(trains in text for text in (*called, *(cell.source for cell in code_cells(path))))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_what_only_colab_has_is_guarded(path):
    for cell in code_cells(path):
        tree = python_of(cell)
        guarded = {
            node
            for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and "IN_COLAB" in ast.unparse(branch.test)
            for statement in branch.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(tree):
            is_colab = isinstance(node, ast.ImportFrom) and node.module == "google.colab"
            is_magic = isinstance(node, ast.Attribute) and node.attr == "run_line_magic"
            if is_colab or is_magic:
                assert node in guarded, ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_install_keeps_what_is_there(path):
    first = code_cells(path)[0].source
    assert first == code_cells(NOTEBOOKS[0])[0].source
    assert "--constraint" in first
    assert "serving" not in first  # it asks for one TensorFlow, which may not be Colab's


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem)
def test_settings_are_in_one_cell(path):
    with_forms = [cell.source for cell in code_cells(path) if "# @param" in cell.source]
    with_sizes = [cell.source for cell in code_cells(path) if "RAINBOW_TF_TINY" in cell.source]
    assert with_forms == with_sizes
    assert len(with_forms) == 1


def test_badges_lead_to_their_notebooks_in_one_repository():
    texts = {path.stem: path.read_text() for path in NOTEBOOKS}
    found = {name: BADGE.findall(text) for name, text in texts.items()}
    readme = BADGE.findall((ROOT / "colab/README.md").read_text())
    assert [name for _, name in readme] == ["quickstart", "atari", "study", "serve"]
    repositories = {repository for repository, _ in readme}
    for name, ((repository, target),) in found.items():
        assert target == name
        repositories.add(repository)
        assert f'REPOSITORY = \\"https://github.com/{repository}\\"' in texts[name]
    assert len(repositories) == 1


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def text_of(notebook):
    return "".join(output.get("text", "") for output in outputs_of(notebook))


def kinds_of(notebook):
    return {kind for output in outputs_of(notebook) for kind in output.get("data", {})}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a notebook in a folder of its own, with tiny settings."""
    # Imported here: it brings event loops and sockets.
    from nbclient import NotebookClient

    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RAINBOW_TF_TINY", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))

    def execute(name, *, replace=()):
        folder = tmp_path / "work"
        shutil.copytree(ROOT / "colab", folder)
        path = folder / f"{name}.ipynb"
        text = path.read_text()
        for old, new in replace:
            assert old in text
            text = text.replace(old, new)
        notebook = nbformat.reads(text, as_version=4)
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
        said = text_of(notebook)
        # A shell line that fails does not stop a notebook.
        assert "Traceback" not in said
        assert not re.search(r"^rainbow_tf: ", said, re.MULTILINE), said
        assert "not found" not in said
        return notebook, folder

    return execute


def test_quickstart_runs(run):
    notebook, folder = run("quickstart")
    assert "were wanted." in text_of(notebook)
    assert {"image/png", "text/html"} <= kinds_of(notebook)
    assert (folder / "cartpole.mp4").stat().st_size > 1000
    assert (folder / "runs/cartpole/seed_1/best/online.npz").exists()


@pytest.mark.slow
def test_atari_runs(run):
    notebook, folder = run("atari")
    assert "of human" in text_of(notebook)
    assert (folder / "pong.mp4").stat().st_size > 1000
    run_dir = folder / "runs/pong/atari100k/seed_1"
    assert (run_dir / "evaluations/paper_noop/summary.json").exists()


@pytest.mark.slow
def test_study_runs(run):
    notebook, folder = run("study")
    assert "data:image/png" in str(outputs_of(notebook))
    assert "57" in (folder / "paper/tables/paper_medians.md").read_text()
    report = (folder / "report/report.html").read_text()
    assert "no noisy" in report
    assert "image/png" in kinds_of(notebook)


def test_nothing_is_served_where_there_is_no_server():
    tree = python_of(code_cells(ROOT / "colab/serve.ipynb")[-1])
    (choice,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(choice.test) == "server is None"
    outside = [ast.unparse(node) for node in tree.body if node is not choice]
    assert not re.search("Popen|system", "".join([*outside, *map(ast.unparse, choice.body)]))


@pytest.mark.slow
def test_serve_runs_with_a_server(run, tmp_path):
    server = tmp_path / "bin/tensorflow_model_server"
    server.write_text(SERVER.format(python=sys.executable, tests=ROOT / "tests"))
    server.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    notebook, folder = run("serve", replace=[("8501", str(port))])
    said = text_of(notebook)
    assert "would be served" in said
    assert (folder / "models/cartpole/1/saved_model.pb").exists()
    assert "nothing was served" not in said
    assert said.count("latency of") == 3
