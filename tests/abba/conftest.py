"""Planted arms and quiet or disturbed machines."""

import itertools
from pathlib import Path

import pytest

from workbench.abba.power import PowerState
from workbench.abba.records import AbbaConfig
from workbench.abba.watch import Reading, Watch
from workbench.config import Config
from workbench.schema import Evidence, RunFolder

DIGESTS = {"output_digest": "11" * 32, "state_digest": "22" * 32, "routing_digest": "33" * 32}
ARM = Path(__file__).with_name("planted_arm.py")


class Planted(Config):
    """What a planted run was made with."""


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A finished result folder that planted arms copy."""
    root = tmp_path_factory.mktemp("template")
    folder = RunFolder.create(root, "planted", Planted(), profile="mini", evidence=Evidence.PHYSICAL, tags=DIGESTS)
    folder.finish(metrics={"e2e/decode_tps": 1.0, "e2e/wasted_bytes_per_token": 0.0})
    return folder.path


@pytest.fixture
def configure(template):
    """Makes a comparison of planted arms: 10 tokens/s, no warm-up, four cohorts."""

    def make(change=(), base=None, **settings):
        values = {
            "base": {"template": str(template), "value": 10.0, **(base or {})},
            "change": list(change),
            "command": ["{python}", "-I", "-S", str(ARM), "{plan}"],
            "cohorts": 4,
            "max_cohorts": 4,
            "warmups": 0,
        }
        return AbbaConfig.build({**values, **settings})

    return make


@pytest.fixture(autouse=True)
def stable_sources(monkeypatch):
    """Somebody may edit the package while its tests run."""
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: "00" * 32)


@pytest.fixture
def quiet():
    """A machine where nothing else happens."""
    return disturbed()


def disturbed(power=PowerState, **per_reading):
    """Makes watchdogs of a machine on which the named columns grow by so much at every reading."""

    def make():
        count = itertools.count(1)

        def meter(session):
            step = next(count)
            values = {"swap_out_bytes": 0, "memory_pressure": 0.1, "busy_s": 0.0, "stolen_s": 0.0, "own_s": 0.0}
            values |= {name: grow * step for name, grow in per_reading.items()}
            return Reading(t_ns=step * 1_000_000_000, processes={42: ("cc1plus", values["busy_s"])}, **values)

        return Watch(meter, power)

    return make
