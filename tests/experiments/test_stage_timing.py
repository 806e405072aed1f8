"""The cost of a read is found again from what a run with a known one shows; runs take turns."""

from dataclasses import replace

import pytest

from workbench.analysis.twin_errors import decoded
from workbench.experiments.live_twin import TwinInputs
from workbench.experiments.stage_timing import fit_read_cost, take_turns
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


@pytest.mark.parametrize("read_us", [0.0, 30.0, 150.0, 800.0])
def test_a_known_cost_is_found_again(replay, read_us):
    live = replay(STAGES.model_copy(update={"ask_us": read_us / 2, "take_us": read_us / 2}))
    found = fit_read_cost(STAGES, replay, live)
    assert found.ask_us == found.take_us == pytest.approx(read_us / 2, abs=0.5)


def test_a_run_quicker_than_its_envelope_leaves_no_negative_cost(replay):
    found = fit_read_cost(STAGES, replay, replace(replay(STAGES), token_ms=0.1))
    assert found.ask_us == found.take_us < 0.1


def test_runs_take_turns_until_each_is_done():
    order = []

    def run(name, count):
        for number in range(count):
            order.append(f"{name}{number}")
            yield f"{name}{number}"

    assert take_turns([run("a", 3), run("b", 1), run("c", 2)]) == ["a2", "b0", "c1"]
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]
