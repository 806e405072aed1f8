from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from workbench.runtime.evaluation import Evaluation
from workbench.runtime.hit_table import HitTable
from workbench.schema import EventLog


def table_of(num_keys):
    """A table whose records compute the number of the entry that they lie at."""
    math = SimpleNamespace(
        entries=lambda keys, slots: np.array([10 * slots[key] for key in keys], dtype=np.uint32),
        run_entries=lambda hidden, entries: entries.reshape(-1, 1).astype(mx.float32),
    )
    return HitTable(num_keys, math, Evaluation(EventLog()))


def dispatched(table, keys):
    missing, results = table.dispatch(mx.zeros((len(keys), 1)), mx.array(keys))
    return np.array(missing).tolist(), np.array(results).ravel().tolist()


def test_what_is_held_is_found_where_it_lies_and_the_rest_comes_back():
    table = table_of(8)
    assert dispatched(table, [[3, 5]])[0] == [[3, 5]]
    table.hold([3, 7], {3: 2, 7: 4})
    missing, results = dispatched(table, [[3, 5], [7, 3]])
    assert missing == [[-1, 5], [-1, -1]]
    assert [results[0], *results[2:]] == [20, 40, 20]


def test_what_has_left_is_missing_again_and_may_come_back_elsewhere():
    table = table_of(8)
    table.hold([3, 7], {3: 2, 7: 4})
    table.drop({3})
    assert dispatched(table, [[3, 7]])[0] == [[3, -1]]
    table.hold([3], {3: 6})
    assert dispatched(table, [[3, 7]]) == ([[-1, -1]], [60, 40])
