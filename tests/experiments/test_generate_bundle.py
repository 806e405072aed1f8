"""A real run, bundled and checked: everything it says follows from its events."""

from workbench.bundle import State, check_bundle, make_bundle
from workbench.experiments.generate import GenerateConfig, run_generate


def test_a_real_run_survives_its_own_check(mini_store, tmp_path):
    config = GenerateConfig.build({"turns": ["def main():"], "max_tokens": 6, "attribution_tokens": 2, "bandwidth_gbps": 1.0})
    folder = run_generate(config, root=tmp_path / "runs").folder
    make_bundle(folder, tmp_path / "run.tar")
    _, checks = check_bundle(tmp_path / "run.tar")
    assert [check for check in checks if check.state is State.FAILED] == []
    passed = {check.what for check in checks if check.state is State.OK}
    assert {"files", "generate: config digest", "generate: metrics", "generate: detectors", "store_digest"} <= passed
