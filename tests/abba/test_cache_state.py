"""The page cache is brought to the declared state, and a false declaration is seen."""

import pytest

from workbench.abba.cache_state import COLD_FRACTION, CacheState, cached, prepare, problem


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "experts.em2"
    path.write_bytes(b"x" * (1 << 20))
    return path


def test_a_prepared_store_is_warm(store):
    prepare([store], CacheState.WARM_STORE)
    assert problem(CacheState.WARM_STORE, cached([store])) is None


def test_a_store_that_the_kernel_did_not_drop_is_no_cold_store(store):
    # a memory file system and macOS keep the pages whatever they are asked
    prepare([store], CacheState.COLD_STORE)
    fraction = cached([store])
    assert (problem(CacheState.COLD_STORE, fraction) is None) == (fraction <= COLD_FRACTION)


def test_a_warm_store_is_not_cold(store):
    prepare([store], CacheState.WARM_STORE)
    assert cached([store]) == 1.0
    assert "100% of the store" in problem(CacheState.COLD_STORE, cached([store]))


def test_without_files_a_state_of_the_store_cannot_be_declared(tmp_path):
    assert cached([]) is None
    assert problem(CacheState.COLD_PROCESS, None) is None
    assert "no store files" in problem(CacheState.WARM_STORE, None)
