"""Identity runs over settings, completion orders and faults, without a model."""

import pytest

from workbench.gates.c_overlap import OverlapConfig
from workbench.gates.c_overlap.plan import identity_changes
from workbench.gates.shared import identity
from workbench.gates.shared.config import ComparisonConfig
from workbench.gates.shared.identity import check_identity
from workbench.loading.transfer import RequestFailed
from workbench.readers import FaultKind


@pytest.fixture
def decoded(mini_store, monkeypatch):
    """Runs without a model: `decoded["wrong"]` says whose digests differ, by the settings and faults it is given."""
    seen = {"runs": [], "wrong": lambda settings, reads: False}

    def run(config, settings, prompt, fault_of):
        kinds = [fault.kind.value for read in range(40) if (fault := fault_of(read)) is not None]
        seen["runs"].append((settings, kinds))
        if kinds == ["hang"]:
            raise RequestFailed("given up")
        return ("wrong" if seen["wrong"](settings, kinds) else "state", "routing")

    monkeypatch.setattr(identity, "_run_streamed", run)
    monkeypatch.setattr(identity, "_reference", lambda *_: ("state", "routing"))
    return seen


def test_identity_tries_every_width_order_and_fault_and_finds_the_one_that_differs(decoded):
    decoded["wrong"] = lambda settings, kinds: settings["wave"] == 2 and not kinds and settings["split_components"]
    config = OverlapConfig(orders=3, faults=7)
    rows = check_identity(config, identity_changes(config))
    assert rows.group_by("kind", maintain_order=True).len().rows() == [("setting", 16), ("order", 3), ("fault", 7)]
    wrong = rows.filter(~rows["identical"])
    assert wrong.select("kind", "case", "error").rows() == [
        ("setting", "wave 2, split_components True", ""), ("fault", wrong["case"][1], "given up"),
    ]  # fmt: skip
    assert wrong["case"][1].startswith("hang at read")
    orders = [kinds for _, kinds in decoded["runs"] if len(kinds) > 1]
    assert [set(kinds) for kinds in orders] == [{"delay"}] * 3


def test_faults_reach_as_far_as_reads_do_whether_records_are_whole_or_apart():
    kinds = len(FaultKind)
    cases = list(identity._faults(ComparisonConfig(faults=2 * kinds), {False: 100, True: 1000}))
    places = [(case.settings["split_components"], int(case.words.split()[-1])) for case in cases]
    assert [split for split, _ in places] == [False] * kinds + [True] * kinds
    assert max(at for split, at in places if not split) < 100
    assert min(at for split, at in places if split) == 500
    assert max(at for split, at in places if split) > 900
