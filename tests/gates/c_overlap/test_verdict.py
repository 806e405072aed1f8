"""Every clause of H1, H4 and H5, planted on the tables that the verdict is drawn from."""

import polars as pl
import pytest

from workbench.experiments.modes import MODE_SCHEMA
from workbench.gates.base import Findings, conclude
from workbench.gates.c_overlap import OverlapConfig
from workbench.gates.c_overlap.plan import EARLY, LANES, SPLIT, WAVES
from workbench.gates.c_overlap.verdict import Measures, conditions_of, criteria_of, limits_of, mode_criteria
from workbench.gates.shared.arms import ARM_SCHEMA
from workbench.gates.shared.clauses import outcome_by_disk
from workbench.gates.shared.identity import IDENTITY_SCHEMA
from workbench.gates.shared.interference import RATE_SCHEMA
from workbench.schema import Outcome

DISK = "usb-10gbps"
ON_DISK = ("C.exposed_wait", "C.waves", "C.split", "C.ple_wait", "C.ple_lanes")
MODES = ("C.micro_full", "C.macro_overlap", "C.crossover")
# what overlap should do: waves wait half as long and save 3 of 20 ms, early pages and lanes wait for almost nothing
USUAL = {
    "token_ms": 20.0, "expert_wait_ms": 8.0, "ple_wait_ms": 0.2, "io_ms": 10.0, "readback_ms": 1.0, "read_gbps": 2.0,
    "demand_bytes": 1e6, "wasted_bytes": 0.0, "misses": 30.0, "page_misses": 12.0,
}  # fmt: skip
SOUND = {
    WAVES: ({}, {"token_ms": 17.0, "expert_wait_ms": 4.0}),
    EARLY: ({"ple_wait_ms": 2.0}, {}),
    LANES: ({"ple_wait_ms": 1.0}, {}),
    SPLIT: ({}, {"read_gbps": 1.99}),
}


def arms(disk=DISK, cohorts=4, noise=0.004, **changed):
    """Cohorts A B B A; `changed` lays other measures over a comparison's arms (waves=(of A, of B), ...)."""
    names = {"waves": WAVES, "early": EARLY, "lanes": LANES, "split": SPLIT}
    of = {**SOUND, **{names[name]: change for name, change in changed.items()}}
    rows = []
    for comparison, sides in of.items():
        for cohort in range(1, cohorts + 1):
            for position, side in enumerate((0, 1, 1, 0), start=1):
                factor = 1 + noise * ((7 * cohort + 3 * position) % 5 - 2)
                measures = {name: value * factor for name, value in {**USUAL, **sides[side]}.items()}
                rows.append(
                    {
                        "disk": disk, "comparison": comparison, "cohort": cohort, "position": position, "arm": "AB"[side],
                        "counts": True, "differs": False, "codes": "", "folder": "", **measures,
                    }
                )  # fmt: skip
    return pl.DataFrame(rows, schema=ARM_SCHEMA)


def modes(micro=(1.0, 4.0), macro=(3.0, 3.0), auto=(1.01, 3.02), wait_s=0.1, fractions=(0.2, 0.95), repeats=4):
    """Two tiles: a small one whose union is a fifth of a layer of 1000 bytes, and one near the full layer."""
    rows = []
    for tile, fraction, *seconds in zip((16, 2048), fractions, micro, macro, auto, strict=True):
        chosen = "micro" if seconds[2] < 2 else "macro"
        for repeat in range(repeats):
            for mode, took in zip(("micro", "macro", "auto"), seconds, strict=True):
                whole = mode == "macro" or (mode == "auto" and chosen == "macro")
                rows.append(
                    {
                        "tile": tile, "repeat": repeat, "mode": mode, "chosen": chosen if mode == "auto" else None,
                        "seconds": took * (1 + 0.002 * repeat), "wait_s": wait_s, "io_s": 1.0,
                        "physical_bytes": 1000.0 if whole else 1000 * fraction,
                        "union_bytes": 1000 * fraction, "layer_bytes": 1000.0,
                    }
                )  # fmt: skip
    return pl.DataFrame(rows, schema=MODE_SCHEMA)


def identity(orders=20, faults=20, wrong=0):
    kinds = ["setting"] * 16 + ["order"] * orders + ["fault"] * faults
    rows = [(kind, f"case {i}", i >= wrong, "") for i, kind in enumerate(kinds)]
    return pl.DataFrame(rows, schema=IDENTITY_SCHEMA, orient="row")


def rates(kept=0.8, rounds=7):
    return pl.DataFrame([(i, 100.0, 90.0, 2.0, 1.8, kept) for i in range(rounds)], schema=RATE_SCHEMA, orient="row")


def measures(**changed):
    return Measures(**{"arms": arms(), "identity": identity(), "modes": modes(), "rates": rates(), **changed})


def config(**settings):
    return OverlapConfig(**{"envelopes": (DISK,), **settings})


def verdict_of(found, using=None):
    using = using or config()
    return conclude(Findings(criteria=criteria_of(found, using), summary="", limits=limits_of(found, using)))


def test_sound_measures_pass_with_every_clause():
    verdict = verdict_of(measures())
    assert verdict.outcome is Outcome.PASS
    assert verdict.codes == ("C.identity", "C.interference", *(f"{code}@{DISK}" for code in ON_DISK), *MODES)


def test_a_choice_is_judged_by_the_forced_passes_not_by_its_own():
    assert verdict_of(measures(modes=modes(auto=(1.9, 9.0)))).outcome is Outcome.PASS


at = f"@{DISK}"


@pytest.mark.parametrize(
    ("planted", "codes"),
    [
        # nothing may change what is computed
        ({"identity": identity(wrong=1)}, ("C.identity",)),
        ({"arms": arms().with_columns(differs=pl.col("cohort") == 2)}, ("C.identity",)),
        # H4: a slow disk, where waits stay as they are and commands cost on top
        ({"arms": arms(waves=({}, {"token_ms": 20.6, "expert_wait_ms": 8.4}))}, (f"C.exposed_wait{at}", f"C.waves{at}")),
        # H4: commands eat what the waits saved
        ({"arms": arms(waves=({}, {"token_ms": 20.5, "expert_wait_ms": 4.0}))}, (f"C.waves{at}",)),
        # H4: components apart are read slower
        ({"arms": arms(split=({}, {"read_gbps": 1.6}))}, (f"C.split{at}",)),
        # H4: reads slow compute as much as they hide
        ({"rates": rates(kept=0.05)}, ("C.interference",)),
        # H1: pages are late although they were asked for early
        ({"arms": arms(early=({"ple_wait_ms": 3.0}, {"ple_wait_ms": 2.0}))}, (f"C.ple_wait{at}",)),
        # H1: lanes save 1 ms of waiting for pages and cost 2 ms of waiting for records
        ({"arms": arms(lanes=({"ple_wait_ms": 1.2}, {"expert_wait_ms": 10.0}))}, (f"C.ple_lanes{at}",)),
        # H5: the union is near the full layer, and selected records are still faster
        ({"modes": modes(micro=(1.0, 2.5), auto=(1.0, 2.5))}, ("C.micro_full",)),
        # H5: whole layers are read for nothing but waits
        ({"modes": modes(wait_s=0.97, fractions=(0.2, 0.92))}, ("C.macro_overlap",)),
        ({"modes": modes(wait_s=1.0)}, ("C.macro_overlap",)),
        # H5: the slower mode is chosen
        ({"modes": modes(auto=(3.0, 3.0))}, ("C.crossover",)),
    ],
)
def test_a_planted_condition_fails_with_the_code_of_its_clause(planted, codes):
    verdict = verdict_of(measures(**planted))
    assert (verdict.outcome, verdict.codes) == (Outcome.FAIL, codes)


@pytest.mark.parametrize(
    ("planted", "codes"),
    [
        ({"arms": arms(cohorts=3)}, tuple(f"{code}{at}" for code in ON_DISK)),
        ({"arms": arms().with_columns(counts=pl.col("cohort") > 1)}, tuple(f"{code}{at}" for code in ON_DISK)),
        ({"arms": arms().filter(comparison=WAVES)}, tuple(f"{code}{at}" for code in ON_DISK[2:])),
        (
            {"arms": arms(waves=({}, {"token_ms": 19.6, "expert_wait_ms": 4.0}), split=({}, {"read_gbps": 2.4}), noise=0.02)},
            (f"C.waves{at}",),
        ),
        # no page was read, nobody ever waited: nothing was there to hide
        ({"arms": arms(early=({"page_misses": 0.0}, {"page_misses": 0.0}))}, (f"C.ple_wait{at}",)),
        (
            {"arms": arms(waves=({"expert_wait_ms": 0.0, "ple_wait_ms": 0.0}, {"token_ms": 17.0}))},
            (f"C.exposed_wait{at}",),
        ),
        ({"rates": rates(rounds=5)}, ("C.interference",)),
        ({"modes": modes().clear()}, MODES),
        # one tile has no macro pass
        ({"modes": modes().filter((pl.col("tile") < 100) | (pl.col("mode") != "macro"))}, MODES),
        ({"modes": modes(repeats=1)}, MODES),
        # one mode is faster at both tiles: no crossover was there
        ({"modes": modes(micro=(4.0, 4.0), auto=(3.0, 3.0))}, ("C.crossover",)),
        # no tile comes near the full layer
        ({"modes": modes(fractions=(0.2, 0.8))}, ("C.micro_full",)),
    ],
)
def test_too_little_decides_nothing_and_says_which_clause(planted, codes):
    verdict = verdict_of(measures(**planted))
    assert (verdict.outcome, verdict.codes) == (Outcome.INCONCLUSIVE, codes)


def test_an_emulated_pass_needs_every_disk():
    two = config(envelopes=("m2-mini-256gb", DISK))
    slow = arms(disk="m2-mini-256gb", waves=({}, {"token_ms": 20.5, "expert_wait_ms": 4.0}))
    verdict = verdict_of(measures(arms=pl.concat([arms(), slow])), two)
    assert (verdict.outcome, verdict.codes) == (Outcome.FAIL, ("C.waves@m2-mini-256gb",))
    rows = {row["clause"]: row for row in outcome_by_disk(verdict.criteria)}
    assert rows["C.waves"] == {"clause": "C.waves", "any disk": "", "m2-mini-256gb": "fail", DISK: "pass"}
    assert rows["C.identity"]["any disk"] == "pass"


def test_a_physical_verdict_leaves_the_emulated_clauses_out_and_names_them():
    physical = OverlapConfig(profile="slice")
    found = measures(arms=arms(disk="this disk"), modes=modes(auto=(3.0, 3.0)))
    verdict = verdict_of(found, physical)
    assert (verdict.outcome, verdict.codes) == (Outcome.PASS, ("C.identity", "C.interference", *ON_DISK))
    assert all("physical" in clause.statement for clause in verdict.criteria if clause.code != "C.identity")
    assert [clause.code for clause in mode_criteria(found, physical) if clause.outcome is Outcome.FAIL]
    [line] = [line for line in conditions_of(found, physical) if "H5" in line]
    assert "no part of this verdict" in line
    assert "C.crossover fail" in line


def test_every_clause_says_what_it_rests_on():
    statements = {clause.code: clause.statement for clause in criteria_of(measures(), config())}
    assert all("(emulated" in statements[f"{code}{at}"] for code in ON_DISK)
    assert all("(emulated" in statements[code] for code in MODES)
    assert "(physical)" in statements["C.interference"]


def test_the_thresholds_are_the_registered_ones():
    clauses = criteria_of(measures(), config())
    assert [(clause.code.partition("@")[0], clause.relation, clause.threshold) for clause in clauses] == [
        ("C.identity", "<=", 0.0),
        ("C.interference", ">=", 0.5),
        ("C.exposed_wait", "<", 1.0),
        ("C.waves", ">=", 1.02),
        ("C.split", ">=", 0.95),
        ("C.ple_wait", "<=", 0.05),
        ("C.ple_lanes", "<=", 0.01),
        ("C.micro_full", "<=", 1.0),
        ("C.macro_overlap", "<=", 1.0),
        ("C.crossover", "<=", 1.05),
    ]
    assert "max_ple_wait" in " ".join(conditions_of(measures(), config(max_ple_wait=0.5)))
    assert not any("thresholds" in line for line in conditions_of(measures(), config()))


def test_a_small_sample_limits_a_pass():
    verdict = verdict_of(measures(identity=identity(orders=19)))
    assert (verdict.outcome, verdict.codes) == (Outcome.INCONCLUSIVE, ("C.sample",))
    smoke = config(smoke=True)
    assert "smoke run" in limits_of(measures(), smoke)["C.sample"]
