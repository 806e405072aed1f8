"""An untouched bundle passes everywhere; one altered number fails, and the message says where."""

import hashlib
import io
import json

import polars as pl
import pytest

from workbench.bundle import State, check_bundle, make_bundle
from workbench.bundle.manifest import table_entry
from workbench.errors import BadInput
from workbench.schema import Evidence, RunFolder


def of(checks, state):
    return {check.what: check.detail for check in checks if check.state is state}


def events_name(content, nth=0):
    return sorted(name for name in content if name.endswith("events.parquet"))[nth]


def altered_events(data, row, column, change):
    frame = pl.read_parquet(io.BytesIO(data))
    metadata = pl.read_parquet_metadata(io.BytesIO(data))
    value = pl.lit(change(frame[column][row]), frame.schema[column])
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) == row).then(value).otherwise(pl.col(column)).alias(column))
    out = io.BytesIO()
    frame.write_parquet(out, metadata={"events_version": metadata["events_version"]})
    return out.getvalue()


def resealed(content, name):
    """The manifest made to agree with an altered file."""
    manifest = json.loads(content["manifest.json"])
    manifest["files"][name] = {"num_bytes": len(content[name]), "sha256": hashlib.sha256(content[name]).hexdigest()}
    if name in manifest["tables"]:
        manifest["tables"][name] = table_entry(pl.read_parquet(io.BytesIO(content[name]))).model_dump()
    return content | {"manifest.json": json.dumps(manifest).encode()}


def test_an_untouched_run_passes_and_says_what_it_could_not_check(bundles):
    manifest, checks = check_bundle(bundles["run"])
    assert of(checks, State.FAILED) == {}
    assert {"files", "generate: config digest", "generate: metrics", "generate: output digest"} <= of(checks, State.OK).keys()
    unseen = of(checks, State.NOT_CHECKED)
    assert "peak_rss_bytes" in unseen["generate: metrics"]
    assert "generate: state_digest, routing_digest" in unseen
    assert "not on this machine" in unseen["store_digest"]
    assert manifest.needs == {"store_digest": "44" * 32}


def test_an_untouched_comparison_passes(bundles):
    _, checks = check_bundle(bundles["series"])
    assert of(checks, State.FAILED) == {}
    passed = of(checks, State.OK)
    assert passed["verdict"] == "fail (abba.worse)"
    assert passed["cohorts"] == "4 of 4 are valid"
    assert "cohort 4 arm 4A: metrics" in passed
    assert "page cache, power and thermal readings" in of(checks, State.NOT_CHECKED)


def test_the_same_run_gives_the_same_bytes(bundles, run, tmp_path):
    make_bundle(run, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == bundles["run"].read_bytes()


def test_one_altered_number_is_found_in_its_column_and_rows(bundles, members, pack):
    content = members(bundles["series"])
    name = events_name(content, 5)
    content[name] = altered_events(content[name], 75, "duration_ns", lambda value: (value or 0) + 1)
    _, checks = check_bundle(pack(content))
    detail = of(checks, State.FAILED)[name]
    assert "column duration_ns, rows 64 to 127" in detail


def test_one_altered_number_under_a_mended_manifest_is_found_in_the_metrics(bundles, members, pack):
    content = members(bundles["run"])
    name = events_name(content)
    frame = pl.read_parquet(io.BytesIO(content[name])).with_row_index()
    row = frame.filter(kind="wait")["index"][3]
    content[name] = altered_events(content[name], row, "duration_ns", lambda value: value * 10)
    _, checks = check_bundle(pack(resealed(content, name)))
    failed = of(checks, State.FAILED)
    assert failed.keys() == {"generate: metrics", "generate: values by token"}
    assert "overlap/exposed_wait_ms is 6.0, its events give 7.8" in failed["generate: metrics"]


@pytest.mark.parametrize(
    ("suffix", "change", "what"),
    [
        ("run/result.json", lambda d: d["metrics"].update({"effect/ratio": 1.2}), "metrics of the comparison"),
        ("run/result.json", lambda d: d["verdict"].update(outcome="pass"), "verdict"),
        ("run/artifacts/cohorts.json", lambda d: d["cohorts"][1]["arms"][2].update(value=120.0), "cohort 2 arm 3B: record"),
        (
            "run/artifacts/cohorts.json",
            lambda d: d["cohorts"][0]["arms"][0]["watch"].update(swap_out_bytes=4096),
            "cohort 1 arm 1A: watchdog",
        ),
        (
            "run/artifacts/cohorts.json",
            lambda d: d["cohorts"][2].update(reasons=[{"code": "swapped_out", "where": "2B", "detail": "invented"}]),
            "cohort 3",
        ),
        (
            "run/artifacts/cohorts.json",
            lambda d: d["cohorts"][2]["arms"][1].update(folder="../../../../etc"),
            "arms",
        ),
        ("run/result.json", lambda d: d["tables"].update(findings=[{"arm": "x"}]), "detectors on the comparison"),
        ("c03/2B/watch.json", lambda d: d[-1].update(busy_s=9.0), "cohort 3 arm 2B: watchdog"),
        ("artifacts/plan-B.toml", None, "cohort 1 arm 2B: record"),
        ("run/config.toml", None, "comparison: config digest"),
    ],
)
def test_an_altered_record_under_a_mended_manifest_is_found(bundles, members, pack, suffix, change, what):
    content = members(bundles["series"])
    name = next(name for name in content if name.endswith(suffix))
    if change:
        document = json.loads(content[name])
        change(document)
        content[name] = json.dumps(document).encode()
    else:
        content[name] = content[name].replace(b"max_tokens = 31", b"max_tokens = 33").replace(b"cohorts = 4", b"cohorts = 5")
    _, checks = check_bundle(pack(resealed(content, name)))
    assert what in of(checks, State.FAILED)


def test_altered_text_is_found(bundles, members, pack):
    content = members(bundles["run"])
    name = next(name for name in content if name.endswith("text.md"))
    content[name] += b"!"
    _, checks = check_bundle(pack(resealed(content, name)))
    assert "text.md gives" in of(checks, State.FAILED)["generate: output digest"]


def test_missing_and_added_files_are_named(bundles, members, pack):
    content = members(bundles["run"])
    content.pop(next(name for name in content if name.endswith("text.md")))
    content["run/extra.txt"] = b"more"
    _, checks = check_bundle(pack(content))
    failed = of(checks, State.FAILED)
    assert failed["run/extra.txt"] == "it is not in the manifest"
    assert failed["run/artifacts/text.md"] == "it is in the manifest and not in the bundle"


def test_an_unfinished_run_cannot_be_bundled(tmp_path, run):
    folder = RunFolder.create(tmp_path, "generate", _config(run), profile="mini", evidence=Evidence.PHYSICAL)
    with pytest.raises(BadInput, match="only a finished run"):
        make_bundle(folder, tmp_path / "x.tar")


def _config(run):
    from workbench.experiments.generate import GenerateConfig

    return GenerateConfig.from_toml(run.path / "config.toml")
