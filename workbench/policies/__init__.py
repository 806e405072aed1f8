"""Cache policies: which records to evict. They work on whole events and know keys, not slots or bytes; one file per policy."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from workbench.errors import BadInput, did_you_mean, shortened
from workbench.plugins import Plugin, is_plugin, load_class, short_name
from workbench.policies.arc import Arc
from workbench.policies.base import Policy
from workbench.policies.belady import Belady
from workbench.policies.layer_quota import LayerQuota
from workbench.policies.lfru import Lfru
from workbench.policies.lru import Lru
from workbench.policies.s3_fifo import S3Fifo
from workbench.policies.score import Score

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Lru, Lfru, Arc, S3Fifo, Score, LayerQuota, Belady)}
"""Every policy by name."""


def _known(name: str) -> str:
    if not is_plugin(name) and name not in POLICIES:
        meant = did_you_mean(name, POLICIES, lead=", ")
        raise BadInput(f"no cache policy {shortened(repr(name))}{meant}; there are {', '.join(POLICIES)}")
    return name


PolicyName = Annotated[Plugin, AfterValidator(_known)]
"""Name of a policy, or `file.py:Class`. For a field of a `Config`."""


def make(name: str, *, capacity: int, offered: Mapping[str, Any] | None = None, **settings: Any) -> Policy:
    """The policy `name`, or `file.py:Class`, for a cache of `capacity` records, e.g. `make("lfru", capacity=4008)`.

    Raises BadInput on an unknown name or setting, naming the nearest, and on a setting that the policy can't do without:
    `events` for belady, `num_experts` for layer-quota. `offered`: further settings, for policies that have them.
    """
    kind = load_class(name, Policy) if is_plugin(name) else POLICIES[_known(name)]
    _, *others = inspect.signature(kind).parameters.values()
    parameters = {each.name: each for each in others if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    for setting in settings:
        if setting not in parameters:
            raise BadInput(
                f"cache policy {short_name(name)} has no setting {setting!r}{did_you_mean(setting, list(parameters), lead=', ')}"
            )
    settings = {name: value for name, value in (offered or {}).items() if name in parameters} | settings
    for setting, parameter in parameters.items():
        if parameter.default is parameter.empty and setting not in settings:
            raise BadInput(f"cache policy {short_name(name)} needs {setting}")
    made: Policy = kind(capacity, **settings)
    return made


__all__ = ["POLICIES", "Arc", "Belady", "LayerQuota", "Lfru", "Lru", "Policy", "PolicyName", "S3Fifo", "Score", "make"]
