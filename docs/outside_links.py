"""A hook of mkdocs: links from docs/ to files beside it.

In a clone they lead to the file. The built site holds docs/ alone, so there they show the path.
"""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs for every page; tests/test_docs.py checks that the files are there."""
    return _OUTSIDE.sub(_shown, markdown)


def _shown(match: re.Match[str]) -> str:
    text, path = match.groups()
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"
