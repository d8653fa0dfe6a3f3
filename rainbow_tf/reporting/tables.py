"""A table as CSV, Markdown, LaTeX and HTML."""

import csv
import html
import io
from dataclasses import dataclass

Cell = str | int | float | None

_LATEX = {"\\": r"\textbackslash{}", **{c: f"\\{c}" for c in "&%$#_{}"}}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}  # noqa: RUF001


@dataclass(frozen=True)
class Table:
    """Rows of cells; numbers have `digits` decimals but in CSV, and None is a dash."""

    name: str
    caption: str
    header: list[str]
    rows: list[list[Cell]]
    digits: int = 1
    bold_best: bool = False

    def csv(self) -> str:
        """As CSV, with unrounded numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(
            [f"{cell:.10g}" if isinstance(cell, float) else cell for cell in row]
            for row in self.rows
        )
        return text.getvalue()

    def markdown(self) -> str:
        """As Markdown."""
        marks = ["---" if i == 0 else "---:" for i in range(len(self.header))]
        lines = [self.header, marks]
        for row, best in self._shown():
            lines.append([f"**{cell}**" if b else cell for cell, b in zip(row, best, strict=True)])
        body = "\n".join("| " + " | ".join(map(_markdown, line)) + " |" for line in lines)
        return f"{self.caption}\n\n{body}\n"

    def latex(self) -> str:
        """As a LaTeX tabular for the booktabs package."""
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [
            f"% {self.caption}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            " & ".join(map(_latex, self.header)) + " \\\\",
            "\\midrule",
        ]
        for row, best in self._shown():
            cells = [
                f"\\textbf{{{_latex(cell)}}}" if b else _latex(cell)
                for cell, b in zip(row, best, strict=True)
            ]
            lines.append(" & ".join(cells) + " \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])

    def html(self) -> str:
        """As HTML, with its caption."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.header)
        body = []
        for row, best in self._shown():
            cells = [
                f"<td class=best>{html.escape(cell)}</td>" if b else f"<td>{html.escape(cell)}</td>"
                for cell, b in zip(row, best, strict=True)
            ]
            body.append(f"<tr>{''.join(cells)}</tr>")
        return (
            f"<div class=caption>{html.escape(self.caption)}</div>"
            f"<div class=table><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def _shown(self) -> list[tuple[list[str], list[bool]]]:
        """Cells as text, and which of them are the best of their row."""
        shown = []
        for row in self.rows:
            numbers = [cell for cell in row[1:] if isinstance(cell, float)]
            best = max(numbers) if self.bold_best and len(numbers) > 1 else None
            marked = [best is not None and cell == best for cell in row]
            shown.append(([self._text(cell) for cell in row], marked))
        return shown

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return "–"  # noqa: RUF001
        if isinstance(cell, float):
            return f"{cell:,.{self.digits}f}"
        return str(cell)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")
