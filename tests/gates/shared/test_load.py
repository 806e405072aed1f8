from workbench.gates.shared.load import running


def test_a_load_ends_with_its_block():
    with running("python") as load:
        pass
    steps = load.steps
    assert steps > 0
    assert load.rate_for(0.01) is None
    assert load.steps == steps
