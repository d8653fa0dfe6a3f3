"""A self-contained HTML page; its figures and tables are also written as files."""

import base64
import html
from pathlib import Path

from matplotlib.figure import Figure

from rainbow_tf.reporting import figures
from rainbow_tf.reporting.tables import Table

_FOLD_ROWS = 30
_LARGE = 8  # inches
_CSS = """
:root { color-scheme: light; --ink: #222; --soft: #5c5c5c; --line: #dcdcdc; --tint: #f6f6f3; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
  font: 17px/1.6 Georgia, "Iowan Old Style", "Times New Roman", serif; }
header, main, footer { max-width: 1080px; margin: 0 auto; padding: 0 28px; }
header { padding-top: 48px; }
h1 { font-size: 36px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 25px; margin: 56px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
p, li { max-width: 46em; }
p.lead { font-size: 20px; color: var(--soft); margin: 0 0 20px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; font: 14px/1.6 system-ui, sans-serif; }
a { color: #0b5a8a; }
figure { margin: 24px 0; }
figure img { display: block; max-width: 100%; height: auto; }
figure div { overflow-x: auto; }
figcaption, .caption { font: 14px/1.5 system-ui, sans-serif; color: var(--soft); text-align: left; }
figcaption { margin-top: 8px; max-width: 62em; }
.caption { margin: 22px 0 8px; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 24px 0; padding: 0; list-style: none; }
.facts li { background: var(--tint); border-radius: 8px; padding: 12px 18px; line-height: 1.3;
  font: 14px/1.3 system-ui, sans-serif; color: var(--soft); }
.facts b { display: block; font-size: 24px; color: var(--ink); }
.table { overflow: auto; margin-bottom: 22px; }
.table table { max-width: 100%; }
details .table { max-height: 720px; }
table { border-collapse: collapse; font: 13.5px/1.45 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
table.dense { font-size: 12px; }
.dense th, .dense td { padding: 4px 6px; }
th, td { padding: 4px 9px; text-align: right; border-bottom: 1px solid #ececec; }
th { position: sticky; top: 0; background: #fff; border-bottom: 2px solid var(--ink);
  vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
tbody tr:hover { background: var(--tint); }
td.best { font-weight: 700; }
.warning { background: #fff6e0; border-left: 4px solid #E69F00; padding: 10px 16px; }
details { margin: 18px 0; }
summary { cursor: pointer; font: 15px system-ui, sans-serif; color: #0b5a8a; }
code { font-size: 0.88em; background: var(--tint); padding: 1px 4px; border-radius: 3px; }
footer { margin: 64px auto 40px; font: 13px system-ui, sans-serif; color: var(--soft); }
@media (max-width: 640px) {
  header, main, footer { padding: 0 16px; }
  header { padding-top: 28px; }
  h1 { font-size: 28px; }
  .facts { gap: 8px; }
  .facts li { padding: 8px 12px; }
  figure.large img { max-width: none; width: 700px; }
  table { font-size: 12.5px; }
  th, td { padding: 4px 6px; }
  code { overflow-wrap: anywhere; }
  /* A wide table becomes a block per row, in which each cell has its column's name above it. */
  table.wide, .wide tbody { display: block; }
  .wide thead { display: none; }
  .wide tr { display: grid; grid-template-columns: repeat(3, 1fr);
    padding: 6px 0; border-bottom: 1px solid var(--line); }
  .wide td { border: 0; text-align: left; padding: 3px 4px; overflow-wrap: anywhere; }
  .wide td.none { display: none; }
  .wide td:first-child { grid-column: 1 / -1; font-weight: 700; }
  .wide td::before { content: attr(data-label); display: block; font-size: 11px;
    font-weight: 400; line-height: 1.25; color: var(--soft); }
}
@media print { details .table { max-height: none; } th { position: static; } }
"""


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

    def figure(self, figure: Figure, name: str, caption: str) -> None:
        """Adds a figure."""
        png = base64.b64encode(figures.save(figure, self._folder / "figures", name)).decode()
        # Too wide for a phone: the page lets it scroll sideways.
        large = " class=large" if figure.get_size_inches()[0] > _LARGE else ""
        self._body.append(
            f"<figure{large}><div><img alt='{html.escape(caption, quote=True)}' "
            f"src='data:image/png;base64,{png}'></div><figcaption>{html.escape(caption)}"
            f" <code>figures/{name}</code></figcaption></figure>"
        )

    def table(self, table: Table, *, is_folded: bool = False) -> None:
        """Adds a table, folded behind a line to click if it is long."""
        if not table.rows:
            return
        folder = self._folder / "tables"
        (folder / f"{table.name}.csv").write_text(table.csv())
        (folder / f"{table.name}.md").write_text(table.markdown())
        (folder / f"{table.name}.tex").write_text(table.latex())
        shown = table.html()
        if is_folded or len(table.rows) > _FOLD_ROWS:
            title = html.escape(table.caption.split(":")[0].rstrip("."))
            shown = f"<details><summary>{title} ({len(table.rows)} rows)</summary>{shown}</details>"
        self._body.append(shown)

    def write(self, version: str) -> Path:
        """Writes report.html, which needs no other file."""
        links = "".join(f"<a href='#c{i}'>{name}</a>" for i, name in enumerate(self._chapters, 1))
        path = self._folder / "report.html"
        path.write_text(
            "<!doctype html><html lang=en><head><meta charset=utf-8>"
            "<meta name=viewport content='width=device-width, initial-scale=1'>"
            # Without an icon of its own, a browser would ask a server for one.
            "<link rel=icon href='data:,'>"
            f"<title>{self._title}</title><style>{_CSS}</style></head><body>"
            f"<header><h1>{self._title}</h1><p class=lead>{self._lead}</p>"
            f"<nav>{links}</nav></header><main>{''.join(self._body)}</main>"
            f"<footer>Made by rainbow_tf {version}. Figures are also in figures/ as "
            "PNG and SVG, tables in tables/ as CSV, Markdown and LaTeX.</footer></body></html>\n"
        )
        return path
