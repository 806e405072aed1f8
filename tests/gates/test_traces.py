import polars as pl
import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.experiments.routes import ROUTES_NAME
from workbench.experiments.trace import TraceConfig
from workbench.gates import traces
from workbench.gates.traces import TraceSource, ensure_store, profile_geometry
from workbench.schema import Evidence, RunFolder, Status


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A recorder without a model; returns the list of what it was asked, each with the run it went on from."""
    asked = []

    def record(config, root, *, tags, earlier):
        asked.append(earlier and earlier.path.name)
        folder = RunFolder.create(root, "trace", config, profile=config.profile, evidence=Evidence.TRACE, tags=tags)
        with folder:
            if len(asked) == 1:
                raise KeyboardInterrupt
            (folder.artifacts / ROUTES_NAME).write_text("routes")
            folder.finish()
        return folder

    record.__module__ = "workbench.experiments.trace"
    monkeypatch.setattr(traces, "record_trace", record)
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "store"))
    return asked


def test_a_recording_goes_on_where_it_was_interrupted_and_is_reused_while_fresh(recorded, tmp_path):
    source = TraceSource(file="", recording=TraceConfig(requests=2))
    with pytest.raises(KeyboardInterrupt):
        source.obtain(tmp_path)
    path = source.obtain(tmp_path)
    assert recorded[1] is not None
    assert path.read_text() == "routes"
    assert source.obtain(tmp_path) == path
    assert len(recorded) == 2
    other = TraceSource(file="", recording=TraceConfig(requests=3)).obtain(tmp_path)
    assert other != path
    assert recorded[2] is None


def test_another_store_makes_another_recording(recorded, tmp_path):
    source = TraceSource(file="", recording=TraceConfig(requests=2))
    assert source.inputs()["store"] == "missing"
    with pytest.raises(KeyboardInterrupt):
        source.obtain(tmp_path)
    first = source.obtain(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "manifest.json").write_text("{}")
    assert source.obtain(tmp_path) != first


def test_a_named_file_is_taken_as_it_is(tmp_path):
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "routes.parquet")
    source = TraceSource(file=str(tmp_path / "routes.parquet"), recording=TraceConfig())
    source.prepare()
    assert source.obtain(tmp_path / "runs") == tmp_path / "routes.parquet"
    assert list(source.inputs()) == ["trace"]
    (tmp_path / "routes.parquet").write_text("x")
    with pytest.raises(BadInput, match="not a readable parquet file"):
        source.inputs()
    with pytest.raises(BadInput, match="trace=nowhere: no such file"):
        TraceSource(file="nowhere", recording=TraceConfig()).inputs()


@pytest.mark.parametrize(("profile", "command"), [("slice", "workbench slice"), ("flash-next", "workbench pack CHECKPOINT")])
def test_a_missing_store_names_the_command_that_makes_it(monkeypatch, tmp_path, profile, command):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    with pytest.raises(UnmetPrerequisite, match=command):
        ensure_store(profile)


def test_a_profile_without_a_store_has_its_models_geometry(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    assert [profile_geometry(name).record_bytes for name in ("mini", "slice", "flash-next")] == [27_648, 2_764_800, 2_764_800]
    assert [profile_geometry(name).num_hidden_layers for name in ("mini", "slice", "flash-next")] == [8, 4, 48]


def test_a_run_that_finished_is_not_gone_on_with(recorded, tmp_path):
    source = TraceSource(file="", recording=TraceConfig(requests=2))
    with pytest.raises(KeyboardInterrupt):
        source.obtain(tmp_path)
    source.obtain(tmp_path)
    assert {folder.status for folder in traces.list_runs(tmp_path, "trace")} == {Status.INTERRUPTED, Status.FINISHED}
