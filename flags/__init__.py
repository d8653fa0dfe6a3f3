"""Presets: absl flagfiles, each holding only what differs from full Rainbow."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path

from rainbow_tf.config import ConfigError, hint

_FOLDER = Path(__file__).parent


def names(pattern: str = "*") -> list[str]:
    """Names of the presets that match, such as ablations/no_double."""
    paths = (path.relative_to(_FOLDER).with_suffix("") for path in _FOLDER.rglob("*.cfg"))
    return sorted(fnmatch.filter((path.as_posix() for path in paths), pattern))


def path(name: str) -> Path:
    """The flagfile of a preset."""
    if name not in names():
        # A bare name, such as dqn, means the preset that ends with it.
        full = next((known for known in names() if known.endswith(f"/{name}")), name)
        way_out = hint(full, names(), f"known: {', '.join(names())}.", flag="--preset=")
        raise ConfigError(f"--preset={name} is not a preset; {way_out}")
    return _FOLDER / f"{name}.cfg"


def sentence(name: str) -> str:
    """What a preset is: the comment that its file begins with."""
    return path(name).read_text().splitlines()[0].removeprefix("# ")


def expand(arguments: Sequence[str]) -> list[str]:
    """A command line with flagfiles for presets before the flags: what comes later wins."""
    presets, others = [], []
    rest = iter(arguments[1:])
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag == "--":
            others += [argument, *rest]
        elif flag not in ("--preset", "-preset"):
            others.append(argument)
        elif equals:
            presets.append(value)
        else:
            presets.append(next(rest, ""))
    return [*arguments[:1], *(f"--flagfile={path(preset)}" for preset in presets), *others]
