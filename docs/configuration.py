"""Writes configuration.md from the settings themselves: python docs/configuration.py."""

import dataclasses
from pathlib import Path
from typing import Any

from rainbow_tf.command import SMALL, setting_groups
from rainbow_tf.config import Config

PAGE = Path(__file__).with_suffix(".md")
_INTRODUCTION = """\
# Configuration

Every setting is a flag of `python -m rainbow_tf.main`, with the paper's full Rainbow agent as its
default. `make docs` generates this page from [rainbow_tf/config.py](../rainbow_tf/config.py).

- Lengths are in emulator frames, as in the paper. On Atari an agent step is `--action_repeat`
  frames; elsewhere it is one.
- Where a second default is given, it is for environments outside Atari.
- A switch such as `--double` is turned off by `--nodouble`.
- `--preset=NAME` uses the settings of a preset. Several can be given: later ones override earlier
  ones, and flags override all of them. `--list_presets` lists them.
- Settings marked in the last column may change when a run resumes. Any other change is refused;
  `--restart` starts a new run.
"""
_HEADER = """\
| flag | default | what it does | allowed | may change |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The text of configuration.md: a table for each comment heading in `Config`."""
    fields = {field.name: field for field in dataclasses.fields(Config)}
    parts = [_INTRODUCTION]
    for heading, names in setting_groups().items():
        rows = "".join(_row(fields[name]) for name in names)
        parts.append(f"## {heading}\n\n{_HEADER}{rows}")
    return "\n".join(parts)


def _row(field: dataclasses.Field) -> str:
    flag = f"--[no]{field.name}" if isinstance(field.default, bool) else f"--{field.name}"
    cells = (
        f"`{flag}`",
        _default(field.default) + _small(field.name),
        _escaped(field.metadata["help"]),
        _allowed(field.metadata),
        "yes" if field.metadata["may_change"] else "",
    )
    return f"| {' | '.join(cells)} |\n"


def _escaped(text: str) -> str:
    """Text that neither ends a table's cell nor begins an HTML element."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:_}`" if isinstance(value, int) else f"`{value}`"


def _small(name: str) -> str:
    return f"; elsewhere `{SMALL[name]:_}`" if name in SMALL else ""


def _allowed(metadata: Any) -> str:
    if metadata["choices"] is not None:
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    bounds = (("at least", "minimum"), ("above", "above"), ("at most", "maximum"))
    return ", ".join(
        f"{words} {metadata[name]:g}" for words, name in bounds if metadata[name] is not None
    )


if __name__ == "__main__":
    PAGE.write_text(page())
