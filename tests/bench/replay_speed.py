"""Speed of the replay beside libcachesim, in one run, on Flash-Next-like routes; then the time of Gate B's whole grid.

libcachesim (C) reads the same accesses from a file and replays them one by one; it has no event-atomic mode and no LFRU.
Each figure is the best of `--rounds`. Run: python tests/bench/replay_speed.py [--tokens 383] [--rounds 3]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workbench.analysis.routes import routes_of
from workbench.gates.b_locality import LocalityConfig
from workbench.gates.b_locality.measures import measure
from workbench.simulate.events import array_events, route_frame
from workbench.simulate.replay import miss_counts, miss_counts_per_access
from workbench.simulate.synthetic import FLASH_NEXT_LIKE, RouteModel, synthetic_routes

CAPACITIES = (4008, 10_200)
CLASSES = {"lru": "LRU", "lfru": None, "arc": "ARC", "s3-fifo": "S3FIFO", "score": None, "belady": "Belady"}
ORACLE_RECORD = np.dtype([("clock", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next_use", "<i8")])
NEVER = 2**63 - 1


def best_s(work: Callable[[], object], rounds: int) -> float:
    """Least CPU time of `rounds` calls."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def write_oracle_trace(accesses: np.ndarray, path: Path) -> None:
    """The accesses in libcachesim's binary format, with the index of each key's next use."""
    records = np.zeros(len(accesses), ORACLE_RECORD)
    records["id"], records["size"] = accesses, 1
    upcoming: dict[int, int] = {}
    for index in range(len(accesses) - 1, -1, -1):
        records["next_use"][index] = upcoming.get(accesses[index], NEVER)
        upcoming[accesses[index]] = index
    records.tofile(path)


def libcachesim_s(kind: str, capacity: int, path: Path, rounds: int) -> tuple[float, float]:
    """Least CPU time of a replay in C, and its miss ratio."""
    import libcachesim as lib

    def replay() -> float:
        setup = lib.ReaderInitParam(ignore_obj_size=True)
        reader = lib.TraceReader(trace=str(path), trace_type=lib.TraceType.ORACLE_GENERAL_TRACE, reader_init_params=setup)
        return getattr(lib, kind)(cache_size=capacity).process_trace(reader)[0]

    return best_s(replay, rounds), replay()


def policy_table(num_tokens: int, rounds: int) -> None:
    """Prints accesses per second by policy, capacity and mode."""
    routes = synthetic_routes(FLASH_NEXT_LIKE, num_requests=3, num_tokens=num_tokens, seed=0)
    events = array_events(routes, FLASH_NEXT_LIKE.num_experts)
    lists, accesses = events.tolist(), events.ravel()
    print(f"{accesses.size:,} accesses in {len(lists):,} events; million accesses/s, best of {rounds}\n")
    print("| policy | slots | misses | event-atomic | per access | libcachesim, per access | event-atomic / libcachesim |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accesses.oracleGeneral"
        write_oracle_trace(accesses, path)
        for capacity in CAPACITIES:
            for policy, kind in CLASSES.items():
                misses = miss_counts(lists, capacity, policy).sum()
                atomic = accesses.size / best_s(lambda: miss_counts(lists, capacity, policy), rounds) / 1e6  # noqa: B023
                single = accesses.size / best_s(lambda: miss_counts_per_access(accesses, capacity, policy), 1) / 1e6  # noqa: B023
                theirs, ratio = "-", "-"
                if kind:
                    seconds, miss_ratio = libcachesim_s(kind, capacity, path, rounds)
                    assert round(miss_ratio * accesses.size) == miss_counts_per_access(accesses, capacity, policy).sum()
                    theirs, ratio = f"{accesses.size / seconds / 1e6:.2f}", f"{atomic * 1e6 * seconds / accesses.size:.2f}"
                print(f"| {policy} | {capacity} | {misses:,} | {atomic:.2f} | {single:.2f} | {theirs} | {ratio} |", flush=True)


def gate_grid() -> None:
    """Prints the time of Gate B's measures, its policy x capacity grid among them, on a trace of the gate's shape and length."""
    config = LocalityConfig()
    model = RouteModel(num_layers=8, num_experts=128, top_k=10, num_early_layers=1, active_share=0.9)
    made = synthetic_routes(model, num_requests=config.requests, num_tokens=config.tokens + 128, seed=0)
    routes = routes_of(route_frame(made, family="made"), num_experts=128)
    start = time.perf_counter()
    curve = measure(routes, config, record_bytes=27_648).tables["misses"]
    seconds = time.perf_counter() - start
    print(f"\nGate B: {curve.height} replays of {routes.experts.size:,} accesses and all its tables in {seconds:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=383)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    policy_table(arguments.tokens, arguments.rounds)
    gate_grid()
