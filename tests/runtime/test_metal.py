"""What holds on the CPU must hold on Metal; only a Mac can show it."""

import mlx.core as mx
import numpy as np
import pytest

from workbench.paths import bundled_model
from workbench.runtime.config import RuntimeConfig


@pytest.mark.apple("on Metal the streamed path equals the resident path bit for bit")
def test_streamed_equals_resident_on_metal(mini_store, mini_tokens, resident_run, streamed_run, budget_bytes):
    assert mx.default_device() == mx.Device(mx.gpu)
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1))
    digests, _ = streamed_run(mini_store, mini_tokens, config)
    resident = resident_run(bundled_model(), mini_tokens)
    assert digests[:2] == resident[:2]
    np.testing.assert_array_equal(digests[2], resident[2])


@pytest.mark.apple("on Metal the logits agree with the CPU's to 1e-4 of their range")
def test_metal_agrees_with_the_cpu(mini_tokens, resident_run):
    on_metal = resident_run(bundled_model(), mini_tokens, decoded=0)[2]
    mx.set_default_device(mx.cpu)
    try:
        on_cpu = resident_run(bundled_model(), mini_tokens, decoded=0)[2]
    finally:
        mx.set_default_device(mx.gpu)
    assert np.abs(on_metal - on_cpu).max() <= 1e-4 * np.ptp(on_cpu)
