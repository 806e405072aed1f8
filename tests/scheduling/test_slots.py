import pytest

from workbench.errors import BadInput
from workbench.policies.lru import Lru
from workbench.scheduling import SlotTable


def filled(num_slots, keys):
    table = SlotTable(num_slots, Lru(num_slots))
    table.admit(keys)
    for key in keys:
        slot, generation = table.begin_read(key)
        table.end_read(slot, generation)
        assert table.publish(key, generation)
    return table


def test_too_few_slots_are_refused_with_both_figures():
    with pytest.raises(BadInput, match=r"9 slots .* 10 slots"):
        SlotTable(9, Lru(9), min_slots=10)


def test_admission_evicts_the_least_recent_unleased_key():
    table = filled(3, [1, 2, 3])
    table.pin(1)
    assert table.admit([4]) == [2]
    assert table.slot_of(2) is None
    assert table.slot(4) != table.slot(1)


def test_a_slot_changes_generation_with_its_owner():
    table = filled(1, [1])
    before = table.generation(0)
    table.admit([2])
    assert table.generation(0) > before


def test_admission_is_all_or_nothing():
    table = filled(3, [1, 2, 3])
    table.pin(1)
    with pytest.raises(ValueError, match="can't be admitted"):
        table.admit([4, 5, 6])
    assert table.resident_keys == {1, 2, 3}


def test_a_key_is_admitted_once():
    table = filled(3, [1])
    with pytest.raises(ValueError, match="is there already"):
        table.admit([1])


def test_a_discarded_slot_drains_before_it_is_free():
    table = SlotTable(1, Lru(1))
    table.admit([1])
    slot, generation = table.begin_read(1)
    table.discard(1)
    assert (table.num_free, table.num_draining, table.num_available) == (0, 1, 0)
    assert not table.end_read(slot, generation)
    assert (table.num_free, table.num_draining) == (1, 0)


def test_a_stale_generation_does_not_publish():
    table = SlotTable(2, Lru(2))
    table.admit([1])
    _, old = table.begin_read(1)
    table.discard(1)
    table.admit([1])
    assert not table.publish(1, old)
    assert not table.is_resident(1)


def test_a_resident_key_is_not_discarded():
    with pytest.raises(ValueError, match="resident"):
        filled(1, [1]).discard(1)


def test_a_dropped_key_leaves_and_one_that_is_held_stays():
    table = filled(3, [1, 2])
    table.pin(2)
    assert [table.drop(key) for key in (1, 2, 3)] == [True, False, False]
    assert (table.resident_keys, table.num_free) == ({2}, 2)
    assert 1 not in table.policy.evict(0, ())


def test_a_loan_takes_the_last_slots_and_moves_who_stays():
    table = filled(4, [1, 2, 3])
    assert [table.slot(key) for key in (1, 2, 3)] == [0, 1, 2]
    table.pin(1)
    before = table.generation(2)
    loan = table.lend(2)
    assert (list(loan.slots), loan.moves, loan.evicted) == ([2, 3], {3: (2, 1)}, (2,))
    assert table.generation(1) != before
    assert (table.capacity, table.num_lent, table.num_free) == (2, 2, 0)
    with pytest.raises(ValueError, match="lent already"):
        table.lend(1)
    table.take_back()
    assert (table.capacity, table.num_lent, table.num_free) == (4, 0, 2)
    table.admit([5, 6])
    assert {table.slot(5), table.slot(6)} == {2, 3}


def test_a_loan_waits_for_leases_and_for_reads_that_still_write():
    table = filled(3, [1, 2, 3])
    table.pin(3)
    assert table.lend(1) is None
    table.unpin(3)
    table.drop(3)
    table.admit([4])
    slot, generation = table.begin_read(4)
    table.discard(4)
    assert table.lend(1) is None
    table.end_read(slot, generation)
    assert table.lend(1) is not None
    with pytest.raises(ValueError, match="can't lend 0"):
        filled(2, [1]).lend(0)


def test_a_policy_that_names_a_leased_key_is_refused():
    class Careless(Lru):
        def evict(self, count, protected):
            return super().evict(count, ())

    table = SlotTable(2, Careless(2))
    for key in (1, 2):
        table.admit([key])
        table.publish(key, table.generation(table.slot(key)))
    table.pin(1)
    with pytest.raises(ValueError, match="not pinned"):
        table.admit([3])
