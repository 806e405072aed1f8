"""A whole gate fits on a page, and runs."""

import importlib.util
from pathlib import Path

import pytest

from workbench.gates.base import run_gate
from workbench.gates.shared import arms
from workbench.schema import Evidence, Outcome

FILE = Path(__file__).parent / "example_gate.py"
MOST_LINES = 60
DISK = "usb-10gbps"
SMALL = (f"envelopes=['{DISK}']", "orders=1", "faults=1", "min_orders=1", "tokens=4")


@pytest.fixture
def gate():
    spec = importlib.util.spec_from_file_location("example_gate", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GATE


def test_the_example_is_at_most_60_lines():
    assert len(FILE.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("waits_ms", "outcome", "codes"),
    [((6, 3), Outcome.PASS, ("X.identity", f"X.wait@{DISK}")), ((6, 6), Outcome.FAIL, (f"X.wait@{DISK}",))],
)
def test_the_example_reaches_its_verdict(gate, mini_store, tmp_path, monkeypatch, plant_series, waits_ms, outcome, codes):
    monkeypatch.setattr(arms, "run_abba", lambda config, *, root: plant_series(root, num_cohorts=4, wait_ms=waits_ms))
    folder = run_gate(gate, gate.configure(settings=SMALL), root=tmp_path)
    verdict = folder.result.verdict
    assert (folder.result.evidence, verdict.outcome, verdict.codes) == (Evidence.EMULATED, outcome, codes)
    assert verdict.criteria[1].value == waits_ms[1] / waits_ms[0]
    assert "thresholds differ from the registered ones: min_orders" in verdict.conditions
    assert [row["cohorts"] for row in folder.result.tables["comparisons"]] == ["4 of 4"]
    assert {path.stem for path in (folder.artifacts / "tables").glob("*.parquet")} == {"arms", "identity"}


def test_a_smoke_run_of_the_example_passes_no_more_than_in_part(gate, mini_store, tmp_path, monkeypatch, plant_series):
    monkeypatch.setattr(arms, "run_abba", lambda config, *, root: plant_series(root, wait_ms=(6, 3)))
    settings = (*SMALL, "min_cohorts=1", "orders=0", "faults=0")
    verdict = run_gate(gate, gate.configure(smoke=True, settings=settings), root=tmp_path).result.verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE
