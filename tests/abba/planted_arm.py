"""An arm for tests: copies a finished result folder to where arms go and sets what its plan asks for. Imports nothing heavy."""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path


def main() -> None:
    plan = tomllib.loads(Path(sys.argv[1]).read_text())
    home = Path(os.environ["WORKBENCH_RUNS"])
    if plan.get("pid_file"):
        Path(plan["pid_file"]).write_text(str(os.getpid()))
    behaviour = plan.get("behaviour", "")
    if behaviour == "crash":
        sys.exit("the disk is on fire")
    time.sleep(plan.get("sleep_s", 0.0))
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    target = home / "planted" / "run"
    shutil.copytree(plan["template"], target)
    edit(target, plan, str(home))
    if behaviour == "unfinished":
        (target / "result.json").unlink()


def edit(target: Path, plan: dict, home: str) -> None:
    shutil.copy(sys.argv[1], target / "config.toml")
    result = json.loads((target / "result.json").read_text())
    jitter = plan.get("jitter", 0.002) * (int(hashlib.sha256(home.encode()).hexdigest()[:8], 16) / 2**31 - 1)
    result["metrics"]["e2e/decode_tps"] = plan["value"] * (1 + jitter)
    result["metrics"]["e2e/demand_bytes_per_token"] = plan.get("bytes_per_token", 1000.0)
    result["config_digest"] = hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest()
    result["tags"] |= plan.get("tags", {})
    (target / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
