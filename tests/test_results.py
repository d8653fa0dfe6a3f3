"""The tables in results/ are those that the report writes from the runs beside them."""

from pathlib import Path

import pytest

from rainbow_tf.report import write_report

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(
    ("folder", "runs", "published"),
    [
        ("apex", "one_actor", None),
        ("atari100k", "runs_26", "atari100k"),
        ("minatar", "runs", None),
    ],
)
def test_committed_tables_are_current(folder, runs, published, tmp_path):
    write_report(runs=RESULTS / folder / runs, out=tmp_path, published=published)
    written = {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()}
    committed = (RESULTS / folder / "report/tables").iterdir()
    assert written == {path.name: path.read_text() for path in committed}
