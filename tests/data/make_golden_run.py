"""Makes golden_run: a small Gate B run on planted routes, with the machine and the clock left out.

Rerun it only together with a new version in workbench/schema. Run: python tests/data/make_golden_run.py
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from workbench.gates import find_gate
from workbench.gates.base import run_gate
from workbench.schema import ROUTE_SCHEMA, EventLog, write_routes
from workbench.simulate.planted import repeated

GOLDEN = Path(__file__).parent / "golden_run"
RUN_ID = "20260101-000000000-cafe"
STARTED_UNIX_S = 1767225600.0
REQUESTS, TOKENS, TOP_K, EXPERTS = 4, 14, 10, 128


def plant(path: Path) -> None:
    """Four requests of two prompt and twelve decoded tokens, one layer; each repeats its first token's experts."""
    routes = repeated(num_requests=REQUESTS, num_tokens=TOKENS, num_layers=1, num_experts=EXPERTS, top_k=TOP_K, seed=1).reshape(
        -1, TOP_K
    )
    position = np.tile(np.arange(TOKENS), REQUESTS)
    frame = pl.DataFrame(
        {
            "request": np.repeat(np.arange(REQUESTS), TOKENS),
            "family": ["prose"] * len(routes),
            "split": ["held_out"] * len(routes),
            "phase": np.where(position < 2, "prefill", "decode"),
            "position": position,
            "layer": np.zeros(len(routes), dtype=np.int16),
            "token_id": np.arange(len(routes)),
            "experts": routes.tolist(),
            "weights": np.full(routes.shape, 1 / TOP_K).tolist(),
        },
        schema=ROUTE_SCHEMA,
    )
    write_routes(frame, path, num_layers=1, num_experts=EXPERTS, top_k=TOP_K)


def neutral(about: dict) -> dict:
    """An environment that belongs to no machine, process or commit."""
    machine = {name: "golden" for name in about["machine"]} | {"num_cores": 2, "memory_bytes": 2**34, "virtual_machine": False}
    return about | {
        "command": ["workbench", "gate", "b_locality", "--smoke"],
        "python": "3.11.0",
        "versions": {"polars": "1.0.0"},
        "workbench": "0.1.0",
        "commit": "0" * 40,
        "dirty": False,
        "machine": machine,
        "pid": -1,
        "pid_started_unix_s": STARTED_UNIX_S,
        "run_id": RUN_ID,
        "started_unix_s": STARTED_UNIX_S,
        "tags": about["tags"] | {"stage": "0" * 12},
    }


def write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    folder = GOLDEN / "gate_b" / RUN_ID
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        plant(Path("routes.parquet"))
        gate = find_gate("b_locality")
        settings = ["trace=routes.parquet", f"requests={REQUESTS}", "tokens=12", "fractions=[0.25]", "resamples=100"]
        made = run_gate(gate, gate.configure(smoke=True, settings=settings), root=Path())
        shutil.copytree(made.path, folder)
        shutil.copy("routes.parquet", folder / "artifacts")
    (folder / "artifacts" / "stage.json").unlink()
    for figure in (folder / "artifacts" / "figures").glob("*.png"):
        if figure.stem != "unions":
            figure.unlink()
    write(folder / "environment.json", neutral(json.loads((folder / "environment.json").read_text())))
    result = json.loads((folder / "result.json").read_text())
    changed = {"run_id": RUN_ID, "started_unix_s": STARTED_UNIX_S, "duration_s": 1.5}
    write(folder / "result.json", result | changed | {"tags": result["tags"] | {"stage": "0" * 12}})
    log = EventLog()
    log.add(1, "mark", name="request_start", request=0)
    log.add(2, "token", request=0, phase="decode", position=2, duration_ns=1, committed_tokens=1)
    log.write(folder / "events.parquet")


if __name__ == "__main__":
    main()
