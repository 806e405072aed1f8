import json
from dataclasses import replace

import polars as pl
import pytest

from workbench.abba.power import PowerState
from workbench.abba.records import WatchRecord
from workbench.analysis.storage import Choice, Median
from workbench.gates.a_storage import GATE
from workbench.gates.a_storage.cells import PAGE, RECORD
from workbench.gates.a_storage.config import StorageConfig
from workbench.gates.a_storage.file import FILE_NAME
from workbench.gates.a_storage.verdict import Measures, conditions_of, criteria_of, limits_of
from workbench.gates.a_storage.walk import Walk
from workbench.gates.base import Findings, conclude, gate_state, run_gate
from workbench.hardware import machine
from workbench.schema import Evidence, Outcome, Status, read_events
from workbench.schema.envelopes import Envelope

TINY = ("file_bytes=8MiB", "in_flight_bytes=16MiB", "seconds=0.002", "close_rounds=1", f"sizes=['{PAGE}', '{RECORD}']")


def median(value, low=None, high=None, count=7):
    return Median(value=value, low=value if low is None else low, high=value if high is None else high, count=count)


def measures(**more):
    fields = {
        "cold_share": 1.0,
        "spread": 0.05,
        "reader_ratio": median(1.4),
        "busy_latency": median(1.2),
        "slowdown": median(1.1),
        "split_ratio": median(1.0),
        "crossover": 0.8,
        "fewest_repeats": 7,
        "fewest_spread": 21,
    }
    return Measures(**(fields | more))


def watch(other_cores=0.0, swap_out_bytes=0):
    fields = {"wall_s": 60.0, "num_samples": 2, "longest_gap_s": 60.0, "memory_pressure": 0.1, "stolen_cores": 0.0, "busiest": ""}
    power = {"power_before": PowerState(), "power_after": PowerState()}
    return WatchRecord(**fields, **power, other_cores=other_cores, swap_out_bytes=swap_out_bytes)


@pytest.mark.parametrize(
    ("planted", "outcome", "codes"),
    [
        (measures(), Outcome.PASS, ("A.cold", "A.repeatable", "A.reader", "A.interpreter", "A.interference")),
        (measures(cold_share=0.99), Outcome.FAIL, ("A.cold",)),
        (measures(spread=0.11), Outcome.FAIL, ("A.repeatable",)),
        (measures(spread=0.11, fewest_spread=13), Outcome.INCONCLUSIVE, ("A.repeatable",)),
        (measures(reader_ratio=median(0.8)), Outcome.FAIL, ("A.reader",)),
        (measures(reader_ratio=median(1.0, 0.8, 1.2)), Outcome.INCONCLUSIVE, ("A.reader",)),
        (measures(busy_latency=median(100.0)), Outcome.FAIL, ("A.interpreter",)),
        (measures(slowdown=median(1.5)), Outcome.FAIL, ("A.interference",)),
        (measures(slowdown=median(float("nan"))), Outcome.INCONCLUSIVE, ("A.interference",)),
    ],
)
def test_each_clause_decides_by_its_own_code(planted, outcome, codes):
    verdict = conclude(Findings(criteria=criteria_of(planted, StorageConfig()), summary=""))
    assert (verdict.outcome, verdict.codes) == (outcome, codes)


def test_the_thresholds_are_the_registered_ones():
    clauses = criteria_of(measures(), StorageConfig())
    assert [(clause.code, clause.relation, clause.threshold) for clause in clauses] == [
        ("A.cold", ">=", 1.0),
        ("A.repeatable", "<=", 0.10),
        ("A.reader", ">=", 0.90),
        ("A.interpreter", "<=", 3.0),
        ("A.interference", "<=", 1.25),
    ]
    assert "max_spread" in " ".join(conditions_of(StorageConfig(max_spread=0.5), "ext4", {}))
    assert not any("thresholds" in line for line in conditions_of(StorageConfig(), "ext4", {}))


def test_what_was_timed_beside_others_decides_nothing_but_cold_still_does():
    slow = measures(spread=0.5, slowdown=median(9.0), cold_share=1.0)
    limits = limits_of(slow, StorageConfig(), watch(other_cores=machine().num_cores), [])
    verdict = conclude(Findings(criteria=criteria_of(slow, StorageConfig(), quiet=False), summary="", limits=limits))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "A.repeatable" in verdict.codes
    assert "not alone on the machine" in limits["A.quiet"]
    not_cold = criteria_of(replace(slow, cold_share=0.5), StorageConfig(), quiet=False)
    assert conclude(Findings(criteria=not_cold, summary="")).codes == ("A.cold",)
    assert "swapped" in limits_of(measures(), StorageConfig(), watch(swap_out_bytes=4096), [])["A.quiet"]


def test_a_small_or_hurried_sample_is_a_limit():
    assert limits_of(measures(), StorageConfig(), watch(), []) == {}
    assert "smoke run" in limits_of(measures(), StorageConfig(smoke=True), watch(), [])["A.sample"]
    assert "out of time in beside" in limits_of(measures(fewest_repeats=3), StorageConfig(), watch(), ["beside"])["A.sample"]


def test_full_is_finer_and_keeps_the_thresholds():
    full = StorageConfig(full=True)
    assert full.effective.depths == (1, 2, 4, 8, 16, 32, 64)
    assert full.effective.close_rounds > full.close_rounds
    assert full.effective.max_spread == full.max_spread
    assert StorageConfig().effective == StorageConfig()


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "stores" / "mini"))
    return tmp_path / "stores"


def test_a_small_run_leaves_an_envelope_tables_figures_and_events_and_no_file(store, tmp_path, capsys):
    folder = run_gate(GATE, GATE.configure(smoke=True, settings=TINY), root=tmp_path / "runs")
    result = folder.result
    assert (result.evidence, result.verdict.outcome) == (Evidence.PHYSICAL, Outcome.INCONCLUSIVE)
    clauses = {clause.code: clause.value for clause in result.verdict.criteria}
    assert clauses["A.cold"] == 1.0
    assert list(store.iterdir()) == []
    assert f"a probe file of 8 MiB in {store}, removed afterwards" in capsys.readouterr().err

    envelope = Envelope.from_json(folder.artifacts / "envelope.json")
    assert (envelope.measured.profile, envelope.measured.machine) == ("mini", machine().digest)
    assert envelope.measured.expert.read_bytes == 27_648
    assert f"{envelope.measured.expert.reader} at depth {envelope.measured.expert.depth}" == result.tags["expert"]

    runs = pl.read_parquet(folder.artifacts / "tables" / "runs.parquet")
    assert set(runs["phase"]) == {"grid", "warm", "refine", "beside", "split"}
    assert {"buffered", "mmap"} < set(runs["reader"])
    assert set(runs["beside"]) == {"idle", "mlx", "python"}
    assert len(read_events(folder.path / "events.parquet")) == len(runs)
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "bandwidth", "records", "pages", "latency", "beside", "crossover", "drift",
    }  # fmt: skip
    assert len(pl.read_parquet(folder.artifacts / "tables" / "passes.parquet")) == 6
    assert set(GATE.shown) <= set(result.tables)
    assert result.tables["crossover"][-1]["records"] == 128
    assert json.loads((folder.path / "result.json").read_text())["metrics"]["storage/expert_bandwidth_gbps"] > 0


def test_an_interrupted_run_keeps_what_it_measured_and_removes_the_file(store, tmp_path, monkeypatch):
    def stop(walk):
        walk.phase("grid", [], 1)
        walk.rows.append({"phase": "grid", "round": 0, "reader": "uring", "size": RECORD, "depth": 1, "cache": "cold",
                          "beside": "idle", "start_ns": 1, "seconds": 1.0, "logical_bytes": 1, "physical_bytes": 1,
                          "bandwidth_gbps": 1.0})  # fmt: skip
        raise KeyboardInterrupt

    monkeypatch.setattr(Walk, "go", stop)
    with pytest.raises(KeyboardInterrupt):
        run_gate(GATE, GATE.configure(smoke=True, settings=TINY), root=tmp_path / "runs")
    state = gate_state(GATE, "mini", tmp_path / "runs")
    assert state.word == Status.INTERRUPTED.value
    assert len(pl.read_parquet(state.folder.artifacts / "tables" / "runs.parquet")) == 1
    assert not (store / FILE_NAME).exists()


class Recorder:
    """Stands in for a probe: one disk whose rates are known."""

    def __init__(self, real):
        self.rates = {"uring": 1.0, "pread": 0.8, "buffered": 0.5, "mmap": 0.1}
        self.path, self.layout, self.memory, self.rng = real.path, real.layout, real.memory, real.rng
        self.cells = []

    def measure(self, cell, seconds):
        self.cells.append(cell)
        rate = self.rates.get(cell.reader, 0.5) * min(cell.depth, 8)
        load = None if cell.beside == "idle" else 100.0
        return {**vars(cell), "cached_before": float(cell.cache == "warm"), "start_ns": len(self.cells), "seconds": seconds,
                "reads": 1, "logical_bytes": 1, "physical_bytes": 1, "bandwidth_gbps": rate, "useful_gbps": rate,
                "reads_per_s": rate, "p50_us": 1.0, "submit_to_seen_p50_us": 1.0, "load_alone_per_s": load,
                "load_beside_per_s": load}  # fmt: skip

    def part(self, num_bytes):
        return 0

    def timed_pass(self, windows, kind, depth, coalesce_bytes):
        return float(windows.logical_bytes.sum()), 0.0


@pytest.fixture
def walk(tmp_path):
    import numpy as np

    from workbench.gates.a_storage.cells import Layout
    from workbench.gates.a_storage.probe import Probe

    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 20))
    layout = Layout(record_bytes=27_648, down_bytes=9_216, num_experts=16)
    real = Probe(path=path, layout=layout, memory=np.zeros(16 << 20, dtype=np.uint8), rng=np.random.default_rng(0))
    readers = ("uring", "pread", "buffered", "mmap")
    return Walk(plan=StorageConfig(), probe=Recorder(real), readers=readers, end_s=float("inf"), started=lambda _: None)


def test_the_walk_refines_round_the_knee_and_chooses_it(walk):
    choices = walk.go()
    # the disk saturates at 8; the grid has 4 and 16, the refinement finds 8
    assert (choices.expert, choices.ple) == (Choice(reader="uring", depth=8), Choice(reader="uring", depth=8))
    assert choices.control.reader == "buffered"
    refined = {cell.depth for cell in walk.probe.cells[-400:] if (cell.reader, cell.size) == ("uring", RECORD)}
    assert {8} <= refined
    split = walk.runs.filter(phase="split").select("size", "depth").unique().sort("depth").rows()
    assert split == [(RECORD, 8), ("gate+up, down", 16)]


def test_what_the_run_before_chose_is_measured_and_stands_while_it_is_as_good(walk):
    walk.standing = {RECORD: Choice(reader="uring", depth=64), PAGE: Choice(reader="pread", depth=8)}
    choices = walk.go()
    assert choices.expert == Choice(reader="uring", depth=64), "the disk saturates at 8: 64 is as good"
    assert choices.ple == Choice(reader="uring", depth=8), "threads give four fifths"
    refined = walk.runs.filter(phase="refine")
    assert set(refined.filter(reader="uring", size=RECORD)["depth"]) >= {8, 64}


def test_every_round_measures_every_cell_once_in_another_order(walk):
    walk.go()
    grid = walk.runs.filter(phase="grid")
    orders = [grid.filter(round=number).select("reader", "size", "depth").rows() for number in range(3)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


def test_out_of_time_every_phase_still_has_one_round(walk):
    walk.end_s = 0.0
    walk.go()
    assert walk.cut == ["grid", "warm", "refine", "beside", "split", "crossover"]
    assert set(walk.runs["round"]) == {0}


def test_without_an_uncached_reader_the_buffered_one_is_recommended(walk):
    walk.readers = ("buffered", "mmap")
    assert walk.go().expert.reader == "buffered"
