"""The cost of a read is found again from what a run with a known one shows; runs take turns."""

from dataclasses import replace

import pytest

from workbench.analysis.twin_errors import decoded
from workbench.experiments.live_twin import TwinInputs
from workbench.experiments.stage_timing import Calibration, fit_read_cost, take_turns
from workbench.schema.envelopes import Envelope
from workbench.simulate.events import route_frame
from workbench.simulate.passes import passes
from workbench.simulate.stages import StageTimes
from workbench.simulate.synthetic import RouteModel, synthetic_routes
from workbench.simulate.twin import TwinConfig

MODEL = RouteModel(num_layers=4, num_experts=32, top_k=4, num_early_layers=1)
ENVELOPE = Envelope(name="toy", device="none", source="test", latency_us=400, stream_gbps=1.0, bandwidth_gbps=2.0, iops=1e6)
STAGES = StageTimes.uniform(4, 2.0)


@pytest.fixture(scope="module", params=["barrier", 4])
def replays(request):
    """Twins of a run that starts nothing before all is there, and of one with the waves to be imitated."""
    routes = synthetic_routes(MODEL, num_requests=1, num_tokens=30, seed=0)
    whole = tuple(passes(route_frame(routes, family="toy"), 32, tile=1))

    def replay(wave):
        config = TwinConfig(num_slots=24, record_bytes=20_000, num_experts=32, wave=wave)
        inputs = TwinInputs(config=config, passes=whole)
        return lambda stages: decoded(inputs.replay(stages, ENVELOPE))

    return replay("barrier"), replay(request.param)


@pytest.mark.parametrize(
    ("ask_us", "take_us", "wave_us"), [(0.0, 0.0, 0.0), (30.0, 10.0, 60.0), (5.0, 150.0, 0.0), (800.0, 40.0, 200.0)]
)
def test_known_costs_are_found_again(replays, ask_us, take_us, wave_us):
    known = STAGES.model_copy(update={"ask_us": ask_us, "take_us": take_us, "wave_us": wave_us})
    found = fit_read_cost(STAGES, *(Calibration(live=replay(known), replay=replay) for replay in replays))
    assert found.take_us == pytest.approx(take_us, abs=1)
    assert found.ask_us == pytest.approx(ask_us, abs=1)
    # behind a barrier there are no waves to learn from
    assert found.wave_us == pytest.approx(0.0 if replays[0](known) == replays[1](known) else wave_us, abs=1)


def test_a_cost_that_is_paid_while_reads_fly_is_told_apart(replays):
    known = STAGES.model_copy(update={"ask_us": 20.0, "behind_us": 40.0})
    found = fit_read_cost(STAGES, *(Calibration(live=replay(known), replay=replay) for replay in replays))
    assert (found.ask_us, found.behind_us) == (pytest.approx(20, abs=3), pytest.approx(40, abs=3))


def test_runs_quicker_than_their_envelope_leave_no_negative_cost(replays):
    quicker = [replace(replay(STAGES), token_ms=0.1, exposed_wait_ms=0.0) for replay in replays]
    calibrations = (Calibration(live=live, replay=replay) for live, replay in zip(quicker, replays, strict=True))
    found = fit_read_cost(STAGES, *calibrations)
    assert found.ask_us < 0.5
    assert found.take_us < 0.5
    assert found.wave_us < 0.5


def test_runs_take_turns_until_each_is_done():
    order = []

    def run(name, count):
        for number in range(count):
            order.append(f"{name}{number}")
            yield f"{name}{number}"

    assert take_turns([run("a", 3), run("b", 1), run("c", 2)]) == ["a2", "b0", "c1"]
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]
