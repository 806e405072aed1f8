"""Verdicts stay and are superseded by newer ones on the same question."""

from workbench.report.runs import read_runs
from workbench.report.verdicts import collect_verdicts
from workbench.schema import Evidence


def collected(root):
    return collect_verdicts(read_runs(root))


def test_a_newer_verdict_on_the_same_question_supersedes(tmp_path, make, verdict):
    first = make("abba", tags={"question": "q"}, verdict=verdict())
    other = make("abba", tags={"question": "another"}, verdict=verdict())
    second = make("abba", tags={"question": "q"}, verdict=verdict(0.5))
    entries = {entry.run.folder.path.name: entry for entry in collected(tmp_path)}
    assert entries[first.path.name].superseded_by == f"abba/{second.path.name}"
    assert entries[other.path.name].is_current
    assert entries[second.path.name].is_current
    assert first.result.verdict.outcome == "pass", "nothing was overwritten"


def test_profiles_and_evidence_are_other_questions(tmp_path, make, verdict):
    make("gate_a", verdict=verdict(code="A.x"))
    make("gate_a", profile="slice", verdict=verdict(code="A.x"))
    make("gate_a", evidence=Evidence.EMULATED, verdict=verdict(code="A.x"))
    assert all(entry.is_current for entry in collected(tmp_path))


def test_a_smoke_run_never_supersedes_a_full_one(tmp_path, make, verdict):
    full = make("gate_b", tags={"smoke": "false"}, verdict=verdict(code="B.x"))
    smoke = make("gate_b", tags={"smoke": "true"}, verdict=verdict(code="B.x"))
    entries = {entry.run.folder.path.name: entry for entry in collected(tmp_path)}
    assert entries[full.path.name].is_current
    assert entries[smoke.path.name].is_current
    newer = make("gate_b", tags={"smoke": "false"}, verdict=verdict(code="B.x"))
    entries = {entry.run.folder.path.name: entry for entry in collected(tmp_path)}
    assert entries[smoke.path.name].superseded_by == f"gate_b/{newer.path.name}"


def test_rows_name_decisions_codes_and_conditions(tmp_path, make, verdict):
    make("gate_b", verdict=verdict(code="B.x", enables=["gate F is not rejected"], conditions=["simulated curves"]))
    make("generate")
    (row,) = [entry.row() for entry in collected(tmp_path)]
    assert (row["codes"], row["enables"], row["rests on"]) == ("B.x", "gate F is not rejected", "simulated curves")
