"""A hook of mkdocs: the start page is the README, the notebooks are part of the site, and links to
other files of a clone, which the site does not hold, show the path.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the notebooks and their page."""
    for path in sorted((_ROOT / "colab").glob("*.*")):
        files.append(File.generated(config, f"colab/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Called by mkdocs for every page; tests/test_docs.py checks that the files are there."""
    if page.file.src_uri == "index.md":
        markdown = (_ROOT / "README.md").read_text()
        markdown = markdown.replace("](docs/", "](").replace("](results/", "](../results/")
        markdown = markdown.replace("](export/serving/README.md", "](serving.md")
    markdown = markdown.replace("](../colab/", "](colab/")
    return _OUTSIDE.sub(_shown, markdown)


def _shown(match: re.Match[str]) -> str:
    text, path = match.groups()
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"
