import numpy as np
import pytest

from workbench.analysis.bootstrap import Resampler
from workbench.analysis.routes import Routes
from workbench.analysis.slot_value import slot_value_table


def test_the_layer_whose_cycle_nearly_fits_gains_most():
    # layer 0 repeats one pair, layer 1 cycles through 5 pairs (10 records), layer 2 through 8 (16): LRU in 8 slots
    tokens = np.arange(80)
    pairs = [np.stack([2 * (tokens % period), 2 * (tokens % period) + 1], axis=1) for period in (1, 5, 8)]
    routes = Routes(
        experts=np.stack(pairs, axis=1),
        request=np.repeat([0, 1], 40),
        decoded=np.tile(np.arange(40) >= 8, 2),
        layers=(3, 4, 5),
        num_experts=16,
        splits=("held_out", "held_out"),
    )
    table = slot_value_table(routes, 0.5, Resampler(2, num_resamples=50), step=2)
    assert table["layer"].to_list() == [3, 4, 5]
    assert table["slots"].to_list() == [8, 8, 8]
    assert table["misses_per_token"].to_list() == [0.0, 2.0, 2.0]
    # two slots more hold the whole cycle of layer 4, and nothing of layer 5's in time
    assert table["saved_by_a_slot"].to_list() == pytest.approx([0.0, 1.0, 0.0])
    assert (table["saved_by_a_slot_low"] <= table["saved_by_a_slot_high"]).all()
