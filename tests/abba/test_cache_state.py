"""The page cache is brought to the declared state, and a false declaration is seen."""

import pytest

from workbench.abba.cache_state import CacheState, cached, prepare, problem


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "experts.em2"
    path.write_bytes(b"x" * (1 << 20))
    return path


def test_prepared_states_pass_their_check(store):
    for state in (CacheState.COLD_STORE, CacheState.WARM_STORE):
        prepare([store], state)
        assert problem(state, cached([store])) is None


def test_a_warm_store_is_not_cold(store):
    prepare([store], CacheState.WARM_STORE)
    assert cached([store]) == 1.0
    assert "100% of the store" in problem(CacheState.COLD_STORE, cached([store]))


def test_without_files_a_state_of_the_store_cannot_be_declared(tmp_path):
    assert cached([]) is None
    assert problem(CacheState.COLD_PROCESS, None) is None
    assert "no store files" in problem(CacheState.WARM_STORE, None)
