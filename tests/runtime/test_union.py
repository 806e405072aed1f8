from hypothesis import given
from hypothesis import strategies as st

from workbench.runtime.union import PrefillShare, RetainedRecords, groups_of


def test_half_of_the_share_is_for_what_passes_and_half_for_what_stays():
    share = PrefillShare.of(800, 0.25, 4)
    assert (share.window, share.stay) == (100, 25)
    assert PrefillShare.of(40, 0.25, 48) == PrefillShare(window=5, stay=0)
    assert PrefillShare.of(3, 0.1, 2).window == 1


def test_the_hottest_stay():
    stay, gone = RetainedRecords(2).choose(0, [1, 2, 3, 4], {1: 5, 2: 9, 3: 1, 4: 7}, spare=0)
    assert (stay, gone) == ([2, 4], [])


def test_empty_slots_are_filled_and_count_for_nothing():
    retained = RetainedRecords(1)
    assert retained.choose(0, [1, 2, 3], {1: 3, 2: 2, 3: 1}, spare=2) == ([1, 2, 3], [])
    assert retained.choose(0, [4], {4: 9}, spare=0) == ([4], [3])


def test_a_hotter_record_takes_the_place_of_an_earlier_guest():
    retained = RetainedRecords(2)
    retained.choose(0, [1, 2], {1: 3, 2: 4}, spare=0)
    assert retained.choose(0, [3], {1: 5, 3: 6}, spare=0) == ([3], [2])
    retained.choose(7, [70], {70: 1}, spare=0)
    assert retained.choose(0, [8], {8: 1, 1: 2, 3: 2}, spare=0) == ([], []), "layers have places of their own"


def test_a_guest_that_was_evicted_is_read_like_any_other():
    retained = RetainedRecords(1)
    retained.choose(0, [1], {1: 3}, spare=0)
    assert retained.choose(0, [1, 2], {1: 1, 2: 5}, spare=0) == ([2], [])


def test_what_decode_keeps_is_no_guest():
    retained = RetainedRecords(1)
    retained.choose(0, [1], {1: 3}, spare=0)
    retained.clear()
    assert retained.choose(0, [2], {2: 5}, spare=0) == ([2], [])


@given(st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 99), min_size=1)), st.integers(0, 5))
def test_never_more_guests_than_allowed(tiles, most):
    retained, there = RetainedRecords(most), set()
    for heat in tiles:
        stay, gone = retained.choose(0, [key for key in heat if key not in there], heat, spare=0)
        assert not set(stay) & there
        assert set(gone) <= there
        there = there - set(gone) | set(stay)
        assert len(there) <= most


def test_groups_follow_the_file():
    assert groups_of({5, 1, 9, 2, 7}, 2) == [[1, 2], [5, 7], [9]]
    assert groups_of([], 3) == []
