import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bounds import expected_union
from workbench.runtime.crossover import Cost, Crossover, DiskRates, LayerRun, Usage

RECORD = 1_000_000
LAYERS = range(3)


def crossover(sparse=1e9, sequential=1e9, ring_records=16, num_experts=64, top_k=4, records_per_call=64):
    rates = DiskRates(sparse_bytes_per_s=sparse, sequential_bytes_per_s=sequential, source="test")
    ring_bytes = ring_records * RECORD
    shape = {"record_bytes": RECORD, "num_experts": num_experts, "top_k": top_k}
    return Crossover(rates, **shape, ring_bytes=ring_bytes, records_per_call=records_per_call)


def nothing(num_experts=64):
    return {layer: np.zeros(num_experts, dtype=bool) for layer in LAYERS}


@pytest.mark.parametrize("num_tokens", [1, 8, 64, 1000])
def test_the_union_is_that_of_uniform_draws_before_anything_was_measured(num_tokens):
    estimate = crossover().predict(num_tokens, nothing())
    assert estimate.union == pytest.approx(expected_union(64, 4, num_tokens))


def test_measured_use_makes_the_expected_union_smaller():
    usage = Usage(64, 4)
    rows = np.zeros(64)
    rows[:8] = 500
    usage.observe(0, rows, 1000)
    assert usage.chances(0, 64).sum() < 0.5 * usage.chances(1, 64).sum()
    assert usage.chances(0, 64)[:8].min() > usage.chances(0, 64)[8:].max()


def test_tokens_that_choose_alike_have_a_smaller_union_than_their_shares_say():
    alike, apart = Usage(64, 4), Usage(64, 4)
    for tile in range(8):
        rows = np.zeros(64)
        rows[tile * 8 : tile * 8 + 8] = 16
        alike.observe(0, rows, 32)
        apart.observe(0, np.full(64, 2.0), 32)
    assert alike.chances(0, 32).sum() < 0.4 * apart.chances(0, 32).sum()


@given(
    st.integers(1, 2000),
    st.lists(st.integers(0, 20), min_size=16, max_size=16),
    st.floats(1e8, 1e10),
    st.floats(1, 4),
)
def test_probabilities_stay_such_and_a_union_costs_between_its_bytes_and_its_records_apart(num_tokens, rows, sparse, faster):
    disk = crossover(sparse, faster * sparse, num_experts=16)
    disk.usage.observe(0, np.array(rows, dtype=float), 20)
    small, large = (disk.usage.chances(0, count) for count in (num_tokens, num_tokens + 1))
    assert ((small >= 0) & (large <= 1 + 1e-9) & (small <= large + 1e-9)).all()
    read_ns = disk.predict(num_tokens, {0: np.zeros(16, dtype=bool)}).micro_ns
    apart_ns = small.sum() * RECORD / sparse * 1e9
    assert apart_ns / faster * (1 - 1e-9) <= read_ns <= apart_ns * (1 + 1e-9)


def test_few_tokens_are_read_as_a_union_whatever_the_disk():
    for faster in (1.0, 2.0):
        assert crossover(1e9, faster * 1e9).predict(2, nothing()).mode == "micro"


def test_a_disk_that_likes_extents_turns_to_layers_where_their_bytes_cost_less():
    disk = crossover(1e9, 2e9)
    modes = [disk.predict(count, nothing()).mode for count in (1, 4, 8, 16, 64, 512)]
    assert modes[0] == "micro"
    assert modes[-1] == "micro", "one run of neighbours is as good as an extent, and nothing is hidden behind compute"
    disk.before.observe(1, 100_000)
    assert disk.predict(512, nothing()).mode == "macro", "what is read before the router has spoken is hidden"


def test_layers_win_by_what_they_hide_and_lose_by_what_the_ring_does_not_hold():
    for ring_records, mode in ((16, "macro"), (0, "micro")):
        disk = crossover(ring_records=ring_records)
        disk.before.observe(10, 10 * 20_000)
        assert disk.predict(500, nothing()).mode == mode


def test_where_compute_hides_the_union_too_the_fewer_bytes_win():
    disk = crossover()
    disk.before.observe(1, 50_000)
    disk.experts.observe(1, 1_000_000)
    assert disk.predict(256, nothing()).mode == "micro"


def test_resident_records_need_no_reading():
    there = {layer: np.ones(64, dtype=bool) for layer in LAYERS}
    estimate = crossover().predict(1000, there)
    assert (estimate.micro_ns, estimate.mode) == (0, "micro")
    assert estimate.macro_ns > 0


def test_neighbours_are_read_in_one_go():
    disk = crossover(sparse=0.5e9, sequential=1e9)
    every = np.zeros(64, dtype=bool)
    apart, together = every.copy(), every.copy()
    apart[::2], together[:32] = True, True
    disk.usage.observe(0, np.full(64, 1e6), 16)
    times = [disk.predict(1000, {0: there}).micro_ns for there in (apart, together)]
    assert times[1] == pytest.approx(33e6, rel=0.01), "32 records and one run"
    assert times[0] == pytest.approx(64e6, rel=0.01), "32 runs of one record"
    few = crossover(sparse=0.5e9, sequential=1e9, records_per_call=4).predict(1000, {0: together})
    assert few.micro_ns == pytest.approx(32e6 + 8e6, rel=0.01), "four at a time"


def test_costs_are_proportional_to_tokens_until_two_lengths_are_known():
    cost = Cost()
    assert cost.of(10) == 0
    cost.observe(10, 100)
    cost.observe(10, 300)
    assert cost.of(20) == pytest.approx(400)
    cost.observe(110, 1200)
    assert cost.of(60) == pytest.approx(700)
    assert cost.of(10) == pytest.approx(200)


@given(st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 10**9)), max_size=8), st.integers(1, 4096))
def test_costs_are_never_negative_and_never_fall_with_tokens(measured, num_tokens):
    cost = Cost()
    for tokens, cost_ns in measured:
        cost.observe(tokens, cost_ns)
    assert -1e-3 <= cost.of(num_tokens) <= cost.of(num_tokens + 1) + 1e-3


def went(mode, run_ns, waited_ns, before_ns=0):
    return LayerRun(mode=mode, num_tokens=500, before_ns=before_ns, run_ns=run_ns, waited_ns=waited_ns)


@pytest.mark.parametrize(("mode", "other"), [("macro", "micro"), ("micro", "macro")])
def test_a_mode_that_reads_slower_than_the_disks_figures_say_is_left(mode, other):
    disk = crossover()
    rows = np.full(64, 30.0)
    disk.before.observe(500, 8_000_000)
    for _ in range(4):
        disk.observe(0, went(other, 64_000_000, 60_000_000, 8_000_000), rows, rows > 0)
        disk.observe(0, went(mode, 96_000_000, 90_000_000, 8_000_000), rows, rows > 0)
    assert disk.predict(500, nothing()).mode == other


def test_what_computes_longer_than_it_reads_tells_nothing_of_the_disk():
    disk, rows = crossover(), np.full(64, 30.0)
    before = disk.predict(500, nothing())
    disk.observe(0, went("micro", 900_000_000, 100_000_000), rows, rows > 0)
    assert disk.predict(500, nothing()).macro_ns == pytest.approx(before.macro_ns + 3 * (800e6 - 64e6))
    again = crossover()
    again.observe(0, went("micro", 1000, 1000), rows, np.zeros(64, dtype=bool))
    assert again.predict(500, nothing()).micro_ns == pytest.approx(before.micro_ns), "nothing was read"
