"""The host's time per read is found again from what a run with known times shows."""

import pytest

from workbench.analysis.twin_errors import decoded
from workbench.experiments.live_twin import TwinInputs
from workbench.experiments.stage_timing import fit_host_times
from workbench.schema.envelopes import Envelope
from workbench.simulate.events import route_frame
from workbench.simulate.passes import passes
from workbench.simulate.stages import StageTimes
from workbench.simulate.synthetic import RouteModel, synthetic_routes
from workbench.simulate.twin import TwinConfig

MODEL = RouteModel(num_layers=4, num_experts=32, top_k=4, num_early_layers=1)
ENVELOPE = Envelope(name="toy", device="none", source="test", latency_us=50, stream_gbps=1.0, bandwidth_gbps=2.0, iops=1e6)
STAGES = StageTimes.uniform(4, 2.0)


@pytest.fixture(scope="module")
def replay():
    routes = synthetic_routes(MODEL, num_requests=1, num_tokens=30, seed=0)
    config = TwinConfig(num_slots=24, record_bytes=20_000, num_experts=32, wave="barrier")
    inputs = TwinInputs(config=config, passes=tuple(passes(route_frame(routes, family="toy"), 32, tile=1)))
    return lambda stages: decoded(inputs.replay(stages, ENVELOPE))


@pytest.mark.parametrize(("ask_us", "take_us"), [(0.0, 0.0), (30.0, 0.0), (15.0, 60.0), (0.0, 400.0)])
def test_known_times_are_found_again(replay, ask_us, take_us):
    live = replay(STAGES.model_copy(update={"ask_us": ask_us, "take_us": take_us}))
    found = fit_host_times(STAGES, replay, live)
    assert found.take_us == pytest.approx(take_us, abs=2)
    assert found.ask_us == pytest.approx(ask_us, abs=2)


def test_a_disk_that_was_faster_than_its_envelope_leaves_no_negative_time(replay):
    live = replay(STAGES)
    quicker = type(live)(hit_rate=live.hit_rate, token_ms=1.0, exposed_wait_ms=0.1 * live.exposed_wait_ms, misses=live.misses)
    found = fit_host_times(STAGES, replay, quicker)
    assert (found.ask_us, round(found.take_us)) == (0.0, 0)
