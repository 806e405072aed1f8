"""Accuracy of simulated results, from the newest validation of the twin on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.analysis.twin_errors import ARM, Decoded
from workbench.hardware import machine
from workbench.schema import Result, Status, list_runs


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Accuracy of simulated figures of a profile, from the newest validation."""

    statement: str
    """One line for every simulated result."""
    errors: Mapping[str, tuple[float, float]]
    """Lowest and highest relative error by quantity; empty without a validation."""

    def interval(self, quantity: str, simulated: float) -> tuple[float | None, float | None]:
        """Range of live figures that a simulated one may stand for, if the twin errs as validated; None without a validation."""
        if quantity not in self.errors:
            return None, None
        lowest, highest = self.errors[quantity]
        return simulated / (1 + highest), simulated / (1 + lowest) if lowest > -1 else None

    def speeds(self, tokens_per_s: float) -> tuple[float | None, float | None]:
        """Range of live tokens/s that simulated ones may stand for, from the errors of token time."""
        low, high = self.interval("token_time", 1 / tokens_per_s)
        return 1 / high if high else None, 1 / low if low else None


def trust(root: Path, profile: str) -> Trust:
    """The accuracy of simulated results of a profile on this machine."""
    result = latest_validation(root, profile)
    if result is None or result.verdict is None:
        return Trust(statement=f"twin not validated: no `workbench simulate validate` of {profile} on this machine", errors={})
    errors = {row["quantity"]: (row["lowest"], row["highest"]) for row in result.tables["errors"]}
    return Trust(statement=f"{result.verdict.summary} (run {result.run_id})", errors=errors)


def latest_validation(root: Path, profile: str) -> Result | None:
    """The newest finished validation of this machine and profile, whatever its verdict; None without one."""
    for folder in reversed(list(list_runs(root, "simulate"))):
        about = folder.environment
        if (about["tags"].get("arm"), about["profile"], about["machine"]["digest"]) != (ARM, profile, machine().digest):
            continue
        result = folder.result
        if result is not None and result.status is Status.FINISHED:
            return result
    return None


def estimates(run: Decoded, trusted: Trust) -> list[dict[str, str | float | None]]:
    """Table rows of simulated figures, each with the range of live figures that it may stand for."""
    intervals = {
        "hit rate": (run.hit_rate, trusted.interval("hits", run.hit_rate)),
        "token time, ms": (run.token_ms, trusted.interval("token_time", run.token_ms)),
        "exposed wait per token, ms": (run.exposed_wait_ms, trusted.interval("exposed_wait", run.exposed_wait_ms)),
    }
    return [{"figure": name, "simulated": value, "low": low, "high": high} for name, (value, (low, high)) in intervals.items()]
