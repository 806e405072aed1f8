"""A folder of results of every kind that the report shows."""

import pytest

from workbench.abba.records import AbbaConfig
from workbench.config import Config
from workbench.schema import Evidence, RunFolder, Status, decide
from workbench.schema.verdicts import Criterion

HOSTILE = "<script>alert('x')</script>"
COHORTS = [
    {"cohort": 1, "1A": 10.0, "2B": 9.0, "3B": 9.1, "4A": 10.1, "ratio": 0.9005, "control_drift": 0.01, "candidate_spread": 0.011}
    | {"counts": True, "reasons": ""},
    {"cohort": 2, "1A": 10.0, "2B": 9.0, "3B": 9.0, "4A": 12.0, "ratio": 0.82, "control_drift": 0.18, "candidate_spread": 0.0}
    | {"counts": False, "reasons": "control_drift (cohort: A1 and A2 differ by 18.2%, the limit is 3%)"},
]
EFFECT = {"effect/ratio": 0.9, "effect/ratio_low": 0.88, "effect/ratio_high": 0.92}


class Plan(Config):
    prompt: str = "def main():"


@pytest.fixture
def make(tmp_path):
    """Makes a finished run: `make("generate", tags=..., metrics=...)`."""

    def run(kind, *, profile="mini", evidence=Evidence.PHYSICAL, config=None, tags=None, events=None, **finish):
        folder = RunFolder.create(tmp_path, kind, config or Plan(), profile=profile, evidence=evidence, tags=tags)
        if events:
            events(folder.events)
        folder.finish(**finish)
        return folder

    return run


def criterion(value, code="abba.effect"):
    return Criterion(code=code, statement="B over A is above 1", value=value, low=value, high=value, relation=">", threshold=1.0)


@pytest.fixture
def verdict():
    """A verdict whose only clause has this value; above 1 passes."""

    def make_verdict(value=1.2, code="abba.effect", **more):
        return decide([criterion(value, code)], **more)

    return make_verdict


@pytest.fixture
def results(tmp_path, make, verdict):
    """Runs of every kind; returns their root."""
    config = AbbaConfig(base={"x": 1}, change=("runtime.policy='lru'",))
    tags = {"metric": "e2e/decode_tps", "change": f"note={HOSTILE}", "question": "q"}
    for value in (1.2, 0.9):
        found = verdict(value, summary=f"ratio {value}", conditions=[HOSTILE], enables=["adopt it"])
        make("abba", config=config, tags=tags, metrics=EFFECT, tables={"cohorts": COHORTS}, verdict=found)
    finding = {"code": "waiting_behind_hits", "statement": "hit rate 92%, yet exposed waits take 55% of token time"}
    make(
        "generate",
        tags={"arm": "streamed-lfru", "bandwidth_source": "given: 2 GB/s"},
        events=log_tokens,
        metrics={
            "e2e/decode_tps": 100.0,
            "e2e/demand_bytes_per_token": 1000.0,
            "e2e/dependency_bound_ms": 7.0,
            "overlap/stage_gdn_ms": 4.0,
            "overlap/stage_down_ms": 2.0,
        },
        tables={"findings": [finding]},
    )
    make("generate", status=Status.FAILED, error="BadInput: no store")
    make("simulate", evidence=Evidence.SIMULATED)
    make("gate_b", evidence=Evidence.TRACE, verdict=verdict(1.1, "B.locality", summary="routes repeat"))
    return tmp_path


def log_tokens(log):
    for position in range(11):
        start = position * 10_000_000
        where = {"request": 0, "phase": "decode"}
        log.add(start, "wait", **where, store="expert", duration_ns=2_000_000)
        log.add(start, "wait", **where, store="ple", duration_ns=500_000)
        log.add(start, "readback", **where, duration_ns=1_000_000)
        log.add(start + 10_000_000, "token", **where, position=position, committed_tokens=1)
