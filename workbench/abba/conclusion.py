"""Verdict, metrics and tables of a series, from the records of its cohorts. Pure: `workbench check` runs it again elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.abba.cache_state import CacheState
from workbench.abba.records import AbbaConfig, Code, CohortRecord
from workbench.abba.statistics import (
    FINAL_CONFIDENCE,
    MIN_COHORTS,
    Claim,
    RatioEstimate,
    control_drift,
    judge,
    judge_unfinished,
    log_ratio,
)
from workbench.abba.tables import ratio_of, series_tables
from workbench.abba.validity import codes, values
from workbench.schema import Criterion, Evidence, Outcome, Verdict

_OUTCOMES = {
    Claim.BETTER: Outcome.PASS,
    Claim.WORSE: Outcome.FAIL,
    Claim.NO_GAIN: Outcome.FAIL,
    Claim.UNDECIDED: Outcome.INCONCLUSIVE,
    Claim.INDICATIVE: Outcome.INCONCLUSIVE,
}

_LASTING = {
    Code.PLAN_DIFFERS,
    Code.OUTPUT_DIFFERS,
    Code.STATE_DIFFERS,
    Code.ROUTING_DIFFERS,
    Code.DIGEST_MISSING,
    Code.METRIC_MISSING,
    Code.ARM_FAILED,
}
"""Codes that the arms themselves cause, not the state of the machine: a repeated cohort would fail alike."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """Claim, verdict, metrics and tables of a series."""

    claim: Claim
    verdict: Verdict
    metrics: dict[str, float]
    tables: dict[str, list[dict[str, Any]]]


def log_ratios(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> list[float]:
    """Log-ratios of the valid cohorts in run order, at most as many as planned; positive: B is better."""
    return [log_ratio(values(cohort), config.better) for cohort in cohorts if cohort.valid][: config.cohorts]


def is_decided(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> bool:
    """True when the series may end: the planned number of cohorts is valid, or B is already shown to be worse."""
    return judge(log_ratios(config, cohorts), config.cohorts, config.minimum_effect) is not None


def is_hopeless(cohorts: Sequence[CohortRecord]) -> bool:
    """True when the first two cohorts are invalid for the same lasting reason, so that further cohorts would be invalid too."""
    if len(cohorts) < 2 or any(cohort.valid for cohort in cohorts):
        return False
    first, second = ({reason.code for reason in cohort.reasons} for cohort in cohorts[:2])
    return bool(first & second & _LASTING)


def conclude(config: AbbaConfig, cohorts: Sequence[CohortRecord], *, virtual_machine: bool) -> Conclusion:
    """The verdict on B against A from all cohorts of a series, invalid ones included."""
    gains = log_ratios(config, cohorts)
    if not gains:
        return _nothing(config, cohorts)
    found, result = judge(gains, config.cohorts, config.minimum_effect) or judge_unfinished(gains, config.minimum_effect)
    valid = [cohort for cohort in cohorts if cohort.valid][: len(gains)]
    bytes_ratio = _bytes_ratio(valid)
    verdict = Verdict(
        outcome=_null_outcome(config, found, result) if config.is_null else _OUTCOMES[found],
        codes=(_code(config, found, result),),
        criteria=tuple(_criteria(config, valid, result)),
        conditions=tuple(_conditions(config, cohorts, found, result, virtual_machine)),
        enables=tuple(_enables(config, found)),
        summary=_summary(config, found, result, bytes_ratio),
    )
    low, high = _bounds(config, valid, result)
    metrics = {
        "effect/ratio": ratio_of(config, result.mean),
        "effect/ratio_low": low,
        "effect/ratio_high": high,
        "effect/control_drift": max(control_drift(values(c)[0], values(c)[3]) for c in valid),
        "effect/candidate_spread": max(control_drift(values(c)[1], values(c)[2]) for c in valid),
    }
    if bytes_ratio is not None:
        metrics["effect/bytes_per_token_ratio"] = bytes_ratio
    return Conclusion(claim=found, verdict=verdict, metrics=metrics | _counts(cohorts), tables=series_tables(config, cohorts))


def _null_outcome(config: AbbaConfig, found: Claim, result: RatioEstimate) -> Outcome:
    """Outcome of A against A: pass when the whole interval is within the minimum effect, inconclusive when it is wider."""
    if found in (Claim.BETTER, Claim.WORSE):
        return Outcome.FAIL
    within = max(-result.low, result.high) < math.log1p(config.minimum_effect)
    return Outcome.PASS if within and found is not Claim.INDICATIVE else Outcome.INCONCLUSIVE


def _code(config: AbbaConfig, found: Claim, result: RatioEstimate) -> str:
    if not config.is_null or found is Claim.INDICATIVE:
        return f"abba.{found.value}"
    codes_of = {Outcome.FAIL: "abba.null_broken", Outcome.PASS: "abba.null_holds", Outcome.INCONCLUSIVE: "abba.undecided"}
    return codes_of[_null_outcome(config, found, result)]


def _bounds(config: AbbaConfig, valid: Sequence[CohortRecord], result: RatioEstimate) -> tuple[float, float]:
    """Ends of the interval of the ratio B / A; of a single cohort, which has no interval, its arms' extreme ratios."""
    if result.num_cohorts == 1:
        first, second, third, last = values(valid[0])
        return min(second, third) / max(first, last), max(second, third) / min(first, last)
    low, high = sorted((ratio_of(config, result.low), ratio_of(config, result.high)))
    return low, high


def _criteria(config: AbbaConfig, valid: Sequence[CohortRecord], result: RatioEstimate) -> list[Criterion]:
    higher = config.better == "higher"
    ratio, (low, high) = ratio_of(config, result.mean), _bounds(config, valid, result)
    least = 1 + config.minimum_effect
    return [
        Criterion(
            code="abba.effect",
            statement=f"{config.metric} of B divided by that of A is {'above' if higher else 'below'} 1, whole interval",
            value=ratio,
            low=low,
            high=high,
            relation=">" if higher else "<",
            threshold=1.0,
        ),
        # the minimum effect is required of the estimate alone: low and high are the estimate, too
        Criterion(
            code="abba.minimum_effect",
            statement=f"the estimate is a gain of at least {config.minimum_effect:.1%}",
            value=ratio,
            low=ratio,
            high=ratio,
            relation=">=" if higher else "<=",
            threshold=least if higher else 1 / least,
        ),
        _enough(result.num_cohorts),
    ]


def _enough(count: int) -> Criterion:
    statement = f"at least {MIN_COHORTS} valid cohorts"
    return Criterion(
        code="abba.cohorts", statement=statement, value=count, low=count, high=count, relation=">=", threshold=MIN_COHORTS
    )


def _conditions(
    config: AbbaConfig, cohorts: Sequence[CohortRecord], found: Claim, result: RatioEstimate, virtual_machine: bool
) -> list[str]:
    spoiled = _spoiled(cohorts)
    unknown = cohorts[0].arms[0].watch.power_before.unknown if cohorts[0].arms else []
    early = ", stopped early" if found is Claim.WORSE else ""
    lines = [f"profile {config.profile}, cache state {config.cache_state.value}"]
    if config.evidence is not Evidence.PHYSICAL:
        lines.append(f"{config.evidence.value}: no physical verdict")
    if spoiled:
        lines += [f"invalid cohorts: {spoiled}", *_advice(cohorts)]
    if result.num_cohorts < config.cohorts:
        lines.append(f"{result.num_cohorts} of {config.cohorts} planned cohorts{early}")
    if result.confidence != FINAL_CONFIDENCE:
        lines.append(f"{100 * result.confidence:g} % interval, because the series stopped early")
    if result.num_cohorts == 1:
        lines.append("one cohort has no interval: low and high are the extreme ratios of its arms")
    if virtual_machine and config.cache_state is not CacheState.COLD_PROCESS:
        lines.append("virtual machine: the cache state is that of the guest's page cache only")
    if unknown:
        lines.append(f"this machine does not report its {', '.join(unknown)}")
    return lines


def _enables(config: AbbaConfig, found: Claim) -> list[str]:
    where = f"profile {config.profile}, {config.cache_state.value}, {config.evidence.value}"
    change = ", ".join(config.change)
    if config.is_null or found in (Claim.UNDECIDED, Claim.INDICATIVE):
        return []
    return [f"adopt {change} ({where})" if found is Claim.BETTER else f"drop {change} ({where})"]


def _summary(config: AbbaConfig, found: Claim, result: RatioEstimate, bytes_ratio: float | None) -> str:
    span = ""
    if result.num_cohorts > 1:
        low, high = _signed(math.expm1(result.low)), _signed(math.expm1(result.high))
        span = f" ({100 * result.confidence:g} % interval {low} to {high})"
    cohorts = f"{result.num_cohorts} cohort{'s' if result.num_cohorts > 1 else ''}"
    figures = f"{_signed(math.expm1(result.mean))} in {config.metric}{span}, {cohorts}"
    if config.is_null:
        least = f"{config.minimum_effect:.1%} or more"
        said = {
            Outcome.FAIL: "a difference",
            Outcome.PASS: f"no difference of {least}",
            Outcome.INCONCLUSIVE: f"a difference of {least} is not excluded",
        }
        return f"A against A: {said[_null_outcome(config, found, result)]}: {figures}"
    text = {
        Claim.BETTER: "B is better",
        Claim.WORSE: "B is worse",
        Claim.NO_GAIN: f"B does not gain {config.minimum_effect:.1%}",
        Claim.UNDECIDED: "undecided",
        Claim.INDICATIVE: "indicative only",
    }[found]
    return f"{text}: {figures}{_about_bytes(found, bytes_ratio)}"


def _about_bytes(found: Claim, bytes_ratio: float | None) -> str:
    """The change in demand and wasted bytes per token, in words; without a gain, the arm with fewer bytes is preferred."""
    if bytes_ratio is None or bytes_ratio == 1:
        return ""
    if bytes_ratio > 1:
        return f", while demand and wasted bytes per token rise by {bytes_ratio - 1:.1%}"
    fewer = f", with {1 - bytes_ratio:.1%} fewer demand and wasted bytes per token"
    return fewer + (", for which B is to be preferred" if found in (Claim.NO_GAIN, Claim.UNDECIDED) else "")


def _signed(fraction: float) -> str:
    return f"{fraction:+.1%}"


def _bytes_ratio(valid: Sequence[CohortRecord]) -> float | None:
    ratios = []
    for cohort in valid:
        first, second, third, last = (arm.bytes_per_token for arm in cohort.arms)
        if first is None or second is None or third is None or last is None or first + last == 0:
            return None
        ratios.append((second + third) / (first + last))
    return sum(ratios) / len(ratios)


def _counts(cohorts: Sequence[CohortRecord]) -> dict[str, float]:
    return {"effect/cohorts_valid": sum(cohort.valid for cohort in cohorts), "effect/cohorts_run": len(cohorts)}


def _spoiled(cohorts: Sequence[CohortRecord]) -> str:
    return ", ".join(f"{code.value} in {count}" for code, count in codes(cohorts).items())


def _advice(cohorts: Sequence[CohortRecord]) -> list[str]:
    drifted = codes(cohorts).get(Code.CONTROL_DRIFT, 0)
    return ["control drift rejected most cohorts: longer arms or a quieter machine would help"] * (2 * drifted > len(cohorts))


def _nothing(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> Conclusion:
    """The inconclusive conclusion of a series without a valid cohort."""
    spoiled = _spoiled(cohorts)
    verdict = Verdict(
        outcome=Outcome.INCONCLUSIVE,
        codes=("abba.no_valid_cohort",),
        criteria=(_enough(0),),
        conditions=(f"invalid cohorts: {spoiled}", *_advice(cohorts)) if spoiled else (),
        summary=f"no cohort is valid, of {len(cohorts)} run" + (f": {spoiled}" if spoiled else ""),
    )
    return Conclusion(claim=Claim.INDICATIVE, verdict=verdict, metrics=_counts(cohorts), tables=series_tables(config, cohorts))
