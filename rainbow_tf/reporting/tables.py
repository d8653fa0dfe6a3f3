"""A table as CSV, Markdown, LaTeX and HTML."""

import csv
import functools
import html
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rainbow_tf.process import printable

Cell = str | int | float | None
Row = dict[str, Cell]

# Widths in letters: a table above the first is split, one above the second has smaller letters, one
# above the third becomes a block per row on a phone.
_PAGE_LETTERS, _LARGE_LETTERS, _PHONE_LETTERS = 147, 120, 50
_FEW_COLUMNS = 4
_NONE = "–"  # noqa: RUF001
_LATEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {_NONE: "--"})
_LATEX |= str.maketrans({"\\": "\\textbackslash{}", "~": "\\textasciitilde{}"})
_LATEX |= str.maketrans({"^": "\\textasciicircum{}"})
_MARKDOWN = str.maketrans({"|": "\\|", "\\": "\\\\", "<": "&lt;"})


@dataclass(frozen=True)
class Table:
    """Rows of named cells; columns without any value are left out.

    Numbers have `digits` decimals, in CSV all of them; None is a dash.
    """

    caption: str
    rows: list[Row]
    digits: int = 1
    bold_best: Collection[str] = ()  # columns among which the best of a row is bold

    @functools.cached_property
    def header(self) -> list[str]:
        """The names of the columns that have a value."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if any(row.get(name) is not None for row in self.rows)]

    def csv(self) -> str:
        """As CSV, with unrounded numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            cells = (row.get(name) for name in self.header)
            writer.writerow(f"{cell:.10g}" if isinstance(cell, float) else cell for cell in cells)
        return text.getvalue()

    def markdown(self) -> str:
        """As Markdown."""
        header, *rows = self._lines(_MARKDOWN, "**{}**")
        marks = ["---", *["---:"] * (len(header) - 1)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in (header, marks, *rows))
        return f"{printable(self.caption).translate(_MARKDOWN)}\n\n{body}\n"

    def latex(self) -> str:
        """As a LaTeX tabular for the booktabs package."""
        lines = self._lines(_LATEX, "\\textbf{{{}}}")
        header, *rows = (" & ".join(line) + " \\\\\n" for line in lines)
        return (
            f"% {printable(self.caption)}\n\\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}\n"
            f"\\toprule\n{header}\\midrule\n{''.join(rows)}\\bottomrule\n\\end{{tabular}}\n"
        )

    def html(self) -> str:
        """As HTML with its caption, split where it would be wider than the page."""
        is_large = len(self.header) > _FEW_COLUMNS and len(self.rows) > 1
        common = self._common() if is_large else {}
        caption = self.caption
        if common:
            listed = "; ".join(f"{name}: {value}" for name, value in common.items())
            caption += f" The same in all rows: {listed}."
        first, *others = (name for name in self.header if name not in common)
        parts = [[first]]
        for name in others:
            if self._width([*parts[-1], name]) > _PAGE_LETTERS:
                parts.append([first])
            parts[-1].append(name)
        body = "".join(map(self._html_part, parts))
        return f"<div class=caption>{html.escape(caption)}</div>{body}"

    def _html_part(self, names: list[str]) -> str:
        width = self._width(names)
        is_wide = width > _PHONE_LETTERS
        classes = ("wide " if is_wide else "") + ("dense" if width > _LARGE_LETTERS else "")
        body = ""
        for cells in self._shown():
            body += "<tr>"
            for name in names:
                text, is_best = cells[name]
                label = f" data-label='{html.escape(name)}'" if is_wide and name != names[0] else ""
                kind = " class=best" if is_best else " class=none" if text == _NONE else ""
                body += f"<td{kind}{label}>{html.escape(text)}</td>"
            body += "</tr>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        return (
            f"<div class=table><table class='{classes}'><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def _width(self, names: list[str]) -> int:
        """The least width of some columns in letters: texts wrap between words."""
        total = 0
        for name in names:
            texts = [name, *(self._text(row.get(name)) for row in self.rows)]
            total += max(len(word) for text in texts for word in text.split()) + 3
        return total

    def _common(self) -> dict[str, str]:
        """Columns after the first that have the same text in all rows."""
        found = {name: {row.get(name) for row in self.rows} for name in self.header[1:]}
        alone = {name: next(iter(cells)) for name, cells in found.items() if len(cells) == 1}
        return {name: cell for name, cell in alone.items() if isinstance(cell, str)}

    def _lines(self, escapes: dict[int, str], bold: str) -> Iterator[list[str]]:
        """The header and the rows as texts; `bold` is the form of the best of a row."""
        yield [printable(name).translate(escapes) for name in self.header]
        for cells in self._shown():
            texts = ((text.translate(escapes), is_best) for text, is_best in cells.values())
            yield [bold.format(text) if is_best else text for text, is_best in texts]

    def _shown(self) -> Iterator[dict[str, tuple[str, bool]]]:
        """Each row's cells by column: as text, and whether it is the best of its row."""
        for row in self.rows:
            rivals = {n: cell for n in self.bold_best if isinstance(cell := row.get(n), float)}
            best = max(rivals.values()) if len(rivals) > 1 else None
            winners = {n for n, cell in rivals.items() if cell == best}
            yield {n: (self._text(row.get(n)), n in winners) for n in self.header}

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return _NONE
        if isinstance(cell, float):
            return f"{cell:,.{self.digits}f}"
        return printable(cell) if isinstance(cell, str) else f"{cell:,}"
