"""The import rules between folders, read from the source: lazy imports count too."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom to the top: a folder may import from lower rows, and from itself.
LAYERS = (
    ("games",),
    ("config", "types", "process"),
    ("agent", "replay", "environments"),
    ("baselines", "starts"),
    ("runs",),
    ("evaluation",),
    ("video",),
    ("training",),
    ("distributed",),
    ("scoring",),
    ("reporting",),
    ("flags", "command"),
    ("export",),
    ("main", "evaluate", "watch", "report", "sweep", "record_starts", "benchmark", "cli"),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
COMMANDS = LAYERS[-1]
ONLY_FILES = {"scoring", "reporting"}  # they know files and arrays, not agents


def sources():
    """(folder or top-level module, path) of every module of the package."""
    for path in sorted((ROOT / "rainbow_tf").rglob("*.py")):
        name = path.relative_to(ROOT / "rainbow_tf").parts[0].removesuffix(".py")
        if name != "__init__" and not {"flags", "export"} & {name}:
            yield name, path
    for name in ("flags", "export"):
        for path in sorted((ROOT / name).rglob("*.py")):
            yield name, path


def imported(path):
    """Full names of what a module imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "rainbow_tf":
            yield from (f"rainbow_tf.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def edges():
    """(folder, imported folder) pairs within the package."""
    found = set()
    for name, path in sources():
        for module in imported(path):
            top, _, rest = module.partition(".")
            target = rest.split(".")[0]
            if top == "rainbow_tf" and target not in ("", "__version__", name):
                found.add((name, target))
    return sorted(found)


@pytest.mark.parametrize(("folder", "target"), edges())
def test_imports_point_downwards(folder, target):
    assert HEIGHT[target] < HEIGHT[folder], f"{folder} imports {target}"
    if folder in ONLY_FILES:
        assert HEIGHT[target] < HEIGHT["agent"] or target in ONLY_FILES


@pytest.mark.parametrize(
    ("library", "folders"),
    [
        ("ray", {"distributed"}),
        ("absl", {"command", "flags", "export", *COMMANDS}),
    ],
)
def test_libraries_are_used_in_their_folders_only(library, folders):
    users = {
        name
        for name, path in sources()
        if any(module.split(".")[0] == library for module in imported(path))
    }
    assert users <= folders


def test_the_replay_knows_no_tensorflow():
    for name, path in sources():
        if name in ("replay", *ONLY_FILES):
            assert not any(m.split(".")[0] in ("tensorflow", "keras") for m in imported(path))


def test_no_library_module_exits_the_process():
    for name, path in sources():
        if HEIGHT[name] < HEIGHT["command"]:
            assert "sys.exit" not in path.read_text(), path
