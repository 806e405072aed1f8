import math

import pytest

from workbench.gates.shared.clauses import disk_clause, disk_conditions, profile_conditions, spans
from workbench.gates.shared.config import ComparisonConfig
from workbench.gates.shared.intervals import Interval


def on(disk, value):
    return disk_clause(disk, "X.wait", "exposed wait", Interval.exact(value), "<", 1.0)


def test_a_clause_on_an_emulated_disk_names_it_and_its_evidence():
    assert (on("some/slow.json", 0.5).code, on("some/slow.json", 0.5).statement) == ("X.wait@slow", "exposed wait (emulated)")
    assert (on("", 0.5).code, on("", 0.5).statement) == ("X.wait", "exposed wait (physical)")


@pytest.mark.parametrize(
    ("values", "told"),
    [((0.25, 0.5, 0.75), "0.25 to 0.75"), ((0.5, 0.5), "0.5"), ((math.nan, 0.5), "0.5"), ((math.nan,), "not measured")],
)
def test_a_clause_on_several_disks_is_told_from_the_least_to_the_greatest(values, told):
    assert spans([on(f"disk{i}", value) for i, value in enumerate(values)]) == {"X.wait": told}


def test_conditions_name_the_disks_and_how_their_bytes_are_read():
    [_, named] = disk_conditions(ComparisonConfig(envelopes=("usb-10gbps",)))
    assert "usb-10gbps; no physical verdict" in named
    [*_, slowed] = disk_conditions(ComparisonConfig())
    assert "ratio of Flash-Next's record size to mini's" in slowed
    assert disk_conditions(ComparisonConfig(profile="slice"))[1] == "cold store, read past the page cache"
    assert [len(profile_conditions(name)) for name in ("mini", "slice", "flash-next")] == [1, 1, 0]
