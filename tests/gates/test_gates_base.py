from dataclasses import replace

import pytest

from workbench.config import ConfigError
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates import find_gate
from workbench.gates.base import Findings, conclude, gate_state, run_gate, unmet_needs
from workbench.schema import Criterion, Outcome, Status


def test_configuration_and_its_digest_are_stored_before_the_gate_reads_anything(tmp_path, make_gate):
    calls = []
    gate = make_gate(calls=calls)
    run_gate(gate, gate.configure(settings=["value=0.25"]), root=tmp_path)
    [(config, stored, digest)] = calls
    assert "value = 0.25" in stored
    assert digest == config.digest


def test_a_fresh_result_is_reused_and_a_changed_setting_or_input_is_named(tmp_path, make_gate):
    calls, inputs, notes = [], {"trace": "1"}, []
    gate = make_gate(calls=calls, inputs=inputs)
    first = run_gate(gate, gate.configure(), root=tmp_path, note=notes.append)
    again = run_gate(gate, gate.configure(), root=tmp_path, note=notes.append)
    assert again.path == first.path
    assert "reusing" in notes[-1]
    assert run_gate(gate, gate.configure(settings=["size=7"]), root=tmp_path, note=notes.append).path != first.path
    assert "setting size differs" in notes[-1]
    assert run_gate(gate, gate.configure(), root=tmp_path).path == first.path
    assert len(calls) == 2
    changed = make_gate(calls=calls, inputs={"trace": "2"})
    run_gate(changed, gate.configure(), root=tmp_path, note=notes.append)
    assert "input trace changed" in notes[-1]
    assert len(calls) == 3
    run_gate(changed, gate.configure(), root=tmp_path, again=True)
    assert len(calls) == 4


def test_a_run_that_did_not_finish_is_never_reused(tmp_path, make_gate):
    gate = make_gate()

    def interrupted(config, folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gate(replace(gate, run=interrupted), gate.configure(), root=tmp_path)
    assert gate_state(gate, "mini", tmp_path).word == "interrupted"
    folder = run_gate(gate, gate.configure(), root=tmp_path)
    assert folder.status is Status.FINISHED
    assert gate_state(gate, "mini", tmp_path).word == "fresh"


def test_a_failing_run_keeps_its_error(tmp_path, make_gate):
    gate = make_gate()

    def broken(config, folder):
        raise BadInput("no such trace")

    with pytest.raises(BadInput):
        run_gate(replace(gate, run=broken), gate.configure(), root=tmp_path)
    state = gate_state(gate, "mini", tmp_path)
    assert (state.word, state.reasons) == ("failed", ("BadInput: no such trace",))


def test_the_state_is_missing_then_fresh_then_stale_with_the_reason(tmp_path, make_gate):
    gate = make_gate(inputs={"trace": "1"})
    assert gate_state(gate, "mini", tmp_path).word == "missing"
    run_gate(gate, gate.configure(), root=tmp_path)
    state = gate_state(gate, "mini", tmp_path)
    assert (state.word, state.verdict.outcome) == ("fresh", Outcome.PASS)
    assert gate_state(gate, "slice", tmp_path).word == "missing"
    stale = gate_state(make_gate(inputs={"trace": "2"}), "mini", tmp_path)
    assert (stale.word, stale.reasons) == ("stale", ("input trace changed",))


def test_inputs_that_are_gone_make_a_result_stale_not_the_table_fail(tmp_path, make_gate):
    def gone(_):
        raise BadInput("trace=x: no such file")

    gate = make_gate()
    run_gate(gate, gate.configure(), root=tmp_path)
    assert gate_state(replace(gate, inputs=gone), "mini", tmp_path).reasons == ("trace=x: no such file",)


def test_the_table_prefers_a_full_run_to_a_later_smoke_run(tmp_path, make_gate):
    gate = make_gate()
    full = run_gate(gate, gate.configure(), root=tmp_path)
    smoke = run_gate(gate, gate.configure(smoke=True), root=tmp_path)
    assert smoke.path != full.path
    assert gate_state(gate, "mini", tmp_path).folder.path == full.path


def test_a_predecessor_that_has_not_passed_stops_the_gate_unless_anyway(tmp_path, make_gate):
    first, second = make_gate("x_first"), make_gate("y_second", needs=("x_first",))
    with pytest.raises(UnmetPrerequisite, match="needs gate x_first, which is missing"):
        run_gate(second, second.configure(), root=tmp_path)
    folder = run_gate(second, second.configure(), root=tmp_path, anyway=True)
    assert folder.result.verdict.conditions == ("conditional on gate x_first (missing)",)

    run_gate(first, first.configure(settings=["value=2.0"]), root=tmp_path)
    assert unmet_needs(second, "mini", tmp_path) == {"x_first": "fail"}
    run_gate(first, first.configure(), root=tmp_path)
    assert unmet_needs(second, "mini", tmp_path) == {}
    assert unmet_needs(second, "slice", tmp_path) == {"x_first": "missing"}
    assert gate_state(second, "mini", tmp_path).reasons == ("input verdict of gate x_first changed",)
    assert run_gate(second, second.configure(), root=tmp_path).result.verdict.conditions == ()


def criterion(value=0.5):
    return Criterion(code="X.one", statement="s", value=value, low=value - 0.1, high=value + 0.1, relation="<", threshold=1.0)


def test_limits_turn_a_pass_into_inconclusive_with_their_codes_and_leave_a_failure():
    limits = {"X.sample": "too few requests"}
    held = conclude(Findings(criteria=[criterion()], summary="", enables=("more",), limits=limits))
    assert (held.outcome, held.codes, held.enables) == (Outcome.INCONCLUSIVE, ("X.sample",), ())
    assert held.conditions == ("too few requests",)
    failed = conclude(Findings(criteria=[criterion(value=2.0)], summary="", limits=limits))
    assert (failed.outcome, failed.codes) == (Outcome.FAIL, ("X.one",))
    assert conclude(Findings(criteria=[criterion()], summary="", enables=("more",))).enables == ("more",)


def test_smoke_changes_what_the_gate_says_and_settings_win_over_it(make_gate):
    gate = make_gate()
    assert gate.configure(smoke=True).size == 3
    assert gate.configure(smoke=True, settings=["size=5"]).size == 5
    with pytest.raises(ConfigError, match="did you mean size"):
        gate.configure(settings=["siez=5"])


@pytest.mark.parametrize("word", ["B", "b", "b_locality", "locality", "gate_b"])
def test_a_gate_is_found_by_letter_or_name(word):
    assert find_gate(word).name == "b_locality"


def test_an_unknown_gate_suggests_the_nearest():
    with pytest.raises(BadInput, match="did you mean locality"):
        find_gate("localty")
    with pytest.raises(BadInput, match=r"there are .*b_locality"):
        find_gate("zzz")
