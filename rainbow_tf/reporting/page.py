"""A self-contained HTML page; its figures and tables are also written as files."""

import base64
import html
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rainbow_tf.reporting.figures import add_note
from rainbow_tf.reporting.tables import Row, Table

_FOLD_ROWS = 30
_LARGE = 8  # inches


class Page:
    """Collects chapters; figures and tables are written to their files at once."""

    def __init__(self, folder: Path, title: str, lead: str):
        self._folder = folder
        self._title, self._lead = html.escape(title), html.escape(lead)
        self._chapters: list[str] = []
        self._body: list[str] = []
        is_old = (folder / "report.html").exists()
        for name, suffixes in (("figures", (".png", ".svg")), ("tables", (".csv", ".md", ".tex"))):
            (folder / name).mkdir(parents=True, exist_ok=True)
            # Files of an older report must not be taken for a part of this one.
            for path in (folder / name).iterdir() if is_old else ():
                if path.suffix in suffixes:
                    path.unlink()

    def chapter(self, title: str) -> None:
        """Starts a chapter."""
        self._chapters.append(html.escape(title))
        self._body.append(f"<h2 id=c{len(self._chapters)}>{self._chapters[-1]}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        """Adds a paragraph of plain text, with code in backquotes."""
        parts = html.escape(text).split("`")
        marked = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
        self._body.append(f"<p class='{kind}'>{marked}</p>" if kind else f"<p>{marked}</p>")

    def facts(self, facts: list[tuple[str, str]]) -> None:
        """Adds a row of large numbers with their names."""
        items = "".join(f"<li><b>{value}</b>{html.escape(name)}</li>" for value, name in facts)
        self._body.append(f"<ul class=facts>{items}</ul>")

    def figure(self, name: str, caption: str, figure: Figure, *, note: str) -> None:
        """Adds a figure and a note at its foot; its files have the same bytes every time."""
        add_note(figure, note)
        path = self._folder / "figures" / name
        figure.savefig(f"{path}.png", dpi=144, metadata={"Software": None})
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(f"{path}.svg", metadata={"Date": None})
        png = base64.b64encode(Path(f"{path}.png").read_bytes()).decode()
        # Too wide for a phone: the page lets it scroll sideways.
        large = " class=large" if figure.get_size_inches()[0] > _LARGE else ""
        self._body.append(
            f"<figure{large}><div><img alt='{html.escape(caption, quote=True)}' "
            f"src='data:image/png;base64,{png}'></div><figcaption>{html.escape(caption)}"
            f" <code>figures/{name}</code></figcaption></figure>"
        )

    def table(
        self, name: str, caption: str, rows: list[Row], *, is_folded: bool = False, **settings: Any
    ) -> None:
        """Adds a `Table` unless it is empty, folded behind a line to click if it is long."""
        if not rows:
            return
        table = Table(caption, rows, **settings)
        forms = {"csv": table.csv(), "md": table.markdown(), "tex": table.latex()}
        for suffix, text in forms.items():
            (self._folder / f"tables/{name}.{suffix}").write_text(text)
        shown = table.html()
        if is_folded or len(rows) > _FOLD_ROWS:
            title = html.escape(caption.split(":")[0].rstrip("."))
            shown = f"<details><summary>{title} ({len(rows)} rows)</summary>{shown}</details>"
        self._body.append(shown)

    def write(self, version: str) -> Path:
        """Writes report.html, which needs no other file."""
        links = "".join(f"<a href='#c{i}'>{name}</a>" for i, name in enumerate(self._chapters, 1))
        css = (resources.files("rainbow_tf.reporting") / "page.css").read_text()
        path = self._folder / "report.html"
        path.write_text(
            "<!doctype html><html lang=en><head><meta charset=utf-8>"
            "<meta name=viewport content='width=device-width, initial-scale=1'>"
            # Without an icon of its own, a browser would ask a server for one.
            "<link rel=icon href='data:,'>"
            f"<title>{self._title}</title><style>\n{css}</style></head><body>"
            f"<header><h1>{self._title}</h1><p class=lead>{self._lead}</p>"
            f"<nav>{links}</nav></header><main>{''.join(self._body)}</main>"
            f"<footer>Made by rainbow_tf {version}. Figures are also in figures/ as "
            "PNG and SVG, tables in tables/ as CSV, Markdown and LaTeX.</footer></body></html>\n"
        )
        return path
