"""The registry that all tests of hostile input go through."""

from tests.hostile.commands import SMALL, every_command


def test_every_small_line_is_of_a_command():
    assert set(SMALL) <= set(every_command())
