import csv
import json
import os
import re
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
    """Two seeds of four agents on three games, one run missing, and one seed of an environment
    without a human reference; the runs and their report.
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
        "The effect of each component",
        "End of training",
        "Every game",
        "Scores by environment",
        "Predicted values against returns",
        "Missing runs",
        "The paper's tables",
    ):
        assert part in text
    assert {path.stem for path in (out / "figures").iterdir()} == {
        "median_curves", "thresholds", "ablations", "aggregates", "games_agents",
        "games_ablations", "environments_agents", "values", "paper_medians",
    }  # fmt: skip


def test_missing_runs_are_listed_and_not_filled_in(study):
    _, out = study
    rows = read_table(out, "missing")
    assert [(r["game"], r["agent"], r["seed"]) for r in rows] == [("qbert", "no noisy", "2")]
    counts = {r["agent"]: r["seeds"] for r in read_table(out, "aggregates")}
    assert counts["no noisy"] == "1 to 2"
    assert counts["DQN"] == "2"


def test_environments_without_a_reference_have_raw_scores(study):
    _, out = study
    (row,) = read_table(out, "environments")
    # One seed has no lowest and highest.
    assert list(row) == ["environment", "agent", "score", "seeds", "scores from", "protocol"]
    assert (row["environment"], float(row["score"])) == ("cartpole_v1", 150)
    assert row["protocol"] == "gymnasium"


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
    assert "<!-- Frames -->" in curves
    assert "Median score (% of human)" in curves


def test_ablations_have_a_median_and_bounds(study):
    _, out = study
    rows = {row["game"]: float(row["no noisy"]) for row in read_table(out, "ablations")}
    games = [rows.pop(game) for game in ("pong", "qbert", "video_pinball")]
    median, low, high = rows.values()
    assert next(iter(rows)) == "median"
    assert median == pytest.approx(np.median(games))
    assert low < median < high


def test_the_same_runs_give_the_same_bytes(study, tmp_path):
    runs, out = study
    write_report(runs=runs, out=tmp_path, published="paper")
    for path in out.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(out)).read_bytes(), path


def test_one_game_has_no_median_over_games(tmp_path):
    write_run(tmp_path / "run", list(np.linspace(-20, 14.6, 30)))
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    text = check_page(tmp_path / "out")
    assert "Rainbow on pong" in text
    assert "edian score over time" not in text
    assert {path.stem for path in (tmp_path / "out/figures").iterdir()} == {"games_agents"}
    (row,) = read_table(tmp_path / "out", "aggregates")
    assert "median" not in row
    assert float(row["mean"]) == pytest.approx(100)
    assert "every agent has every game" in text


def test_a_level_that_is_just_reached_counts(tmp_path):
    # pong, no-op: random -20.7, human 14.6, which is 100 %; qbert: human 13455.0.
    for game, score in (("pong", 14.6), ("qbert", 13454.0)):
        write_run(tmp_path / "runs" / game, [0.0, score], game=game)
    write_report(runs=tmp_path / "runs", out=tmp_path / "out")
    (row,) = read_table(tmp_path / "out", "thresholds")
    assert [row[level] for level in ("50 %", "100 %", "200 %")] == ["2", "1", "0"]
    drawn = (tmp_path / "out/figures/thresholds.svg").read_text()
    assert "<!-- at least 100 % of human -->" in drawn
    assert "<!-- at least 200 % of human -->" not in drawn


def test_single_points_and_unreached_levels_are_sentences(tmp_path):
    for game, score in (("pong", -20.0), ("qbert", 200.0)):
        write_run(tmp_path / "runs" / game, [score], game=game)
    write_report(runs=tmp_path / "runs", out=tmp_path / "out")
    text = check_page(tmp_path / "out")
    assert list((tmp_path / "out/figures").iterdir()) == []
    # pong: 0.7 of 35.3 points; qbert: 36.1 of 13,291.1.
    assert "Median score: Rainbow 1.1 % of human after 1M frames." in text
    assert "No agent reaches 20 % of human in any game" in text
    assert "pong has one score per agent, so no curve: Rainbow -20.0 after 1M frames." in text
    assert float(read_table(tmp_path / "out", "aggregates")[0]["median"]) == pytest.approx(
        50 * (0.7 / 35.3 + 36.1 / 13291.1)
    )


def test_a_short_run_shows_its_training_and_nothing_that_does_not_apply(tmp_path):
    environment = {"protocol": "gymnasium", "environment": "CartPole-v1"}
    folder = write_run(tmp_path / "run", [190.0], period=25_000, **environment)
    rows = "".join(f"{500 * i},{2 * i}\n" for i in range(1, 51))
    (folder / "train.csv").write_text(f"frames,return_mean_100\n{rows}")
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    text = check_page(tmp_path / "out")
    assert "human-normalised" not in text
    assert "Medians" not in text
    assert "25K" in text
    drawn = (tmp_path / "out/figures/environments_agents.svg").read_text()
    assert "thin lines: training returns" in drawn
    # The line of 50 training returns, behind an evaluation that is a single point.
    assert max(path.count("L ") for path in re.findall(r'<path d="([^"]*)"', drawn)) >= 40


@pytest.fixture(scope="module")
def atari100k(tmp_path_factory):
    """Evaluated runs of data-efficient Rainbow beside published scores."""
    folder, rng = tmp_path_factory.mktemp("atari100k"), np.random.default_rng(0)
    for game, score in (("pong", -19.0), ("bank_heist", 200.0), ("freeway", 25.0)):
        run = write_run(
            folder / "runs" / game, [score], game=game, n_step=20, network="data_efficient"
        )
        scores = score + rng.normal(size=100)
        write_evaluation(run, scores, snapshot="latest", eval_epsilon=0.001)
    write_report(runs=folder / "runs", out=folder / "out", published="atari100k")
    return folder / "out"


def test_atari100k_beside_published_scores(atari100k):
    text = check_page(atari100k)
    rows = {row["game"]: row for row in read_table(atari100k, "games_paper_noop")}
    published = "Data-efficient Rainbow (published)"
    assert list(rows["pong"]) == [
        "game", "random", "human", "Data-efficient Rainbow", published, "SimPLe", "DrQ(ε)", "SPR",
        "IRIS", "EfficientZero", "BBF",
    ]  # fmt: skip
    assert [rows["bank_heist"][name] for name in ("human", "SPR", "BBF")] == [
        "753.1", "345.4", "671.9",
    ]  # fmt: skip
    assert float(rows["pong"]["Data-efficient Rainbow"]) == pytest.approx(-19, abs=0.5)
    aggregates = {row["agent"]: row for row in read_table(atari100k, "aggregates")}
    for kind in ("median", "interquartile mean", "mean"):
        ours = aggregates["Data-efficient Rainbow"]
        low, high = map(float, ours[f"95 % of {kind}"].split(" to "))
        assert low < float(ours[kind]) < high
        assert aggregates["SPR"][kind] != ""
        assert aggregates["SPR"][f"95 % of {kind}"] == ""
    assert ours["intervals over"] == "episodes"
    assert "They do not cover the spread between seeds" in text
    assert "100 episodes, latest weights, epsilon 0.001" in text


def test_dopamines_curves_stand_beside_ours(tmp_path):
    write_run(tmp_path / "run", [-20.0, -19.0, -18.0, -10.0])
    write_report(runs=tmp_path / "run", out=tmp_path / "out", published="dopamine")
    check_page(tmp_path / "out")
    rows = read_table(tmp_path / "out", "dopamine")
    assert [row["million frames"] for row in rows] == ["1", "2", "3"]
    assert [row["ours"] for row in rows] == ["-20", "-19", "-18"]
    assert rows[2]["Dopamine"] == "-19"
    caption = (tmp_path / "out/tables/dopamine.md").read_text()
    drawn = (tmp_path / "out/figures/games_agents.svg").read_text()
    assert "<!-- Rainbow (Dopamine) -->" in drawn
    for text in (caption, drawn):
        assert "training returns with sticky actions" in text


def test_a_run_without_a_score_is_reported(tmp_path):
    write_run(tmp_path / "run", [])
    write_report(runs=tmp_path / "run", out=tmp_path / "out")
    assert "no score yet" in check_page(tmp_path / "out")


def test_an_older_report_leaves_nothing_in_a_new_one(tmp_path):
    out = tmp_path / "out"
    write_run(tmp_path / "gym/cart", [2.0, 3.0], protocol="gymnasium", environment="CartPole-v1")
    write_run(tmp_path / "atari/run", [1.0, 2.0])
    write_report(runs=tmp_path / "atari", out=out)
    (out / "figures/notes.txt").write_text("mine")
    write_report(runs=tmp_path / "gym", out=out)
    assert {path.name for path in (out / "figures").iterdir()} == {
        "environments_agents.png", "environments_agents.svg", "notes.txt",
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
    write_report(runs=runs, out=out, published="paper", is_mixed=True)
    text = check_page(out)
    assert "Mixed protocols" in text
    starts = {row["agent"]: row["starts"] for row in read_table(out, "aggregates")}
    assert starts["Rainbow [paper/noop]"] == "no-op starts"
    assert starts["Rainbow [sticky/noop]"] == "no-op starts, sticky actions"


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
        ({}, ["--runs", "--published=paper"]),
        ({"published": "dopamine"}, ["--runs"]),
        ({"runs": "empty"}, ["--runs=", "empty"]),
        ({"runs": "nowhere"}, ["--runs=", "nowhere"]),
        ({"runs": "cut"}, ["cut/run/eval.csv", "line 3"]),
        ({"runs": "unknown"}, ["unknown/run/config.json", "pongg"]),
        ({"runs": "mixed"}, ["paper/noop", "sticky/noop", "--mixed"]),
        ({"published": "paper", "out": "cut/run/eval.csv"}, ["--out=", "cut/run/eval.csv"]),
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
    out = tmp_path / arguments.pop("out", "report")
    runs = tmp_path / arguments["runs"] if "runs" in arguments else None
    with pytest.raises(ConfigError) as error:
        write_report(runs=runs, out=out, published=arguments.get("published"))
    message = str(error.value)
    assert "\n" not in message
    for part in named:
        assert part in message
    assert not (tmp_path / "report").exists(), "a refused report leaves nothing behind"


def test_the_command_ends_with_one_sentence(tmp_path):
    for arguments, named in ((["--runs=nowhere"], "--runs=nowhere"), (["x"], "'x' is not a flag")):
        result = run_report(*arguments, cwd=tmp_path)
        assert result.returncode != 0
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert named in result.stderr


def test_no_tensorflow_is_loaded():
    code = "import sys, rainbow_tf.report; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is installed"
)


def run_browser(path, folder, *options):
    """The page as a browser builds it, and what the browser prints."""
    result = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", *options, "--dump-dom", path.resolve().as_uri()],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(folder)},
        check=False,
    )  # fmt: skip
    return result.stdout, result.stderr


def open_in_browser(path, folder):
    """The page as a browser builds it, its console, and what it asked the network for."""
    log = folder / "net.json"
    page, printed = run_browser(path, folder, f"--log-net-log={log}")
    console = [line for line in printed.splitlines() if "CONSOLE" in line]
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    # A browser has requests of its own, which come from no origin.
    urls = [e["url"] for e in events if e.get("initiator", "not an origin") != "not an origin"]
    return page, console, [url for url in urls if not url.startswith(("file:", "data:"))]


@needs_chromium
def test_a_browser_opens_it_without_an_error_or_a_request(study, tmp_path):
    _, out = study
    page, console, urls = open_in_browser(out / "report.html", tmp_path)
    assert "The effect of each component" in page
    assert console == []
    assert urls == []


@needs_chromium
def test_the_browser_reports_errors_and_requests(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://localhost:9/a.png'><script>console.error('oh')</script>")
    _, console, urls = open_in_browser(path, tmp_path)
    assert len(console) == 1
    assert urls == ["http://localhost:9/a.png"]


WIDTHS = """<iframe src='{url}' style='width: {width}px; height: 900px'></iframe><script>
window.onload = () => {{
  const page = document.querySelector('iframe').contentDocument, root = page.documentElement;
  page.querySelectorAll('details').forEach(d => d.open = true);
  const wide = [...page.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth);
  const names = wide.map(t => t.innerText.slice(0, 60)).join(' / ');
  document.title = `${{root.scrollWidth - root.clientWidth}} over, tables: [${{names}}]`;
}};
</script>"""


@needs_chromium
def test_nothing_runs_off_the_page_at_1200_nor_at_390_pixels(study, atari100k, tmp_path):
    for out in (study[1], atari100k):
        for width in (1200, 390):
            path = tmp_path / "frame.html"
            path.write_text(WIDTHS.format(url=(out / "report.html").as_uri(), width=width))
            # Virtual time makes the browser wait for the script.
            options = ("--allow-file-access-from-files", "--virtual-time-budget=9000")
            page, _ = run_browser(path, tmp_path, *options)
            assert re.search("<title>(.*?)</title>", page, re.DOTALL)[1] == "0 over, tables: []", (
                width
            )


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
    # Not getrusage: a process inherits the peak of the one that started it.
    code = (
        "from pathlib import Path; from rainbow_tf.report import COMMAND;"
        "COMMAND.main(['report', '--runs=runs']); print(Path('/proc/self/status').read_text())"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - started
    gigabytes = int(re.search(r"VmHWM:\s+(\d+) kB", ended.stdout)[1]) / 2**20
    print(f"{seconds:.1f} s, {gigabytes:.2f} GB")
    assert seconds < 60
    assert gigabytes < 2
    text = check_page(Path(tmp_path / "report"))
    assert "3,990" in text
