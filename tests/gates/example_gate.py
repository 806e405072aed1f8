"""A whole gate that compares decode runs: its question, clauses, thresholds and evidence, the rest is shared."""

from workbench.gates.base import Findings, Gate
from workbench.gates.shared.arms import run_jobs
from workbench.gates.shared.clauses import disk_clause, disk_conditions, identity_clause, sample_limit, spans
from workbench.gates.shared.comparisons import Comparison, comparison_inputs, jobs, prepare_store
from workbench.gates.shared.config import SMOKE_COMPARISON, ComparisonConfig, disk_words
from workbench.gates.shared.files import save_tables
from workbench.gates.shared.identity import check_identity
from workbench.gates.shared.intervals import cohorts_of, of_cohorts, wait_ratio
from workbench.gates.shared.tables import comparison_table
from workbench.gates.shared.verdicts import changed_thresholds

AHEAD = Comparison(name="ahead", setting="predictor", control="nothing", candidate="next_layer")
WORDS = "exposed wait per token, next layer prefetched / nothing"
REGISTERED = ("min_cohorts", "min_orders", "max_wait_ratio")


class AheadConfig(ComparisonConfig):
    """Settings of the example; the threshold was registered before the first read."""

    max_wait_ratio: float = 0.9
    """X.wait: exposed wait per token, next layer prefetched / nothing; fails above this."""


def criteria_of(arms, identity, config):
    """The registered clauses with their figures: tables of arms and of identity runs in, criteria out."""
    yield identity_clause("X.identity", identity, arms)
    for disk in config.disks:
        cohorts = cohorts_of(arms, disk_words(disk), AHEAD.name, config.cohorts)
        ratio = of_cohorts(cohorts, wait_ratio, config.min_cohorts)
        yield disk_clause(disk, "X.wait", WORDS, ratio, "<=", config.max_wait_ratio)


def run(config, folder):
    todo, identity = jobs(config, [AHEAD]), check_identity(config, [{AHEAD.setting: AHEAD.candidate}])
    arms = run_jobs(config, folder, todo)
    save_tables({"arms": arms, "identity": identity}, folder.artifacts)
    criteria = tuple(criteria_of(arms, identity, config))
    return Findings(
        criteria=criteria,
        summary=f"Exposed wait, next layer prefetched / nothing: {spans(criteria)['X.wait']}.",
        conditions=[*disk_conditions(config), *changed_thresholds(config, REGISTERED)],
        limits=sample_limit("X.sample", identity, config),
        tables={"comparisons": comparison_table(arms, todo, config)},
    )


GATE = Gate(
    name="x_ahead",
    question="Does prefetching the whole next layer lower exposed wait?",
    evidence=lambda config: config.evidence,
    config=AheadConfig,
    smoke_settings=SMOKE_COMPARISON,
    module=__name__,
    shown={"comparisons": "Next layer prefetched / nothing prefetched (evidence: last column)"},
    prepare=prepare_store,
    inputs=comparison_inputs,
    run=run,
)
