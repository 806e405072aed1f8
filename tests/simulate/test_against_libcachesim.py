"""Per-access replay misses exactly what libCacheSim misses (pip `libcachesim` 0.3.5, C), stored as golden integers.

No defined difference was needed at these capacities. Two exist: S3-FIFO below ten records (libCacheSim's small queue is
then empty and it caches nothing; ours holds one), and LFRU, which libCacheSim does not have.
"""

import zlib

import numpy as np
import pytest

from workbench.simulate.events import array_events
from workbench.simulate.replay import miss_counts_per_access
from workbench.simulate.synthetic import RouteModel, synthetic_routes

POLICY_NAMES = ("lru", "arc", "s3-fifo", "belady")

# trace: (CRC-32, {capacity: misses of lru, arc, s3-fifo, belady})
GOLDEN = {
    "skewed": (
        3374773792,
        {
            25: (9493, 8578, 8306, 6777),
            60: (8153, 7317, 7017, 5083),
            120: (6523, 6013, 5729, 3585),
            240: (4330, 4140, 3939, 2050),
        },
    ),
    "looping": (
        1669244737,
        {
            25: (11957, 11847, 10824, 9994),
            60: (11912, 11683, 9230, 7237),
            120: (11809, 11357, 6432, 3326),
            240: (1888, 1890, 1838, 1061),
        },
    ),
    "routed": (
        2639160742,
        {25: (7259, 7713, 7181, 4237), 60: (3576, 3658, 3600, 1769), 120: (1285, 1272, 1121, 577), 240: (250, 251, 251, 248)},
    ),
}


def _randoms(count):
    """Uniform numbers in [0, 1) from a 64-bit congruential generator: the same everywhere."""
    state, values = 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append((state >> 11) / 2**53)
    return values


def skewed_trace():
    """Independent draws from 600 keys, few of them popular."""
    return [int(600 * u**3) for u in _randoms(12_000)]


def looping_trace():
    """A cycle of 150 keys, left for a random key every fifth time."""
    draws = _randoms(24_000)
    return [150 + int(300 * draws[2 * i]) if draws[2 * i + 1] < 0.2 else i % 150 for i in range(12_000)]


def routed_trace():
    """Small Flash-Next-like routes, one access after another."""
    model = RouteModel(num_layers=4, num_experts=96, top_k=6, num_early_layers=1)
    routes = synthetic_routes(model, num_requests=2, num_tokens=250, seed=7)
    return array_events(routes, 96).ravel().tolist()


TRACES = {"skewed": skewed_trace, "looping": looping_trace, "routed": routed_trace}


@pytest.fixture(scope="module", params=TRACES)
def trace(request):
    return request.param, TRACES[request.param]()


def test_traces_are_those_the_golden_misses_belong_to(trace):
    name, accesses = trace
    assert zlib.crc32(np.array(accesses, np.int32).tobytes()) == GOLDEN[name][0]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_misses_equal_the_golden_ones(trace, policy):
    name, accesses = trace
    column = POLICY_NAMES.index(policy)
    expected = {capacity: misses[column] for capacity, misses in GOLDEN[name][1].items()}
    assert {capacity: miss_counts_per_access(accesses, capacity, policy).sum() for capacity in expected} == expected


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_golden_misses_are_libcachesims(trace, policy):
    libcachesim = pytest.importorskip("libcachesim")
    name, accesses = trace
    kind = {"lru": "LRU", "arc": "ARC", "s3-fifo": "S3FIFO", "belady": "Belady"}[policy]
    requests = list(_requests(libcachesim, accesses))
    for capacity, misses in GOLDEN[name][1].items():
        cache = getattr(libcachesim, kind)(cache_size=capacity, hashpower=12)
        hits = sum(map(cache.get, requests))
        assert len(accesses) - hits == misses[POLICY_NAMES.index(policy)], (capacity, policy)


def _requests(libcachesim, accesses):
    never = 2**63 - 1
    next_use, upcoming = [], {}
    for index in range(len(accesses) - 1, -1, -1):
        next_use.append(upcoming.get(accesses[index], never))
        upcoming[accesses[index]] = index
    for key, following in zip(accesses, reversed(next_use), strict=True):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.next_access_vtime = key, 1, following
        yield request
