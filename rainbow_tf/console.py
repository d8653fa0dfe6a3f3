"""What commands print: tables, sizes, durations and progress bars."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm


def table(rows: Mapping[str, object]) -> str:
    """Lines of names and values, aligned."""
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())


def progress_bar(**settings: Any) -> tqdm:
    """A bar on standard error; a log file gets a line every 30 s instead of a moving bar."""
    interval = 0.5 if sys.stderr.isatty() else 30.0
    return tqdm(file=sys.stderr, mininterval=interval, dynamic_ncols=True, **settings)


def say(line: str) -> None:
    """Prints a line on standard error, above a progress bar if there is one."""
    tqdm.write(line, file=sys.stderr)


def size(num_bytes: float) -> str:
    """A size for people: 7.08 GB, 2.0 MB."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A duration for people: 9 d 3 h, 2 h 5 min, 40 s."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 1:
        return f"{int(days)} d {int(hours) % 24} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes) % 60} min"
    if minutes >= 1:
        return f"{int(minutes)} min {int(seconds) % 60} s"
    return f"{seconds:.0f} s"
