"""The report: one page that loads nothing, says hypothesis first, and shows what lies under `runs/`."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from workbench.report.page import CLAIM_BOUNDARY, render, write_report
from workbench.report.runs import read_runs
from workbench.report.waterfall import waterfall

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Tags with their attributes, and the text in order."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if not self.tags or self.tags[-1][0] != "style":
            self.words += data.split()

    @property
    def text(self):
        return " ".join(self.words)


@pytest.fixture
def page(results):
    return Page(render(results, claims=["MTLIO reads land in shared buffers"]))


def test_the_claim_boundary_and_the_word_hypothesis_come_first(page):
    assert CLAIM_BOUNDARY in page.text
    assert page.text.index("Hypothesis") < page.text.index(CLAIM_BOUNDARY) < page.text.index("Gates, profile mini")
    assert len(page.text.split("Hypothesis")[0]) < 200


def test_nothing_is_loaded_from_anywhere(results):
    html = render(results)
    addresses = [value for _, attributes in Page(html).tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\(|<script", html)


def test_text_of_results_is_escaped(results):
    html = render(results)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_gates_show_their_verdict_with_its_clauses(page):
    assert "B locality" in page.text
    assert "routes repeat" in page.text
    assert page.text.count("not in this version") >= 1
    assert "> 1" in page.text


def test_cohorts_show_the_invalid_ones_with_their_reasons(page):
    circles = [attributes for tag, attributes in page.tags if tag == "circle"]
    assert [circle["fill"] for circle in circles] == ["#f58518", "white"]
    assert "cohort 2: ratio 0.8200, not valid: control_drift" in page.text
    assert "ratio 0.9000, interval 0.8800 to 0.9200" in page.text


def test_superseded_verdicts_stay(page):
    assert page.text.count("superseded by") == 1
    assert "ratio 1.2" in page.text
    assert "ratio 0.9" in page.text


def test_unproven_and_evidence_are_said(page):
    for words in (
        "no result here was made on any",
        "no result here ran profile flash-next",
        "Gates without a physical pass: A, B, C, D, E, F, G.",
        "Shown by a test on a Mac alone: MTLIO reads land in shared buffers.",
        "waiting_behind_hits",
        "BadInput: no store",
        "a virtual clock",
    ):
        assert words in page.text


def test_a_tokens_time_adds_up(results):
    run = next(run for run in read_runs(results) if run.about["kind"] == "generate" and run.result.metrics)
    fall = waterfall(run)
    assert {part.key: round(part.ms, 6) for part in fall.parts} == {
        "before": 4.0,
        "behind": 2.0,
        "host": 1.5,
        "predictor": 0.0,
        "expert": 2.0,
        "ple": 0.5,
    }
    assert sum(part.ms for part in fall.parts) == pytest.approx(fall.token_ms) == pytest.approx(10.0)
    assert (fall.readback_ms, fall.bound_ms, fall.bytes_per_token) == (1.0, 7.0, 1000.0)


def test_a_run_without_tokens_has_no_waterfall(results, make):
    folder = make("generate", metrics={"e2e/decode_tps": 1000.0})
    assert waterfall(next(run for run in read_runs(results) if run.folder.path == folder.path)) is None


def test_a_damaged_run_is_named_and_harms_no_other(results, make):
    damaged, older, lost = (make("generate", metrics={"e2e/decode_tps": 10.0}) for _ in range(3))
    (damaged.path / "result.json").write_text("{")
    (older.path / "result.json").write_text('{"version": 99}')
    (lost.path / "events.parquet").unlink()
    text = Page(render(results)).text
    assert f"generate/{damaged.path.name} failed it can't be read" in text
    assert f"generate/{older.path.name} failed it can't be read" in text
    assert "routes repeat" in text


def test_an_empty_folder_gives_a_page(tmp_path):
    text = Page(render(tmp_path)).text
    assert "No comparison yet" in text
    assert "No verdict yet" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_shows_it_without_a_complaint(results, tmp_path):
    out = write_report(results, tmp_path / "out" / "report.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [CHROMIUM, *flags, "--enable-logging=stderr", "--dump-dom", out.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    page = Page(shown.stdout)
    assert "CONSOLE" not in shown.stderr
    assert [attributes["id"] for tag, attributes in page.tags if tag == "section"] == [
        "gates",
        "token",
        "cohorts",
        "verdicts",
        "detectors",
        "evidence",
        "unproven",
    ]
    assert "Hypothesis" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 2


def with_text(value, text):
    """A result's tables and verdict, where every sentence is `text`: codes and words that the page compares stay."""
    if isinstance(value, dict):
        kept = ("code", "codes", "relation", "outcome", "verdict", "cohort", "metric")
        return {key: each if key in kept and isinstance(each, str) else with_text(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [with_text(each, text) for each in value]
    return text if isinstance(value, str) and " " in value else value


ODD = ["</td></tr><td>", "a | b", "a\n| b |\n", "\x00\x1b[31m\r\x0b", 5000 * "x", "{{ 1 }}", "&lt;b&gt;", '\' onmouseover="x" ']


@pytest.mark.parametrize("odd", ODD)
def test_text_of_a_cell_stays_in_its_cell(odd, results):
    pages = []
    for text in ("plain text", f"plain {odd}"):
        for path in results.glob("*/*/result.json"):
            result = json.loads(path.read_text())
            changed = {key: with_text(result[key], text) for key in ("tables", "verdict", "error")}
            path.write_text(json.dumps(result | changed))
        pages.append(Page(render(results)))
    plain, changed = ([tag for tag, _ in page.tags] for page in pages)
    assert changed == plain
    assert pages[0].text != pages[1].text
