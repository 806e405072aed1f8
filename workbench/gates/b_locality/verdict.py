"""Gate B's clauses, each with its code and threshold, and what keeps a run from a full pass."""

from workbench.analysis.routes import Routes
from workbench.gates.b_locality.config import REGISTERED, LocalityConfig
from workbench.gates.b_locality.measures import Measures
from workbench.gates.shared.verdicts import changed_thresholds, clause
from workbench.schema import Criterion


def criteria_of(measures: Measures, config: LocalityConfig) -> tuple[Criterion, ...]:
    """The registered clauses with their figures."""
    share = f"{config.at_fraction:.0%} of the records"
    clauses = (
        (
            "B.locality",
            f"misses per token, LFRU at {share}, routes / independent draws",
            measures.miss_ratio,
            "<",
            config.max_miss_ratio,
        ),
        (
            "B.union",
            "distinct experts of 4 tokens (U_4), routes / independent draws",
            measures.union_ratio,
            "<=",
            config.max_union_ratio,
        ),
        ("B.breakeven", "acceptance needed at the best block of 2 to 5", measures.acceptance, "<=", config.max_acceptance),
    )
    return tuple(clause(*each) for each in clauses)


def limits_of(routes: Routes, config: LocalityConfig) -> dict[str, str]:
    """By clause code, why this trace can't give a full pass."""
    long_enough = routes.decoded_tokens >= config.min_tokens
    num_held_out = sum(split == "held_out" for split in routes.splits)
    limits = {}
    if config.smoke or num_held_out < routes.num_requests or int(long_enough.sum()) < config.min_requests:
        limits["B.sample"] = (
            f"{'smoke run: ' if config.smoke else ''}{routes.num_requests} requests, {num_held_out} of them held out, "
            f"{int(long_enough.sum())} with {config.min_tokens} decoded tokens; a full verdict needs at least "
            f"{config.min_requests} such requests, all held out"
        )
    if config.profile == "slice":
        limits["B.profile"] = "profile slice has random weights: its routes say nothing about locality"
    return limits


def conditions_of(config: LocalityConfig) -> list[str]:
    """Conditions of every verdict of this configuration."""
    conditions = ["miss curves are simulated: routes replayed token by token through one cache of whole records"]
    if config.profile == "mini":
        conditions.append("profile mini: its overlap was set by a training target and is no evidence on how large models route")
    return conditions + changed_thresholds(config, REGISTERED)
