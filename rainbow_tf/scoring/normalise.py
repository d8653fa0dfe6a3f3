"""Scores relative to a person's."""

import csv
from pathlib import Path

_REFERENCES = Path(__file__).parent / "data" / "reference_scores.csv"
_COLUMNS = {
    "noop": ("random_noop", "human_noop"),
    "human": ("random_human_starts", "human_human_starts"),
}


def human_normalised(game: str, score: float, regime: str) -> float | None:
    """0 for a random player and 1 for a person; None for games without references."""
    low, high = _COLUMNS[regime]
    with _REFERENCES.open() as file:
        rows = {row["game"]: row for row in csv.DictReader(file)}
    row = rows.get(game)
    if row is None or not row[low] or not row[high]:
        return None
    random, human = float(row[low]), float(row[high])
    return (score - random) / abs(human - random)
