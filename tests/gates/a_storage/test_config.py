from workbench.gates.a_storage import StorageConfig


def test_full_is_finer_and_keeps_the_thresholds():
    full = StorageConfig(full=True)
    assert full.effective.depths == (1, 2, 4, 8, 16, 32, 64)
    assert full.effective.close_rounds > full.close_rounds
    assert full.effective.max_spread == full.max_spread
    assert StorageConfig().effective == StorageConfig()
