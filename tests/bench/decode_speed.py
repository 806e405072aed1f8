"""Decode speed of the bundled model at batch 1: each arm against transformers (float32, 2 threads, cache on), as ratios.

Every arm runs in a process of its own, in the order A B B A, so that a drift of the machine shows as a difference between an
arm's two runs. The last line on stdout is one JSON object.
Run: python tests/bench/decode_speed.py [--arms transformers resident streamed] [--tokens 128] [--rounds 1]
"""

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "qwen4exp-mini-4bit"
NUM_THREADS = 2
PROMPT_TOKENS = 64
WARM_UP_TOKENS = 16
MOST_TOKENS = 272
"""Timed and warm-up tokens of a run together."""

Step = Callable[[int], int]
"""Feeds one token and returns the greedy next one."""


def prompt() -> np.ndarray:
    """The first tokens of the held-out text."""
    from tokenizers import Tokenizer

    text = (FOLDER / "eval.txt").read_text()[:4096]
    return np.array(Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(text).ids[:PROMPT_TOKENS])


def transformers_arm() -> Step:
    """transformers' unmodified class with its cache."""
    import torch
    from transformers import DynamicCache

    from predictors.reference import load_reference

    torch.set_num_threads(NUM_THREADS)
    model = load_reference(FOLDER)
    cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def feed(tokens: np.ndarray) -> int:
        logits = model(torch.from_numpy(tokens)[None], cache=cache, use_cache=True, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    feed(prompt())
    return lambda token: feed(np.array([token]))


def resident_arm() -> Step:
    """This workbench's model on stacked checkpoint tensors."""
    from workbench.runtime.resident_engine import ResidentEngine
    from workbench.runtime.session import Session
    from workbench.schema import EventLog

    session = Session(ResidentEngine(FOLDER, EventLog()))
    session.prefill(prompt())
    return lambda token: int(session.decode(token).argmax())


def streamed_arm() -> Step:
    """The streaming session with room for everything; a pass over the same tokens has filled its cache."""
    from workbench.runtime.config import RuntimeConfig
    from workbench.runtime.session import Session
    from workbench.runtime.store_cache import cache_limits
    from workbench.runtime.streamed import StreamedEngine
    from workbench.schema import EventLog
    from workbench.stores import open_store
    from workbench.stores.pack import pack

    folder = Path(tempfile.mkdtemp(prefix="decode-speed-"))
    atexit.register(shutil.rmtree, folder)
    pack(FOLDER, folder / "store")
    everything = cache_limits(open_store(folder / "store"))[1].num_bytes
    engine = StreamedEngine(folder / "store", RuntimeConfig(cache_bytes=everything), EventLog())
    atexit.register(engine.close)

    def fresh() -> Step:
        session = Session(engine)
        session.prefill(prompt())
        return lambda token: int(session.decode(token).argmax())

    decode(fresh(), int(prompt()[-1]), MOST_TOKENS)
    return fresh()


ARMS: dict[str, Callable[[], Step]] = {"transformers": transformers_arm, "resident": resident_arm, "streamed": streamed_arm}
"""An arm loads, prefills `prompt()` and returns its step. The first arm asked for is the control."""


def decode(step: Step, token: int, num_tokens: int) -> tuple[int, list[int]]:
    """Decodes greedily from `token`: the last token and the time of each step in ns."""
    times_ns = []
    for _ in range(num_tokens):
        start_ns = time.monotonic_ns()
        token = step(token)
        times_ns.append(time.monotonic_ns() - start_ns)
    return token, times_ns


def measure(arm: str, num_tokens: int) -> dict[str, float]:
    """Times the completed intervals between tokens, warm-up left out."""
    step = ARMS[arm]()
    token, _ = decode(step, int(prompt()[-1]), WARM_UP_TOKENS)
    cpu_s = time.process_time()
    timed = sorted(decode(step, token, num_tokens)[1])
    return {
        "median_ms": statistics.median(timed) / 1e6,
        "p10_ms": timed[len(timed) // 10] / 1e6,
        "mean_ms": statistics.fmean(timed) / 1e6,
        "cpu_ms": (time.process_time() - cpu_s) * 1e3 / num_tokens,
    }


def run_arm(arm: str, num_tokens: int) -> dict[str, float]:
    """`measure` in a fresh process."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(NUM_THREADS), "MKL_NUM_THREADS": str(NUM_THREADS)}
    command = [sys.executable, __file__, "--measure", arm, "--tokens", str(num_tokens)]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout.splitlines()[-1])


def cohorts(arms: list[str], rounds: int, num_tokens: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Every run, as it ends: arms forwards, then backwards, `rounds` times."""
    for _ in range(rounds):
        for arm in (*arms, *reversed(arms)):
            yield arm, run_arm(arm, num_tokens)


def main() -> None:
    """Runs the arms and prints the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=["transformers", "resident", "streamed"], help="the first is the control"
    )
    parser.add_argument("--tokens", type=int, default=128, help="timed tokens a run")
    parser.add_argument("--rounds", type=int, default=1, help="times the A B B A order is run")
    parser.add_argument("--measure", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tokens = min(options.tokens, MOST_TOKENS - WARM_UP_TOKENS)
    if options.measure:
        print(json.dumps(measure(options.measure, options.tokens)))
        return
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in options.arms}
    print("| run | median ms | p10 ms | mean ms | CPU ms |\n|---|--:|--:|--:|--:|")
    for arm, result in cohorts(options.arms, options.rounds, options.tokens):
        runs[arm].append(result)
        print(f"| {arm} | " + " | ".join(f"{value:.2f}" for value in result.values()) + " |", flush=True)
    medians = {arm: statistics.fmean(run["median_ms"] for run in results) for arm, results in runs.items()}
    control = medians[options.arms[0]]
    ratios = {arm: control / median for arm, median in medians.items()}
    print("\n" + ", ".join(f"{arm} {ratio:.2f}x" for arm, ratio in ratios.items()))
    print(json.dumps({"tokens": options.tokens, "load_average": os.getloadavg(), "ratios": ratios, "runs": runs}))


if __name__ == "__main__":
    main()
