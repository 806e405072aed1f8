"""Clauses of any gate from estimates, and the conditions that all gates share."""

from collections.abc import Sequence
from typing import Any, Protocol

from workbench.gates.base import GateConfig
from workbench.hardware import machine
from workbench.schema import Criterion


class Estimated(Protocol):
    """A value with the ends of its interval: an `Interval`, a `Median`, a `RatioEstimate`."""

    @property
    def value(self) -> Any:
        """The estimate."""

    @property
    def low(self) -> Any:
        """Lower end of its interval; NaN: no interval."""

    @property
    def high(self) -> Any:
        """Upper end of its interval; NaN: no interval."""


def clause(code: str, statement: str, found: Estimated, relation: Any, threshold: float) -> Criterion:
    """The clause `code`: `found` must keep `relation` to `threshold`."""
    value, low, high = float(found.value), float(found.low), float(found.high)
    return Criterion(code=code, statement=statement, value=value, low=low, high=high, relation=relation, threshold=threshold)


def changed_thresholds(config: GateConfig, registered: Sequence[str]) -> list[str]:
    """A condition that names the registered settings whose values are not the defaults; empty when all are."""
    defaults = type(config)()
    changed = [name for name in registered if getattr(config, name) != getattr(defaults, name)]
    return [f"thresholds differ from the registered ones: {', '.join(changed)}"] if changed else []


def machine_conditions() -> list[str]:
    """A condition that says what a cold cache means on a virtual machine; empty elsewhere."""
    if not machine().virtual_machine:
        return []
    return ["virtual machine: cold means out of the guest's page cache; the host's cache is not seen"]
