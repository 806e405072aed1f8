"""Gate C: can exact reads be hidden behind compute without predicting anything?

Early n-gram pages (H1), waves of missing experts (H4), prefill modes (H5): each against its control in cohorts of separate
processes, on profile `mini` slowed to every disk of `data/envelopes` in proportion to its records (emulated), elsewhere on this
disk (physical). Thresholds are pre-registered in `OverlapConfig`.
"""

import math
import sys
from collections.abc import Mapping, Sequence

from workbench.gates.base import Findings, Gate
from workbench.gates.c_overlap.arms import run_jobs
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.evidence import save_evidence, shown_tables
from workbench.gates.c_overlap.identity import check_identity
from workbench.gates.c_overlap.interference import measure_rates
from workbench.gates.c_overlap.modes import modes_profile, run_modes
from workbench.gates.c_overlap.plan import disk_words, jobs
from workbench.gates.c_overlap.showcase import run_showcase
from workbench.gates.c_overlap.verdict import Measures, conditions_of, criteria_of, limits_of
from workbench.gates.stage import file_digest
from workbench.gates.traces import ensure_store
from workbench.paths import store_folder
from workbench.schema import Criterion, Evidence, RunFolder
from workbench.schema.envelopes import load_envelope
from workbench.stores.manifest import MANIFEST_NAME


def _run(config: OverlapConfig, folder: RunFolder) -> Findings:
    identity = check_identity(config)
    _say("gate C: compute and reads at once")
    rates = measure_rates(config)
    _say("gate C: prefill modes")
    modes = run_modes(config)
    todo = jobs(config)
    arms = run_jobs(config, folder, todo, _say)
    found = Measures(arms=arms, identity=identity, modes=modes, rates=rates)
    evidence, criteria = GATE.evidence_of(config), criteria_of(found, config)
    save_evidence(found, todo, config, evidence, folder.artifacts)
    showcase = run_showcase(config, folder)
    tables = shown_tables(found, todo, config, evidence, criteria)
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


def _summary(criteria: Sequence[Criterion]) -> str:
    spans = {code: _span([each for each in criteria if each.code.partition("@")[0] == code]) for code in _codes(criteria)}
    return (
        f"Waves leave {spans['C.exposed_wait']} of a barrier's exposed wait and decode at {spans['C.waves']} of its rate; "
        f"components apart read at {spans['C.split']} of whole records' rate; n-gram pages asked for early cost "
        f"{spans['C.ple_wait']} of a token, lanes of their own {spans['C.ple_lanes']}; {spans['C.identity']} runs differ."
    )


def _codes(criteria: Sequence[Criterion]) -> list[str]:
    return list(dict.fromkeys(each.code.partition("@")[0] for each in criteria))


def _span(clauses: Sequence[Criterion]) -> str:
    """A clause's value, over several disks from the least to the greatest."""
    known = [f"{value:.3g}" for value in sorted(clause.value for clause in clauses if not math.isnan(clause.value))]
    return " to ".join(dict.fromkeys(known[:1] + known[-1:])) or "an unknown share"


def _inputs(config: OverlapConfig) -> Mapping[str, str]:
    stores = {"store": config.profile, "store of the prefill modes": modes_profile(config)}
    manifests = {name: store_folder(profile) / MANIFEST_NAME for name, profile in stores.items()}
    disks = {f"envelope {disk}": load_envelope(disk).digest for disk in config.disks if disk}
    return {name: file_digest(path) if path.exists() else "missing" for name, path in manifests.items()} | disks


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


GATE = Gate(
    name="c_overlap",
    question="Can exact reads be hidden behind compute without predicting anything?",
    evidence=lambda config: Evidence.EMULATED if config.is_emulated else Evidence.PHYSICAL,
    config=OverlapConfig,
    smoke_settings={
        "tokens": 12,
        "warm_up_tokens": 2,
        "cohorts": 1,
        "max_cohorts": 1,
        "shown_cohorts": 0,
        "orders": 3,
        "faults": 7,
        "overlap_rounds": 1,
        "overlap_seconds": 0.05,
        "tiles": (16, 256),
        "mode_repeats": 1,
    },
    module=__name__,
    shown={
        "clauses": "Each clause on each disk (evidence: in the clauses above)",
        "comparisons": "Each setting against its control (evidence: last column)",
        "arms": "Both arms of each, a token (evidence: as above)",
        "bounds": "Decode beside its bounds (emulated where a disk is named, else physical)",
        "modes": "Prefill of one layer by tile (emulated: compute is a timed wait)",
        "identity": "Runs whose digests must not change (virtual clock)",
    },
    prepare=lambda config: ensure_store(config.profile),
    inputs=_inputs,
    run=_run,
    needs=("a_storage",),
)
"""The gate, as the runner knows it."""
