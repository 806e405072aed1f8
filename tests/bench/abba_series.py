"""Whether comparisons of a real short decode tell the truth: series of A against A, and of a planted 10 % slowdown.

Needs a machine with nothing else to do: the watchdog rejects every cohort beside which something ran. Half an hour or more.
Run: python tests/bench/abba_series.py null --series 20
     python tests/bench/abba_series.py slow --series 10
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from workbench.abba.plans import compare_generate
from workbench.abba.runner import run_abba
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.paths import runs_folder
from workbench.runtime.session import Session

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


def run_series(kind: str, count: int, cohorts: int, settings: list[str], root: Path) -> Counter[str]:
    """Claims of `count` series, whose folders stay under `root`."""
    change = [f"sampling.seed={PLANTED_SEED}"] if kind == "slow" else []
    values = {"cohorts": cohorts, "command": ["{python}", str(Path(__file__).resolve()), "arm", "{plan}"]}
    claims: Counter[str] = Counter()
    for number in range(count):
        config = compare_generate(BASE, change, values, settings)
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
    options = parser.parse_args()
    if options.kind == "arm":
        run_arm(options.plan)
        return
    root = options.out or Path(tempfile.mkdtemp(prefix="abba-series-"))
    print(f"results: {root}", flush=True)
    claims = run_series(options.kind, options.series, options.cohorts, options.settings, root)
    print(", ".join(f"{claim} {count}" for claim, count in claims.most_common()))


if __name__ == "__main__":
    main()
