"""The walk through Gate A's grid on a disk whose rates are known."""

import numpy as np
import pytest

from workbench.analysis.storage import Choice
from workbench.gates.a_storage.cells import PAGE, RECORD, Layout
from workbench.gates.a_storage.config import StorageConfig
from workbench.gates.a_storage.probe import Probe
from workbench.gates.a_storage.walk import Walk


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
