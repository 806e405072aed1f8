"""The hot set of a sequence comes back while generation is idle, and nothing but waits changes by it."""

import pytest
from tokenizers import Tokenizer

from workbench.loading.warming import Warming
from workbench.paths import bundled_model
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.session import Session
from workbench.runtime.store_cache import cache_limits
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.stores import open_store
from workbench.units import NS_PER_S

TURN = 6
IDLE_NS = 3 * NS_PER_S


def decode(session, tokens):
    for token in tokens:
        session.decode(int(token))


def two_turns(store, tokens, *, most, idle_ns):
    """Sequence 0 has a turn, sequence 1 uses the cache, then sequence 0 goes on: events and digests."""
    least, _ = cache_limits(open_store(store))
    cache_bytes = least.num_bytes + 40 * least.stride_bytes
    log = EventLog()
    with StreamedEngine(store, RuntimeConfig(cache_bytes=cache_bytes, policy="lru", uncached=False), log) as engine:
        warming = Warming(engine.transfer, most=most)

        def use(scope, layer, tokens, ids, weights):
            warming.use((ids.ravel() + 128 * layer).tolist())

        first, other = Session(engine, route_sink=use), Session(engine, request=1)
        decode(first, tokens[:TURN])
        decode(other, tokens[60 : 60 + TURN])
        warming.stand_idle(0, idle_ns)
        decode(first, tokens[TURN : 2 * TURN])
        digests = (first.state.digest(), first.routing_digest)
    return log.frame(), digests


@pytest.fixture(scope="module")
def mini_tokens():
    text = (bundled_model() / "eval.txt").read_text()
    return Tokenizer.from_file(str(bundled_model() / "tokenizer.json")).encode(text[:800]).ids


@pytest.fixture(scope="module")
def runs(packed, mini_tokens):
    return {most: two_turns(packed, mini_tokens, most=most, idle_ns=IDLE_NS if most else 0) for most in (0, 60)}


def misses_of_first_token(frame):
    demands = frame.filter(kind="demand", store="expert", request=0, position=TURN)
    return demands["misses"].sum()


def test_warming_moves_bytes_and_no_decision(runs):
    assert runs[0][1] == runs[60][1]


def test_a_turn_finds_what_its_sequence_used_most(runs):
    cold, warm = (misses_of_first_token(runs[most][0]) for most in (0, 60))
    assert warm < 0.9 * cold


def test_what_is_warmed_is_predicted_background_reading(runs):
    warmed = runs[60][0].filter(kind="ticket", intent="predicted")
    assert 30 < warmed.height <= 60
    assert {"used_on_time", "unused"} >= set(warmed["outcome"]) > {"unused"}
    assert runs[0][0].filter(kind="ticket", intent="predicted").is_empty()


def test_idle_time_ends_when_it_should_whatever_is_still_coming(packed, mini_tokens):
    # nothing is waited for: the reads go on behind the next turn
    frame, digests = two_turns(packed, mini_tokens, most=60, idle_ns=0)
    assert digests == two_turns(packed, mini_tokens, most=0, idle_ns=0)[1]
    assert frame.filter(kind="token", request=0).height == 2 * TURN
