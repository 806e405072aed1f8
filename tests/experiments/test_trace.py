import numpy as np
import pytest

from workbench.config import ConfigError
from workbench.errors import BadInput
from workbench.experiments import trace
from workbench.experiments.routes import ROUTES_NAME
from workbench.experiments.text import load_tokenizer
from workbench.experiments.trace import TraceConfig, choose_prompts, record_trace
from workbench.schema import Evidence, Status, list_runs, read_routes


def test_a_trace_holds_every_layer_of_every_token(mini_store, tmp_path):
    folder = record_trace(TraceConfig(requests=2, tokens=3), root=tmp_path)
    frame, geometry = read_routes(folder.artifacts / ROUTES_NAME)
    assert geometry == {"num_layers": 8, "num_experts": 128, "top_k": 10}
    assert folder.result.evidence is Evidence.TRACE
    for request in (0, 1):
        rows = frame.filter(request=request)
        decoded = rows.filter(phase="decode")
        assert decoded.height == 3 * 8
        positions = rows["position"].unique().sort().to_numpy()
        np.testing.assert_array_equal(positions, np.arange(len(positions)))
        assert rows.height == 8 * len(positions)
    weights = np.array(frame["weights"].to_list())
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    assert (np.diff(weights, axis=1) <= 0).all(), "experts stand in rank order"
    assert frame["family"].n_unique() == 2


def test_settings_repeat_a_trace_whatever_the_cache(mini_store, tmp_path):
    traces = [
        read_routes(
            record_trace(TraceConfig.build({"requests": 1, "tokens": 6}, settings), root=tmp_path).artifacts / ROUTES_NAME
        )[0]
        for settings in (
            [],
            ["runtime.cache_bytes=4000000", "runtime.policy=lru"],
            ["sampling.seed=11", "sampling.temperature=2.0"],
        )
    ]
    assert traces[0].equals(traces[1])
    assert not traces[0].equals(traces[2])


def test_an_interrupted_trace_goes_on_with_the_request_it_was_in(mini_store, tmp_path, monkeypatch):
    config = TraceConfig(requests=3, tokens=2)
    whole, _ = read_routes(record_trace(config, root=tmp_path / "whole").artifacts / ROUTES_NAME)
    record = trace.RouteRecorder.record

    def interrupt(self, step, *rest):
        if step.request == 2 and step.phase == "decode":
            raise KeyboardInterrupt
        record(self, step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(trace.RouteRecorder, "record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            record_trace(config, root=tmp_path)
    [earlier] = list_runs(tmp_path, "trace")
    assert earlier.status is Status.INTERRUPTED
    resumed = record_trace(config, root=tmp_path, earlier=earlier)
    assert resumed.result.tags["taken_over"] == "2"
    assert read_routes(resumed.artifacts / ROUTES_NAME)[0].equals(whole)
    assert [path.name for path in resumed.artifacts.iterdir()] == [ROUTES_NAME]


def test_prompts_come_in_turn_from_the_families():
    prompts = choose_prompts(TraceConfig(requests=12))
    families = [prompt.family for prompt in prompts]
    assert len(set(families[:6])) == 6
    assert {prompt.split for prompt in prompts} == {"held_out"}


def test_too_many_requests_and_unknown_families_are_refused():
    with pytest.raises(BadInput, match="requests: 1000 asked"):
        choose_prompts(TraceConfig(requests=1000))
    with pytest.raises(BadInput, match="verse"):
        choose_prompts(TraceConfig(families=("verse",)))
    assert TraceConfig.build(settings=["sampling.seed=9"]).sampling.temperature == TraceConfig().sampling.temperature
    with pytest.raises(ConfigError, match="tokens"):
        TraceConfig.build(settings=["tokens=0"])


def test_a_prompt_can_be_cut(mini_store, tmp_path):
    folder = record_trace(TraceConfig(requests=1, tokens=2, prompt_tokens=5), root=tmp_path)
    frame, _ = read_routes(folder.artifacts / ROUTES_NAME)
    assert frame.filter(layer=0).group_by("phase").len().sort("phase").rows() == [("decode", 2), ("prefill", 5)]


def test_a_prompt_of_ones_own_is_traced(mini_store, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "prompt.txt"
    path.write_text("def main():\n    naïve = 1\n")
    assert command_line(["trace", "--prompt-file", str(path), "--tokens", "2"]) == 0
    [folder] = list_runs(tmp_path / "runs")
    frame, _ = read_routes(folder.artifacts / ROUTES_NAME)
    assert frame["family"].unique().to_list() == ["own"]
    ids = frame.filter(layer=0, phase="prefill").sort("position")["token_id"].to_list()
    assert load_tokenizer("mini").decode(ids) == path.read_text()
    with pytest.raises(BadInput, match="requests: 40 asked, 1 texts given"):
        choose_prompts(TraceConfig(texts=("a",)))
