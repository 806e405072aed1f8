"""Small inputs that would fill memory or disk, or start searches without end, are refused before they do."""

import json
import signal

import polars as pl
import pytest

from workbench.bundle import archive
from workbench.errors import BadInput
from workbench.files import read_json
from workbench.geometry import Geometry
from workbench.paths import bundled_model
from workbench.schema import read_routes
from workbench.schema.parquet import read_parquet

HANG_S = 60
SIZES = (0, -1, 2**31 - 1, 2**31, 2**63)
CHANGES = [{field: value} for field, kind in Geometry.__annotations__.items() if kind is int for value in SIZES]
CHANGES += [
    # as many n-gram heads as rows are wide: a prime number has to be found for each
    {"ple_embed_dim": 2**30, "heads_per_ngram": 2**29},
    {"ple_embed_dim": 2**30, "ngram_size": 2**30 + 1, "heads_per_ngram": 1},
    {"ple_embed_dim": 2048, "heads_per_ngram": 1024, "ngram_vocab_size_base": 2**31 - 1},
]


@pytest.fixture
def no_hang():
    """Ends a test that would never end."""

    def stop(number, frame):
        # no OSError, which a command would tell in one line
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_numbers_in_a_config_start_no_endless_search(change, end, tmp_path, no_hang):
    config = read_json(bundled_model() / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    ended = end(f"geometry {tmp_path}")
    ended.check()
    assert ended.status in (0, 2)


@pytest.mark.parametrize("name", ["requests", "tokens", "layers", "experts", "top_k", "period", "hot"])
@pytest.mark.parametrize("value", SIZES)
@pytest.mark.parametrize("source", ["flash-next-like", "independent", "repeated", "loop", "scan"])
def test_synthetic_routes_are_limited_before_they_are_made(source, value, name, end, tmp_path, no_hang):
    size = {"requests": 1, "tokens": 2, "layers": 1, "experts": 64, "top_k": 2, "period": 4} | {name: value}
    settings = " ".join(f"--set {key}={number}" for key, number in size.items())
    ended = end(f"simulate routes {source} --out {tmp_path}/out.parquet {settings}")
    ended.check()
    assert ended.status in (0, 2)
    if ended.status == 0:
        read_routes(tmp_path / "out.parquet")
    else:
        assert not list(tmp_path.iterdir())


def test_ids_that_would_not_fit_are_refused_without_a_trace_too(end, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    ended = end("simulate misses independent --set routes.experts=40000 --set routes.layers=1 --set routes.tokens=2")
    ended.check()
    assert ended.status == 2
    assert "routes.experts" in ended.err


def test_a_table_of_long_equal_strings_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"name": pl.repeat("x" * 30_000, 60_000, eager=True)}).write_parquet(path)
    assert path.stat().st_size < 10_000
    with pytest.raises(BadInput, match="claims 1,800,000,000 bytes of text in 60,000 rows"):
        read_parquet(path)


def test_a_table_of_long_lists_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.parquet"
    values = pl.zeros(80_000_000, pl.Int8, eager=True)
    values.reshape((80, 1_000_000)).arr.to_list().to_frame("experts").write_parquet(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(BadInput, match="claims 80,000,000 values"):
        read_parquet(path)


def test_a_sparse_bundle_takes_no_disk_space(tmp_path):
    header = archive._header("run/zeros", 64 << 20).tobuf()
    path = tmp_path / "sparse.tar"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (64 << 20) + 10_240)
    (tmp_path / "inside").mkdir()
    assert archive.unpack_archive(path, tmp_path / "inside") == ["run/zeros"]
    unpacked = (tmp_path / "inside/run/zeros").stat()
    assert (unpacked.st_size, unpacked.st_blocks) == (64 << 20, 0)
    with path.open("r+b") as file:
        file.truncate(archive.MAX_BYTES + 1)
    with pytest.raises(BadInput, match="more than the 4"):
        archive.unpack_archive(path, tmp_path / "inside")
