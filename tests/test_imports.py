"""The import rules between folders, read from the source: lazy imports count too."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("imports", ROOT / "docs/imports.py")
imports = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(imports)
HEIGHT = {name: height for height, names in enumerate(imports.LAYERS) for name in names}
ONLY_FILES = {"scoring", "reporting"}  # they know files and arrays, not agents


@pytest.mark.parametrize(("folder", "target"), sorted(imports.edges()))
def test_imports_point_downwards(folder, target):
    assert HEIGHT[target] < HEIGHT[folder], f"{folder} imports {target}"
    if folder in ONLY_FILES:
        assert HEIGHT[target] < HEIGHT["agent"] or target in ONLY_FILES


def users(*libraries):
    """Folders that import one of the libraries."""
    return {
        name
        for name, path in imports.sources()
        if any(module.split(".")[0] in libraries for module in imports.imported(path))
    }


def test_libraries_are_used_in_their_folders_only():
    assert users("ray") == {"distributed"}
    assert users("absl") <= {"command", "flags", "export", "commands"}
    assert not users("tensorflow", "keras") & {"replay", *ONLY_FILES}


def test_no_library_module_exits_the_process():
    for name, path in imports.sources():
        if HEIGHT[name] < HEIGHT["command"]:
            assert "sys.exit" not in path.read_text(), path


def test_the_drawing_is_current():
    assert imports.DRAWING.read_text() == imports.drawing(), "make docs draws it"
