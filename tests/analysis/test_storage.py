import math

import polars as pl
import pytest

from workbench.analysis.storage import (
    RUN_SCHEMA,
    Choice,
    beside_table,
    best_depth,
    cell_rates,
    cell_table,
    choose,
    crossover,
    crossover_table,
    drift_table,
    median_of,
    ratio_of,
    slowdown_of,
    spread_of,
)  # fmt: skip


def row(reader="uring", size="record", depth=4, *, number=0, phase="refine", beside="idle", cache="cold", gbps=1.0, **more):
    filled = {
        "phase": phase, "round": number, "reader": reader, "size": size, "depth": depth, "cache": cache, "beside": beside,
        "cached_before": 0.0, "start_ns": number * 10**9, "seconds": 1.0, "reads": 10, "logical_bytes": 100,
        "physical_bytes": 200, "bandwidth_gbps": gbps, "useful_gbps": gbps, "reads_per_s": gbps * 1000, "p50_us": 50.0,
        "p95_us": 60.0, "p99_us": 70.0, "ready_to_seen_p50_us": 2.0, "submit_to_seen_p50_us": 52.0,
    }  # fmt: skip
    return filled | more


def frame(rows):
    return pl.DataFrame(rows, schema=RUN_SCHEMA)


def test_the_interval_of_a_median_is_a_pair_of_its_values_and_needs_six():
    five = median_of([5, 1, 4, 2, 3])
    assert (five.value, five.count) == (3, 5)
    assert math.isnan(five.low)
    assert math.isnan(five.high)
    seven = median_of([7, 1, 6, 2, 5, 3, 4])
    assert (seven.value, seven.low, seven.high) == (4, 1, 7)
    # 9 values: P(at most 1 below) = 10/512, twice that is 3.9 %
    assert (median_of(range(9)).low, median_of(range(9)).high) == (1, 7)
    # 20 values: P(at most 5 below) = 2.07 %, the textbook interval from the 6th to the 15th
    assert (median_of(range(1, 21)).low, median_of(range(1, 21)).high) == (6, 15)
    assert math.isnan(median_of([]).value)


def test_the_spread_looks_at_the_middle_four_fifths():
    assert spread_of([1.0] * 10 + [100.0]) == pytest.approx(0.0)
    assert spread_of([0.8, 1.0, 1.2]) == pytest.approx(0.16)
    assert math.isnan(spread_of([1.0]))


def test_the_smallest_depth_near_the_best_is_chosen_and_the_preferred_reader_unless_it_is_worse():
    rates = {("uring", 1): 0.5, ("uring", 4): 0.95, ("uring", 8): 1.0, ("pread", 4): 1.02, ("pread", 8): 1.05}
    runs = frame([row(reader, depth=depth, gbps=gbps) for (reader, depth), gbps in rates.items()])
    assert choose(runs, ["uring", "pread"], "bandwidth_gbps", 0.9) == Choice(reader="uring", depth=4)
    assert choose(runs, ["uring", "pread"], "bandwidth_gbps", 0.99) == Choice(reader="pread", depth=8)
    assert choose(runs, ["pread"], "bandwidth_gbps", 0.9).depth == 4
    assert best_depth(runs, "uring", "bandwidth_gbps") == 8


def test_what_stood_before_stays_while_it_is_as_good():
    rates = {("uring", 4): 0.92, ("uring", 8): 1.0, ("uring", 16): 0.99, ("pread", 4): 0.95, ("pread", 8): 0.5}
    runs = frame([row(reader, depth=depth, gbps=gbps) for (reader, depth), gbps in rates.items()])

    def chosen(reader, depth):
        return choose(runs, ["uring", "pread"], "bandwidth_gbps", 0.9, Choice(reader=reader, depth=depth))

    assert chosen("uring", 16) == Choice(reader="uring", depth=16)
    assert chosen("pread", 8) == Choice(reader="uring", depth=4), "much worse"
    assert chosen("mmap", 1) == Choice(reader="uring", depth=4), "not measured"
    assert choose(runs, ["uring"], "bandwidth_gbps", 0.9, Choice(reader="pread", depth=4)) == Choice(reader="uring", depth=4)


def test_runs_that_others_slowed_down_change_no_choice():
    rates = {4: [1.0, 1.0, 1.01, 0.1, 0.2], 8: [1.0, 1.0, 1.0, 1.0, 1.0], 2: [0.5, 0.5, 0.5, 0.5, 0.5]}
    runs = frame([row(depth=depth, number=i, gbps=gbps) for depth, values in rates.items() for i, gbps in enumerate(values)])
    assert choose(runs, ["uring"], "bandwidth_gbps", 0.9).depth == 4


def test_rates_are_those_of_the_cells_when_rounds_drift():
    drift, rates = [1.0, 0.3, 2.0, 0.7, 1.1], {1: 0.5, 4: 0.95, 8: 1.0}
    # the first round knows the smallest depth only, the last one lacks it
    runs = [
        row(depth=depth, number=number, gbps=rate * drift[number])
        for depth, rate in rates.items()
        for number in range(5)
        if (depth == 1) is (number == 0) or 0 < number < 4
    ]
    found = {each["depth"]: each["rate"] for each in cell_rates(frame(runs), "bandwidth_gbps").iter_rows(named=True)}
    assert found[4] / found[1] == pytest.approx(1.9)
    assert found[8] / found[1] == pytest.approx(2.0)


def test_a_cell_that_is_highest_by_luck_does_not_raise_the_bar():
    rates = {1: 0.5, 2: 0.97, 4: 1.0, 8: 1.0, 16: 1.09}
    runs = frame([row(depth=depth, gbps=gbps) for depth, gbps in rates.items()])
    assert choose(runs, ["uring"], "bandwidth_gbps", 0.9).depth == 2


def test_ratios_pair_the_runs_of_a_round():
    # both cells drift tenfold; within a round one is always twice the other
    rows = [row(number=i, gbps=2.0 * 10**i) for i in range(7)] + [row("buffered", number=i, gbps=1.0 * 10**i) for i in range(7)]
    ratio = ratio_of(frame(rows), {"reader": "uring"}, {"reader": "buffered"}, "bandwidth_gbps")
    assert (ratio.value, ratio.low, ratio.high, ratio.count) == (2.0, 2.0, 2.0, 7)
    unpaired = frame([row(number=0), row("buffered", number=1)])
    assert ratio_of(unpaired, {"reader": "uring"}, {"reader": "buffered"}, "bandwidth_gbps").count == 0


def test_a_load_is_compared_with_itself_alone():
    rows = [row(beside="mlx", number=i, load_alone_per_s=120.0, load_beside_per_s=100.0) for i in range(6)]
    assert slowdown_of(frame([*rows, row()]), {"reader": "uring", "size": "record"}).value == pytest.approx(1.2)


def test_reads_beside_a_load_stand_over_reads_alone():
    rows = [row(number=i, submit_to_seen_p50_us=50.0) for i in range(7)]
    rows += [row(number=i, beside="python", gbps=0.5, submit_to_seen_p50_us=200.0, load_alone_per_s=2.0, load_beside_per_s=1.0)
             for i in range(7)]  # fmt: skip
    [found] = beside_table(frame(rows)).iter_rows(named=True)
    assert (found["beside"], found["p50_over_idle"], found["p50_over_idle_low"]) == ("python", 4.0, 4.0)
    assert (found["bandwidth_over_idle"], found["load_slowdown"]) == (0.5, 2.0)


def test_cells_have_one_row_with_medians_ends_and_the_fullest_cache():
    rows = [row(number=i, gbps=gbps, cached_before=cached) for i, (gbps, cached) in enumerate([(1, 0), (2, 0), (9, 0.5)])]
    [found] = cell_table(frame(rows)).iter_rows(named=True)
    assert (found["runs"], found["bandwidth_gbps"], found["bandwidth_low_gbps"], found["bandwidth_high_gbps"]) == (3, 2, 1, 9)
    assert found["cached_before"] == 0.5
    assert found["cpu_us_per_read"] is None
    assert found["physical_bytes_per_read"] == 20


def test_drift_shows_a_slow_round():
    rows = [row(depth=depth, number=i, gbps=gbps) for depth in (1, 2) for i, gbps in enumerate([1.0, 0.5, 1.0])]
    table = drift_table(frame(rows))
    assert table["relative"].to_list() == [1.0, 0.5, 1.0]
    assert table["start_s"].to_list() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("per_record", "expected"), [(0.01, 1.0), (0.02, 0.5), (0.04, 0.25)])
def test_the_crossover_lies_where_sparse_reads_take_as_long_as_the_extent(per_record, expected):
    rows = []
    for number in range(3):
        rows.append({"round": number, "how": "sequential", "share": None, "records": 100, "seconds": 1.0 + number})
        for share in (1.0, 0.2, 0.4, 0.6, 0.8):
            seconds = 100 * share * per_record * (1.0 + number)
            rows.append({"round": number, "how": "sparse", "share": share, "records": round(100 * share), "seconds": seconds})
    table = crossover_table(pl.DataFrame(rows))
    assert table["share"].to_list() == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert crossover(table) == pytest.approx(expected)


def test_a_crossover_that_never_comes_is_above_one():
    rows = [{"round": 0, "how": "sequential", "share": None, "records": 10, "seconds": 1.0}]
    rows += [{"round": 0, "how": "sparse", "share": 1.0, "records": 10, "seconds": 0.5}]
    assert crossover(crossover_table(pl.DataFrame(rows))) > 1
