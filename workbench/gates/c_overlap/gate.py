"""Gate C: can exact reads be hidden behind compute without predicting anything?

Early n-gram pages (H1), waves of missing experts (H4), prefill modes (H5): each against its control in cohorts of separate
processes, on profile `mini` on every disk of `data/envelopes`, slowed in proportion to its records (emulated), elsewhere on this
disk (physical). Thresholds are pre-registered in `OverlapConfig`.
"""

from collections.abc import Sequence

from workbench.gates.base import Findings, Gate
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.evidence import save_evidence, shown_tables
from workbench.gates.c_overlap.modes import modes_profile, run_modes
from workbench.gates.c_overlap.plan import comparisons, identity_changes
from workbench.gates.c_overlap.verdict import Measures, conditions_of, criteria_of, limits_of
from workbench.gates.shared.arms import run_jobs
from workbench.gates.shared.clauses import spans
from workbench.gates.shared.comparisons import Job, comparison_inputs, jobs, prepare_store
from workbench.gates.shared.config import SMOKE_COMPARISON, disk_words
from workbench.gates.shared.identity import check_identity
from workbench.gates.shared.interference import measure_rates
from workbench.gates.shared.showcase import run_showcase
from workbench.progress import say
from workbench.schema import Criterion, RunFolder


def _run(config: OverlapConfig, folder: RunFolder) -> Findings:
    todo = jobs(config, comparisons(config))
    found = _measure(config, folder, todo)
    criteria = criteria_of(found, config)
    save_evidence(found, todo, config, folder.artifacts)
    showcase = run_showcase(config, folder, _note)
    tables = shown_tables(found, todo, config, criteria)
    return Findings(
        criteria=criteria,
        summary=_summary(criteria),
        conditions=[*conditions_of(found, config), *showcase.conditions],
        limits=limits_of(found, config),
        enables=(f"decode in waves of {config.wave}, n-gram pages early and in lanes of their own",),
        metrics=showcase.metrics,
        tables=tables | {"bounds": showcase.bounds, "token_waits": showcase.waits},
        tags={"disks": ", ".join(map(disk_words, config.disks))},
    )


def _measure(config: OverlapConfig, folder: RunFolder, todo: Sequence[Job]) -> Measures:
    identity = check_identity(config, identity_changes(config))
    _note("compute and reads at once")
    rates = measure_rates(config.profile, rounds=config.overlap_rounds, seconds=config.overlap_seconds, seed=config.seed)
    _note("prefill modes")
    modes = run_modes(config)
    return Measures(arms=run_jobs(config, folder, todo, _note), identity=identity, modes=modes, rates=rates)


def _note(line: str) -> None:
    say(f"gate C: {line}")


def _summary(criteria: Sequence[Criterion]) -> str:
    of = spans(criteria)
    return (
        f"Waves / barrier: exposed wait {of['C.exposed_wait']}, tokens/s {of['C.waves']}. Components of records read apart / "
        f"whole records: bytes per second {of['C.split']}. Exposed wait / token time: {of['C.ple_wait']} for n-gram pages "
        f"requested early; page lanes add {of['C.ple_lanes']}. Runs and cohorts whose digests differ: {of['C.identity']}."
    )


GATE = Gate(
    name="c_overlap",
    question="Can exact reads be hidden behind compute without predicting anything?",
    evidence=lambda config: config.evidence,
    config=OverlapConfig,
    smoke_settings={
        **SMOKE_COMPARISON,
        "overlap_rounds": 1,
        "overlap_seconds": 0.05,
        "tiles": (16, 256),
        "mode_repeats": 1,
    },
    module=__name__,
    shown={
        "clauses": "Each clause on each disk (evidence: in the clauses above)",
        "comparisons": "Each setting against its control (evidence: last column)",
        "arms": "Both arms of each comparison, per token (evidence: as above)",
        "bounds": "Decode beside its bounds (emulated where a disk is named, else physical)",
        "modes": "Prefill of one layer by tile (emulated: compute is a timed wait)",
        "identity": "Runs whose digests must not change (virtual clock)",
    },
    prepare=prepare_store,
    inputs=lambda config: comparison_inputs(config, {"store of the prefill modes": modes_profile(config)}),
    run=_run,
    needs=("a_storage",),
)
"""Gate C, as the runner knows it."""
