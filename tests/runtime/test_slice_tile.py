"""One true tile at full record size: needs `workbench slice`, a minute to make and 6 GB."""

import numpy as np
import pytest

from workbench.paths import store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.stores.manifest import MANIFEST_NAME
from workbench.units import GIB

SLICE = store_folder("slice")


def digests(engine):
    with engine:
        session = Session(engine, tile=64)
        logits = session.prefill(np.random.default_rng(7).integers(1, 2000, 64).tolist())
        return session.state.digest(), session.routing_digest, logits.tobytes()


@pytest.mark.soak
@pytest.mark.skipif(not (SLICE / MANIFEST_NAME).exists(), reason="no slice store: make it with `workbench slice`")
def test_one_tile_of_slice_has_the_same_bits_in_every_mode():
    wanted = digests(ResidentEngine(SLICE, EventLog()))
    for mode in ("macro", "micro", "auto"):
        config = RuntimeConfig(cache_bytes=GIB, prefill=mode)
        assert digests(StreamedEngine(SLICE, config, EventLog())) == wanted, mode
