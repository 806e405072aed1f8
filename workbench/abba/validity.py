"""Rules that make a cohort invalid. Pure: records in, reasons out, so that `workbench check` can judge stored arms again."""

from collections.abc import Iterable, Iterator, Sequence

from workbench.abba.cache_state import problem
from workbench.abba.records import ORDER, AbbaConfig, ArmRecord, Code, CohortRecord, Reason
from workbench.abba.statistics import control_drift

_STORE, _CHECKPOINT = "store_digest", "checkpoint_sha256"
_DIGEST_CODES = {
    "output_digest": Code.OUTPUT_DIFFERS,
    "state_digest": Code.STATE_DIFFERS,
    "routing_digest": Code.ROUTING_DIFFERS,
}
MAX_GAP_S = 5.0
"""Longest accepted time between two of the watchdog's readings, seconds; the watchdog reads once a second."""
_TICKS_S = 0.1
"""Tolerance of CPU times, seconds: they are counted in ticks, so less time than this is no evidence of a competitor."""


def judge_cohort(config: AbbaConfig, number: int, arms: Sequence[ArmRecord], reference: ArmRecord | None = None) -> CohortRecord:
    """The cohort with all reasons why it is invalid; `reference` is the arm that `reference_of` gives for the series."""
    reasons = [reason for arm in arms for reason in _of_arm(config, arm)]
    sound, finished = not reasons, [arm for arm in arms if _has_finished(arm)]
    # results that differ are reported whatever other reasons there are
    if finished:
        reasons += _of_digests(config, [reference or finished[0], *finished])
    if sound:
        reasons += [*_of_identity([reference or arms[0], *arms]), *_of_plans(config, arms), *_of_power(arms)]
        reasons += _of_drift(config, arms)
    return CohortRecord(number=number, arms=tuple(arms), reasons=tuple(reasons))


def judge_series(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> list[CohortRecord]:
    """The cohorts judged anew from their records; cohorts with fewer than four arms are unchanged."""
    reference = reference_of(config, cohorts)
    return [
        judge_cohort(config, cohort.number, cohort.arms, reference) if len(cohort.arms) == len(ORDER) else cohort
        for cohort in cohorts
    ]


def reference_of(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> ArmRecord | None:
    """The arm whose digests and sources all other arms must equal: the first in a complete cohort that has all digests."""
    arms = (arm for cohort in cohorts if len(cohort.arms) == len(ORDER) for arm in cohort.arms)
    return next((arm for arm in arms if _has_finished(arm) and arm.digests.keys() >= set(config.digests)), None)


def _has_finished(arm: ArmRecord) -> bool:
    return arm.exit_code == 0 and not arm.timed_out and not arm.error


def _of_arm(config: AbbaConfig, arm: ArmRecord) -> Iterator[Reason]:
    def reason(code: Code, detail: str) -> Reason:
        return Reason(code=code, where=arm.name, detail=detail)

    if arm.timed_out:
        yield reason(Code.ARM_TIMED_OUT, f"killed after {config.arm_timeout_s:.0f} s")
    elif arm.exit_code < 0:
        yield reason(Code.ARM_KILLED, f"ended by signal {-arm.exit_code}")
    elif arm.exit_code != 0 or arm.error:
        yield reason(Code.ARM_FAILED, arm.error or f"exit status {arm.exit_code}")
    elif arm.value is None or arm.value <= 0:
        yield reason(Code.METRIC_MISSING, f"its result has no positive {config.metric}")
    if arm.plan_mismatch:
        yield reason(Code.PLAN_DIFFERS, arm.plan_mismatch)
    if why := problem(config.cache_state, arm.cached_fraction):
        yield reason(Code.CACHE_STATE, why)
    yield from (reason(code, detail) for code, detail in _of_watch(config, arm))


def _of_watch(config: AbbaConfig, arm: ArmRecord) -> Iterator[tuple[Code, str]]:
    watch = arm.watch
    if watch.num_samples < 2 or watch.longest_gap_s > MAX_GAP_S:
        yield Code.WATCH_BLIND, f"{watch.num_samples} readings, longest gap {watch.longest_gap_s:.1f} s"
    if watch.swap_out_bytes > 0:
        yield Code.SWAPPED_OUT, f"{watch.swap_out_bytes:,} bytes were swapped out"
    allowed = config.competitor_limit_cores + _TICKS_S / max(watch.wall_s, _TICKS_S)
    if watch.other_cores > allowed:
        busiest = f", most of all {watch.busiest}" if watch.busiest else ""
        yield Code.COMPETITOR, f"other processes took {watch.other_cores:.2f} cores{busiest}"
    if watch.stolen_cores > allowed:
        yield Code.COMPETITOR, f"the hypervisor gave {watch.stolen_cores:.2f} cores to others"
    if changes := watch.power_before.differences(watch.power_after):
        yield Code.POWER_CHANGED, "; ".join(changes)
    if heat := watch.power_before.heat(watch.power_after):
        yield Code.THERMAL_CHANGED, heat


def _of_digests(config: AbbaConfig, arms: Sequence[ArmRecord]) -> Iterator[Reason]:
    for name in config.digests:
        first = arms[0].digests.get(name)
        if missing := [arm for arm in arms if name not in arm.digests]:
            yield Reason(code=Code.DIGEST_MISSING, where=missing[0].name, detail=f"its result has no {name}")
        elif different := [arm for arm in arms if arm.digests[name] != first]:
            detail = f"{name} is {different[0].digests[name][:12]}, that of {arms[0].name} is {str(first)[:12]}"
            yield Reason(code=_DIGEST_CODES.get(name, Code.OUTPUT_DIFFERS), where=different[0].name, detail=detail)


def _of_identity(arms: Sequence[ArmRecord]) -> Iterator[Reason]:
    names = sorted({name for arm in arms for name in arm.identity})
    for arm in arms[1:]:
        changed = [
            name
            for name in names
            if arm.identity.get(name) != arms[0].identity.get(name) and not _is_same_source(name, arm, arms[0])
        ]
        if changed:
            yield Reason(code=Code.SOURCE_DIFFERS, where=arm.name, detail=f"{', '.join(changed)} changed since {arms[0].name}")
            return


def _is_same_source(name: str, *arms: ArmRecord) -> bool:
    """True for the store digest that a resident arm lacks: it ran the checkpoint that the other arm's store was made from."""
    sources = {arm.identity.get(_CHECKPOINT) for arm in arms}
    lacks = any(name not in arm.identity for arm in arms)
    return name == _STORE and lacks and len(sources) == 1 and None not in sources


def _of_plans(config: AbbaConfig, arms: Sequence[ArmRecord]) -> Iterator[Reason]:
    for letter in "AB":
        plans = {(arm.config_digest, arm.working_set_bytes) for arm in arms if arm.letter == letter}
        if len(plans) > 1:
            detail = f"the arms {letter} ran with different configurations or cache budgets"
            yield Reason(code=Code.PLAN_DIFFERS, where="cohort", detail=detail)
    for arm in arms:
        if arm.evidence != config.evidence:
            detail = f"its numbers are {arm.evidence}, the comparison is {config.evidence.value}"
            yield Reason(code=Code.PLAN_DIFFERS, where=arm.name, detail=detail)
    if config.is_null and len({arm.config_digest for arm in arms}) > 1:
        yield Reason(code=Code.PLAN_DIFFERS, where="cohort", detail="A against A ran with different configurations")
    if not config.is_null and arms[0].config_digest == arms[1].config_digest:
        yield Reason(code=Code.PLAN_DIFFERS, where="cohort", detail="the change did not change the configuration")


def _of_power(arms: Sequence[ArmRecord]) -> Iterator[Reason]:
    first = arms[0].watch.power_before
    for arm in arms[1:]:
        if changes := first.differences(arm.watch.power_before):
            yield Reason(code=Code.POWER_CHANGED, where=arm.name, detail="; ".join(changes))
            return


def _of_drift(config: AbbaConfig, arms: Sequence[ArmRecord]) -> Iterator[Reason]:
    first, last = arms[0].value, arms[3].value
    if first is not None and last is not None and (drift := control_drift(first, last)) > config.drift_limit:
        detail = f"A1 and A2 differ by {drift:.1%}, the limit is {config.drift_limit:.0%}"
        yield Reason(code=Code.CONTROL_DRIFT, where="cohort", detail=detail)


def values(cohort: CohortRecord) -> tuple[float, ...]:
    """The compared metric of the four arms in run order."""
    return tuple(arm.value for arm in cohort.arms if arm.value is not None)


def codes(cohorts: Iterable[CohortRecord]) -> dict[Code, int]:
    """Number of invalid cohorts by code, largest first."""
    counts: dict[Code, int] = {}
    for cohort in cohorts:
        for code in {reason.code for reason in cohort.reasons}:
            counts[code] = counts.get(code, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
