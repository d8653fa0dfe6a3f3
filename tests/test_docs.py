"""The documentation: its links lead somewhere, its commands exist, its pages are up to date."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from absl import flags

import rainbow_tf.flags
from rainbow_tf.command import setting_groups
from rainbow_tf.config import Config

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("colab/*.md"),
        *ROOT.glob("colab/*.ipynb"),
        ROOT / "export/serving/README.md",
        ROOT / "rainbow_tf/scoring/data/README.md",
    ]
)
TARGET = re.compile(r"\]\(([^()\s]+)\)")  # of a link, an image, or an image in a link
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def load_generator():
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "docs/configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def markdown_of(path):
    """The Markdown of a page, or of a notebook's text cells."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@cache
def files():
    """What a clone holds: what git knows of, or would if it were added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # not a clone
        return {path for path in ROOT.rglob("*") if path.is_file()}
    return {path for line in listed.stdout.splitlines() if (path := ROOT / line).exists()}


def anchors(path):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", markdown_of(path)), re.MULTILINE)
    texts = (TARGET.sub("", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in texts}


def broken_links(path):
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", markdown_of(path)))
    broken = []
    for target in TARGET.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        found = (path.parent / file).resolve() if file else path
        is_folder = found.is_dir() and any(found in known.parents for known in files())
        if found not in files() and not is_folder:
            broken.append(f"{target}: no such file in a clone")
        elif anchor and anchor not in anchors(found):
            broken.append(f"{target}: no such heading")
    return broken


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_and_anchors_resolve(path):
    assert broken_links(path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "missing.md: no such file in a clone"),
        ("[a](README.md#nowhere)", "README.md#nowhere: no such heading"),
        ("[a](#nowhere)", "#nowhere: no such heading"),
        ("[![b](missing.svg)](README.md)", "missing.svg: no such file in a clone"),
    ],
)
def test_link_checker_finds(tmp_path, monkeypatch, text, problem):
    (tmp_path / "README.md").write_text("# Here it is\n\n[a](#here-it-is) `[a](code.md)`")
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setitem(globals(), "files", lambda: {tmp_path / "README.md", tmp_path / "page.md"})
    assert broken_links(tmp_path / "README.md") == []
    assert problem in broken_links(tmp_path / "page.md")


def test_every_setting_is_on_the_configuration_page():
    generator = load_generator()
    page = generator.PAGE.read_text()
    assert page == generator.page(), "docs/configuration.md is out of date; make docs writes it"
    groups = setting_groups()
    assert next(iter(groups)) == "The environment"
    assert [name for names in groups.values() for name in names] == list(
        Config.__dataclass_fields__
    )


class Loaded(HTMLParser):
    """What a page loads when it is opened: not where its links lead."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        wanted = {"link": "href", "script": "src", "img": "src", "iframe": "src"}.get(tag)
        self.addresses += [value for name, value in attributes if name == wanted and value]


def test_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    for page in (ROOT / "docs").glob("*.md"):
        built_page = tmp_path / page.with_suffix(".html").name
        text = built_page.read_text()
        assert "--8&lt;--" not in text
        for address in Loaded(text).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
    serving = (tmp_path / "serving.html").read_text()
    assert "allowed_batch_sizes" in serving  # the README of the serving files is in it
    assert not list(tmp_path.rglob("*.py"))


def shell_lines(path):
    """Commands in a page's shell blocks or in a notebook's cells, each on one line."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        blocks = ["\n".join(code)]
    else:
        blocks = [text for _, kind, text in FENCE.findall(markdown_of(path)) if kind == "sh"]
    for block in blocks:
        yield from block.replace("\\\n", " ").splitlines()


@cache
def flags_of(module):
    """The flags that a command knows."""
    main = importlib.util.find_spec(f"{module}.__main__") if is_package(module) else None
    values = flags.FlagValues()
    importlib.import_module(main.name if main else module).COMMAND.define_flags(values)
    return {*values, "help"}


def is_package(module):
    return importlib.util.find_spec(module).submodule_search_locations is not None


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_and_their_flags_exist(path):
    for line in shell_lines(path):
        for module, rest in re.findall(r"python -m (rainbow_tf[\w.]*)([^;|&#)]*)", line):
            assert importlib.util.find_spec(module) is not None, line
            for flag in re.findall(r"(?<=\s)--(\w+)", rest):
                known = flags_of(module)
                assert flag in known or flag.removeprefix("no") in known, f"--{flag} in: {line}"
        for preset in re.findall(r"--preset=([a-z0-9_/]+)", line):
            assert preset in rainbow_tf.flags.names(), line
        for target in re.findall(r"^make ([a-z-]+)", line):
            assert re.search(f"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


@pytest.mark.parametrize("path", [p for p in PAGES if p.suffix == ".md"], ids=name_of)
def test_shell_and_yaml_blocks_parse(path):
    for _, kind, text in FENCE.findall(markdown_of(path)):
        if kind == "sh":
            checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr
        elif kind == "yaml":
            yaml.safe_load(text)
        elif kind == "python":
            compile(text, name_of(path), "exec")
