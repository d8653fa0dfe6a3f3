"""Draws which folder imports which, from the source: python docs/imports.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAWING = ROOT / "docs/images/imports.svg"
# From the bottom to the top: a folder may import from lower rows, and from itself.
LAYERS = (
    ("games", "console"),
    ("config", "types"),
    ("process",),
    ("files",),
    ("agent", "replay", "environments"),
    ("baselines", "starts"),
    ("runs",),
    ("evaluation",),
    ("video",),
    ("training", "scoring"),
    ("distributed", "reporting"),
    ("flags",),
    ("command",),
    ("export",),
    ("api",),
    ("commands",),
)
COMMANDS = {
    *("main", "evaluate", "watch", "report", "sweep", "record_starts", "push", "benchmark", "cli"),
}
_WIDTH, _ROW, _BOX, _TALL = 640, 56, 120, 26


def sources() -> Iterator[tuple[str, Path]]:
    """(folder, path) of every module; a module at the top level is a folder of its own."""
    for top in ("rainbow_tf", "flags", "export"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            name = parts[1].removesuffix(".py") if top == "rainbow_tf" else top
            if name not in ("__init__", "flags", "export") or top != "rainbow_tf":
                yield "commands" if name in COMMANDS else name, path


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a module imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "rainbow_tf":
            yield from (f"rainbow_tf.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def edges() -> set[tuple[str, str]]:
    """(folder, folder that it imports) within the package."""
    found = set()
    for name, path in sources():
        for module in imported(path):
            top, _, rest = module.partition(".")
            target = rest.split(".")[0]
            target = "commands" if target in COMMANDS else target
            if top == "rainbow_tf" and target not in ("", "__version__", name):
                found.add((name, target))
    return found


def _direct(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs without those that follow from others."""
    below: dict[str, set[str]] = {}
    for layer in LAYERS:
        for name in layer:
            targets = {target for folder, target in pairs if folder == name}
            below[name] = targets.union(*(below[target] for target in targets))
    return {
        (folder, target)
        for folder, target in pairs
        if not any(target in below[other] for name, other in pairs if name == folder)
    }


def drawing() -> str:
    """The SVG: a row for each layer, a line for each import that does not follow from others."""
    height = _ROW * len(LAYERS)
    places = {
        name: (_WIDTH * (i + 1) / (len(layer) + 1), height - _ROW * (row + 0.5))
        for row, layer in enumerate(LAYERS)
        for i, name in enumerate(layer)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for folder, target in sorted(_direct(edges())):
        (x1, y1), (x2, y2) = places[folder], places[target]
        lines.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#999"/>')
    for name, (x, y) in places.items():
        lines.append(
            f'<rect x="{x - _BOX / 2:g}" y="{y - _TALL / 2:g}" width="{_BOX}" height="{_TALL}" '
            'rx="4" fill="#eef3fa" stroke="#4a6fa5"/>'
        )
        lines.append(f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(drawing())
