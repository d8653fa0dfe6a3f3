import re

from rainbow_tf.reporting.tables import Table


def table(rows, **settings):
    return Table("A caption.", rows, **settings)


def test_columns_without_a_value_are_left_out():
    found = table([{"a": "x", "b": None, "c": 1.0}, {"a": "y", "b": None, "d": 2}])
    assert found.header == ["a", "c", "d"]
    assert found.csv() == "a,c,d\nx,1,\ny,,2\n"
    assert "| y | – | 2 |" in found.markdown()  # noqa: RUF001
    assert found.html().count("<th>") == 3


def test_the_best_of_a_row_is_bold_among_its_rivals():
    rows = [{"game": "pong", "human": 14.6, "a": 2.0, "b": 3.0}]
    found = table(rows, bold_best=["a", "b"])
    assert "| pong | 14.6 | 2.0 | **3.0** |" in found.markdown()
    assert "14.6 & 2.0 & \\textbf{3.0}" in found.latex()
    assert "**" not in table(rows, bold_best=["a"]).markdown()


def test_text_that_all_rows_share_is_in_the_caption():
    rows = [{"agent": name, "starts": "no-op", "a": 1, "b": 2, "c": 3.0} for name in "xy"]
    found = table(rows)
    assert "The same in all rows: starts: no-op." in found.html()
    assert "<th>starts" not in found.html()
    assert found.csv().startswith("agent,starts,")
    assert "<th>starts" in table(rows[:1]).html()


def test_a_wide_table_is_split_and_repeats_its_first_column():
    rows = [{"game": game, **{f"c{i}": 1e5 + i for i in range(22)}} for game in "xy"]
    parts = re.findall("<thead>.*?</thead>", table(rows).html())
    names = [re.findall("<th>(.*?)</th>", part) for part in parts]
    # A column of 100,000.0 takes 9 letters and 3 of space, the first column 4 and 3.
    assert [len(part) for part in names] == [1 + 11, 1 + 11]
    assert {part[0] for part in names} == {"game"}
    assert [name for part in names for name in part[1:]] == [f"c{i}" for i in range(22)]


def test_cells_of_a_table_too_wide_for_a_phone_name_their_column():
    wide = table([{"game": "pong", **dict.fromkeys("abcdefg", 123456), "d<": 4}])
    assert "<td data-label='d&lt;'>4</td>" in wide.html()
    assert "data-label" not in table([{"game": "pong", "a": 1}]).html()


def test_texts_cannot_leave_their_cell():
    text = "a|b\\c<i>\n\n\x1b[2J\u202ed"
    found = Table(f"A {text}", [{"agent": text, text: 1}])
    marked = "a\\|b\\\\c&lt;i> ?[2J?d"
    assert found.markdown().splitlines()[0] == f"A {marked}"
    assert found.markdown().splitlines()[2] == f"| agent | {marked} |"
    assert len(found.markdown().splitlines()) == 5
    lines = found.latex().splitlines()
    assert lines[0].startswith("% A a|b")
    assert lines[5] == "a|b\\textbackslash{}c<i> ?[2J?d & 1 \\\\"
    assert len(lines) == 8


def test_a_long_integer_has_commas_but_in_csv():
    found = table([{"agent": "rainbow", "episodes": 2600}])
    assert "| rainbow | 2,600 |" in found.markdown()
    assert found.csv().endswith("rainbow,2600\n")
