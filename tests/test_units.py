import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.units import GB, GIB, KIB, MB, MIB, align_down, align_up, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("64MiB", 64 * MIB),
        ("64m", 64 * MIB),
        ("1.5 GB", 3 * GB // 2),
        (" 2 GiB ", 2 * GIB),
        ("100mb", 100 * MB),
        ("7B", 7),
        ("9007199254740993", 2**53 + 1),
        ("1.1KiB", 1126),
    ],
)
def test_sizes_are_read_with_their_own_prefix(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "1.5.5GB", "12 parsecs", "1e9", "0x10", -5, True, 1.5, "1.5", "nan", 5000 * "9", "9" * 19 + "GiB", "٣"],
)
def test_other_words_are_refused(text):
    with pytest.raises(BadInput, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (KIB, "1 KiB"), (2_764_800, "2.637 MiB"), (589_824_000, "562.5 MiB"), (-KIB, "-1 KiB")],
)
def test_sizes_are_written_with_a_binary_prefix(num_bytes, text):
    assert format_bytes(num_bytes) == text


@given(value=st.integers(0, 2**63), alignment=st.sampled_from([1, 64, 4096, 16384, 27648]))
def test_alignment_brackets_the_value(value, alignment):
    low, high = align_down(value, alignment), align_up(value, alignment)
    assert low % alignment == high % alignment == 0
    assert low <= value <= high < low + 2 * alignment
    assert (low == high) == (value % alignment == 0)


@given(st.integers(0, 2**50))
def test_a_plain_number_is_itself(num_bytes):
    assert parse_bytes(str(num_bytes)) == num_bytes
