import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import AGENTS, learning_curve, write_evaluation, write_run

from rainbow_tf.config import ConfigError
from rainbow_tf.report import write_report
from rainbow_tf.scoring.normalise import references

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PNG, SVG = b"\x89PNG\r\n\x1a\n", b"<?xml"


def run_report(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "rainbow_tf.report", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )


def read_table(folder, name):
    with (folder / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


class Reader(HTMLParser):
    """What a page shows, what it would load, and whether its elements close."""

    VOID = ("meta", "link", "img")

    def __init__(self, path):
        super().__init__()
        self.text, self.sources, self.captions, self._open = "", [], [], []
        self.feed(path.read_text())
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self._open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "data"):
                self.sources.append(value)
            assert not name.startswith("on")
        assert tag not in ("script", "iframe", "object")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            assert "url(" not in data
            assert "@import" not in data
        self.text += data + " "


def check_page(folder):
    """Laws of every report: it stands alone, and its files are there in every form."""
    page = Reader(folder / "report.html")
    assert all(source.startswith(("data:", "#")) for source in page.sources)
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert sum(source.startswith("data:image/png") for source in page.sources) == len(names)
    for name in names:
        assert (folder / f"figures/{name}.png").read_bytes().startswith(PNG)
        assert (folder / f"figures/{name}.svg").read_bytes().startswith(SVG)
    for path in (folder / "tables").iterdir():
        for suffix in ("csv", "md", "tex"):
            assert path.with_suffix(f".{suffix}").exists()
    return page.text


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of four agents on three games, one game missing for one agent, and a world
    without a human; the runs and their report.
    """
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    qualities = {"rainbow": 2.0, "dqn": 0.5, "no_noisy": 1.2, "noisy_dqn": 0.8}
    for game in ("pong", "qbert", "video_pinball"):
        for agent, quality in qualities.items():
            for seed in (1, 2):
                if (game, agent, seed) == ("qbert", "no_noisy", 2):
                    continue
                scores = learning_curve(rng, references("noop")[game], quality=quality, points=12)
                folder = runs / game / agent / f"seed_{seed}"
                write_run(folder, scores, agent=agent, seed=seed, game=game)
                if agent == "rainbow":
                    write_evaluation(folder, scores[-1], rng=rng)
                    write_evaluation(folder, scores[-1], protocol="paper/human")
    write_run(runs / "cart", [20.0, 150.0], protocol="gymnasium", environment="CartPole-v1")
    write_report(runs=runs, out=out, published="paper")
    return runs, out


def test_published_medians_are_those_of_the_tables(tmp_path):
    result = run_report("--published=paper", "--out=here", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    out = tmp_path / "here"
    assert "report.html" in result.stdout
    rows = {row["agent"]: row for row in read_table(out, "end_of_training")}
    for agent, noop, human in (("Rainbow", 227.0, 149.7), ("DQN", 78.7, 66.5)):
        assert round(float(rows[agent]["no-op starts"]), 1) == noop
        assert round(float(rows[agent]["human starts"]), 1) == human
    assert rows["A3C"]["no-op starts"] == ""
    text = check_page(out)
    for part in ("227.0 %", "149.7 %", "223 %", "153 %", "57", "54", "jamesbond", "riverraid",
                 "up_n_down"):  # fmt: skip
        assert part in text
    assert len(read_table(out, "games_paper_noop")) == 54
    assert "| **9,491.7** |" in (out / "tables/games_paper_noop.md").read_text()
    assert "\\textbf{9,491.7}" in (out / "tables/games_paper_noop.tex").read_text()
    assert "bank\\_heist" in (out / "tables/games_paper_noop.tex").read_text()


def test_a_study_has_every_chapter(study):
    _, out = study
    text = check_page(out)
    for part in (
        "Median score over time",
        "Games at each level",
        "What each part is worth",
        "End of training",
        "Every game",
        "Worlds without a human reference",
        "Predicted values against returns",
        "Missing runs",
        "The paper's tables",
    ):
        assert part in text
    assert {path.stem for path in (out / "figures").iterdir()} == {
        "median_curves", "thresholds", "ablations", "aggregates", "games_agents",
        "games_ablations", "worlds_agents", "values", "paper_medians",
    }  # fmt: skip


def test_missing_runs_are_listed_and_not_filled_in(study):
    _, out = study
    rows = read_table(out, "missing")
    assert [(r["game"], r["agent"], r["seed"]) for r in rows] == [("qbert", "no noisy", "2")]
    counts = {r["agent"]: r["seeds"] for r in read_table(out, "aggregates")}
    assert counts["no noisy"] == "1 to 2"
    assert counts["DQN"] == "2"


def test_worlds_without_a_reference_have_raw_scores(study):
    _, out = study
    (row,) = read_table(out, "worlds")
    assert (row["world"], float(row["score"]), row["protocol"]) == ("cartpole_v1", 150, "gymnasium")


def test_the_paper_stands_beside_on_the_same_games(study):
    _, out = study
    rows = [r for r in read_table(out, "aggregates") if r["starts"] == "no-op starts"]
    games = {row["agent"]: int(row["games"]) for row in rows}
    assert games["Rainbow (paper)"] == games["Rainbow"] == 3
    sources = {row["agent"]: row["scores from"] for row in rows}
    assert sources["Rainbow"] == "evaluate"
    assert sources["DQN"] == "best in training"
    assert sources["DQN (paper)"] == "paper"


def test_figures_say_what_they_are_made_of(study):
    _, out = study
    # Text is drawn as paths; each glyph run keeps its text as a comment.
    for name, games in (("median_curves", 3), ("thresholds", 3), ("ablations", 3), ("values", 3)):
        comments = " ".join(
            re.findall(r"<!-- (.*?) -->", (out / f"figures/{name}.svg").read_text())
        )
        assert f"{games} games" in comments, name
        assert "seeds each" in comments, name
    curves = (out / "figures/median_curves.svg").read_text()
    assert "Frames (millions)" in curves
    assert "Median score (% of human)" in curves


def test_the_same_runs_give_the_same_bytes(study, tmp_path):
    runs, out = study
    write_report(runs=runs, out=tmp_path, published="paper")
    for path in out.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(out)).read_bytes(), path


@pytest.mark.parametrize("points", [1, 2, 30])
def test_one_game_and_one_run(tmp_path, points):
    write_run(tmp_path / "run", list(np.linspace(-20, 14.6, points)))
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    text = check_page(tmp_path / "out")
    assert "Rainbow on pong" in text
    (row,) = read_table(tmp_path / "out", "end_of_training")
    assert float(row["no-op starts"]) == pytest.approx(100 if points > 1 else 100 * 0.7 / 35.3)
    assert "every agent has every game" in text


def test_a_run_without_a_score_is_reported(tmp_path):
    write_run(tmp_path / "run", [])
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    assert "no score yet" in check_page(tmp_path / "out")


def test_an_older_report_leaves_nothing_in_a_new_one(tmp_path):
    out = tmp_path / "out"
    write_run(tmp_path / "gym/cart", [2.0], protocol="gymnasium", environment="CartPole-v1")
    write_run(tmp_path / "atari/run", [1.0])
    write_report(runs=tmp_path / "atari", out=out)
    (out / "figures/notes.txt").write_text("mine")
    write_report(runs=tmp_path / "gym", out=out)
    assert {path.name for path in (out / "figures").iterdir()} == {
        "worlds_agents.png", "worlds_agents.svg", "notes.txt",
    }  # fmt: skip


def test_games_that_the_waterfall_leaves_out_are_named(tmp_path):
    for agent, score in (("rainbow", 1.0), ("dqn", 5.0), ("no_noisy", 2.0)):
        write_run(tmp_path / "runs" / agent, [score, score], agent=agent)
    write_report(runs=tmp_path / "runs", out=tmp_path / "out")
    assert "DQN's area is not below Rainbow's: pong." in check_page(tmp_path / "out")


def test_training_returns_are_labelled(tmp_path):
    folder = write_run(tmp_path / "run", [])
    (folder / "train.csv").write_text("frames,return_mean_100\n500000,-20\n1000000,-19\n")
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    assert "not evaluations" in check_page(tmp_path / "out")
    (row,) = read_table(tmp_path / "out", "aggregates")
    assert row["scores from"] == "training returns"


def test_mixed_protocols_are_refused_or_labelled(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    for protocol in ("paper/noop", "sticky/noop"):
        write_run(runs / protocol, [1.0, 2.0], protocol=protocol)
    with pytest.raises(ConfigError, match="--mixed"):
        write_report(runs=runs, out=out)
    assert not out.exists()
    write_report(runs=runs, out=out, is_mixed=True)
    text = check_page(out)
    assert "Mixed protocols" in text
    labels = {row["agent"]: row["protocol"] for row in read_table(out, "aggregates")}
    assert labels == {
        "Rainbow [paper/noop]": "paper/noop",
        "Rainbow [sticky/noop]": "sticky/noop",
    }


def test_sticky_scores_beside_the_papers_are_labelled(tmp_path):
    write_run(tmp_path / "run", [1.0, 2.0], protocol="sticky/noop")
    out = tmp_path / "out"
    write_report(runs=tmp_path / "run", out=out, published="paper", is_mixed=True)
    assert "Mixed protocols" in check_page(out)
    starts = {row["agent"]: row["starts"] for row in read_table(out, "aggregates")}
    assert starts["Rainbow"] == "no-op starts, sticky actions"


def test_starts_of_a_policy_are_never_called_human(tmp_path):
    folder = write_run(tmp_path / "run", [1.0, 2.0])
    write_evaluation(folder, 5.0, protocol="paper/policy")
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    check_page(tmp_path / "out")
    (header,) = {tuple(row) for row in read_table(tmp_path / "out", "end_of_training")}
    assert "starts recorded by a policy, not by people" in header
    assert "human starts" not in header


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["--runs", "--published=paper"]),
        (["--runs=empty"], ["--runs=empty"]),
        (["--runs=nowhere"], ["--runs=nowhere"]),
        (["--runs=cut"], ["cut/run/eval.csv", "line 3"]),
        (["--runs=unknown"], ["unknown/run/config.json", "pongg"]),
        (["--runs=mixed"], ["paper/noop", "sticky/noop", "--mixed"]),
        (["--published=paper", "--out=cut/run/eval.csv"], ["--out=cut/run/eval.csv"]),
        (["runs"], ["'runs' is not a flag"]),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, named):
    (tmp_path / "empty").mkdir()
    path = write_run(tmp_path / "cut/run", [1.0, 2.0]) / "eval.csv"
    path.write_text(path.read_text()[:-9])
    path = write_run(tmp_path / "unknown/run", [1.0]) / "config.json"
    path.write_text(path.read_text().replace('"pong"', '"pongg"'))
    for protocol in ("paper/noop", "sticky/noop"):
        write_run(tmp_path / "mixed" / protocol, [1.0], protocol=protocol)
    result = run_report(*arguments, cwd=tmp_path)
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert not (tmp_path / "report").exists(), "a refused report leaves nothing behind"


def test_no_tensorflow_is_loaded():
    code = "import sys, rainbow_tf.report; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is installed"
)


def open_in_browser(path, folder):
    """The page as a browser builds it, its console, and what it asked the network for."""
    log = folder / "net.json"
    result = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom", path.resolve().as_uri()],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(folder)},
        check=False,
    )  # fmt: skip
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    # A browser has requests of its own, which come from no origin.
    urls = [e["url"] for e in events if e.get("initiator", "not an origin") != "not an origin"]
    return result.stdout, console, [url for url in urls if not url.startswith(("file:", "data:"))]


@needs_chromium
def test_a_browser_opens_it_without_an_error_or_a_request(study, tmp_path):
    _, out = study
    page, console, urls = open_in_browser(out / "report.html", tmp_path)
    assert "What each part is worth" in page
    assert console == []
    assert urls == []


@needs_chromium
def test_the_browser_tells_of_errors_and_requests(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://localhost:9/a.png'><script>console.error('oh')</script>")
    _, console, urls = open_in_browser(path, tmp_path)
    assert len(console) == 1
    assert urls == ["http://localhost:9/a.png"]


@pytest.mark.slow
def test_a_study_as_large_as_the_papers(tmp_path):
    rng = np.random.default_rng(0)
    for game, reference in references("noop").items():
        for agent in AGENTS:
            for seed in range(1, 6):
                scores = learning_curve(rng, reference, quality=rng.lognormal(), points=200)
                folder = tmp_path / f"runs/{game}/{agent}/seed_{seed}"
                write_run(folder, scores, agent=agent, seed=seed, game=game)
    started = time.perf_counter()
    result = run_report("--runs=runs", cwd=tmp_path)
    seconds = time.perf_counter() - started
    assert result.returncode == 0, result.stderr
    gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{seconds:.1f} s, {gigabytes:.2f} GB")
    assert seconds < 60
    assert gigabytes < 2
    text = check_page(Path(tmp_path / "report"))
    assert "3,990" in text
