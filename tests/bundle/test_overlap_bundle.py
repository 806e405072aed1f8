"""Gate C's clauses are drawn again from the tables in its bundle."""

import polars as pl
import pytest

from workbench.bundle import State, check_bundle, make_bundle
from workbench.gates.base import Findings, conclude
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.plan import WAVES
from workbench.gates.c_overlap.verdict import TABLES, Measures, criteria_of
from workbench.schema import Evidence, RunFolder

CONFIG = OverlapConfig(envelopes=("usb-10gbps",))


def tables():
    """One comparison of four cohorts; nothing was measured of the others."""
    arms = [
        {"disk": "usb-10gbps", "comparison": WAVES, "cohort": cohort, "position": position, "arm": arm, "counts": True,
         "differs": False, "token_ms": took, "expert_wait_ms": took / 4, "ple_wait_ms": 0.1}
        for cohort in range(4)
        for position, (arm, took) in enumerate((("A", 20.0), ("B", 17.0), ("B", 17.1), ("A", 20.1)))
    ]  # fmt: skip
    return {
        "arms": pl.DataFrame(arms, schema=TABLES["arms"]),
        "identity": pl.DataFrame([("order", "order 0", True, "")], schema=TABLES["identity"], orient="row"),
        "modes": pl.DataFrame(schema=TABLES["modes"]),
        "rates": pl.DataFrame([(i, 10.0, 9.0, 2.0, 1.9, 0.85) for i in range(7)], schema=TABLES["rates"], orient="row"),
    }


@pytest.fixture
def gate(tmp_path):
    folder = RunFolder.create(tmp_path, "gate_c", CONFIG, profile="mini", evidence=Evidence.EMULATED)
    (folder.artifacts / "tables").mkdir()
    for name, table in tables().items():
        table.write_parquet(folder.artifacts / "tables" / f"{name}.parquet")
    folder.finish(verdict=conclude(Findings(criteria=criteria_of(Measures(**tables()), CONFIG), summary="so it is")))
    return folder


def check(folder, tmp_path):
    make_bundle(folder, tmp_path / "gate.tar")
    return {check.what: check for check in check_bundle(tmp_path / "gate.tar")[1]}


def test_clauses_follow_from_the_tables(gate, tmp_path):
    checks = check(gate, tmp_path)
    assert [each for each in checks.values() if each.state is State.FAILED] == []
    assert "10 drawn again" in checks["clauses"].detail
    assert checks["arms"].state is State.NOT_CHECKED


def test_an_altered_arm_is_found(gate, tmp_path):
    path = gate.artifacts / "tables" / "arms.parquet"
    pl.read_parquet(path).with_columns(token_ms=pl.when(arm="B").then(10.0).otherwise("token_ms")).write_parquet(path)
    clauses = check(gate, tmp_path)["clauses"]
    assert clauses.state is State.FAILED
    assert "C.waves@usb-10gbps" in clauses.detail


def test_tables_of_another_kind_are_refused_in_one_line(gate, tmp_path):
    pl.DataFrame({"x": [1]}).write_parquet(gate.artifacts / "tables" / "arms.parquet")
    assert "other columns" in check(gate, tmp_path)["clauses"].detail
