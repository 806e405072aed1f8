"""Whether comparisons of a real short decode tell the truth: series of A against A, and of a planted 10 % slowdown.

Needs a machine with nothing else to do: the watchdog rejects every cohort beside which something ran, and control drift those
of a machine whose speed wanders (on a shared virtual machine five of six). With --paced the same decode waits most of its
time for a modelled disk (emulated), so that hardly any drifts: a cohort in 25 s, a series in 100 s. Nothing is warm there, so
that its arms need no warm-up.
Run: python tests/bench/abba_series.py null --series 20
     python tests/bench/abba_series.py slow --series 10 --paced --set warmups=0
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.abba.plans import compare_generate
from workbench.abba.runner import run_abba
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.paths import runs_folder, store_folder
from workbench.runtime.session import Session
from workbench.runtime.store_cache import cache_limits
from workbench.stores import open_store

PACED = {
    "version": 1, "name": "slow", "device": "a modelled disk", "source": "made for tests/bench/abba_series.py",
    "latency_us": 1000.0, "stream_gbps": 0.003, "bandwidth_gbps": 0.003, "iops": 1000.0,
}  # fmt: skip
"""Slow enough that a token of the smallest cache waits two thirds of a second."""
BASE = {"turns": ["def main():\n    parser = argparse.ArgumentParser()\n"], "max_tokens": 160, "stop_at_eos": False}
SLOWDOWN = 0.10
# greedy decoding draws nothing: the seed changes the configuration and not one byte of the output
PLANTED_SEED = 1


def run_arm(plan: Path) -> None:
    """`generate`, a tenth slower by busy waiting where the plan has the planted seed."""
    config = GenerateConfig.from_toml(plan)
    if config.sampling.seed == PLANTED_SEED:
        plant(SLOWDOWN)
    run_generate(config, root=runs_folder())


def plant(share: float) -> None:
    """Makes every decoded token take `share` longer."""
    decode = Session.decode

    def slower(session: Session, *arguments: object) -> object:
        start = time.monotonic()
        logits = decode(session, *arguments)
        end = time.monotonic()
        while time.monotonic() < end + share * (end - start):
            pass
        return logits

    Session.decode = slower


def paced_base(root: Path) -> dict[str, Any]:
    """A decode of a few tokens through the smallest cache on the modelled disk."""
    path = root / "slow.json"
    path.write_text(json.dumps(PACED))
    least, _ = cache_limits(open_store(store_folder("mini")))
    runtime = {"envelope": str(path), "cache_bytes": least.num_bytes}
    return BASE | {"turns": ["def"], "max_tokens": 5, "bandwidth_gbps": PACED["bandwidth_gbps"], "runtime": runtime}


def run_series(kind: str, count: int, cohorts: int, base: Mapping[str, Any], settings: list[str], root: Path) -> Counter[str]:
    """Claims of `count` series, whose folders stay under `root`."""
    change = [f"sampling.seed={PLANTED_SEED}"] if kind == "slow" else []
    values = {"cohorts": cohorts, "command": ["{python}", str(Path(__file__).resolve()), "arm", "{plan}"]}
    claims: Counter[str] = Counter()
    for number in range(count):
        config = compare_generate(base, change, values, settings)
        result = run_abba(config, root=root, note=lambda line: print(line, file=sys.stderr)).result
        assert result is not None
        assert result.verdict is not None
        claims[result.tags["claim"]] += 1
        print(f"{kind} {number + 1}: {result.verdict.summary}", flush=True)
    return claims


def main() -> None:
    """Prints every series' conclusion and how often each was drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["null", "slow", "arm"])
    parser.add_argument("plan", nargs="?", type=Path)
    parser.add_argument("--series", type=int, default=20)
    parser.add_argument("--cohorts", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the series' results: a new temporary one where nothing is said"
    )
    parser.add_argument("--paced", action="store_true", help="decode from a modelled slow disk: emulated")
    options = parser.parse_args()
    if options.kind == "arm":
        run_arm(options.plan)
        return
    root = options.out or Path(tempfile.mkdtemp(prefix="abba-series-"))
    root.mkdir(parents=True, exist_ok=True)
    print(f"results: {root}", flush=True)
    base = paced_base(root) if options.paced else BASE
    claims = run_series(options.kind, options.series, options.cohorts, base, options.settings, root)
    print(", ".join(f"{claim} {count}" for claim, count in claims.most_common()))


if __name__ == "__main__":
    main()
