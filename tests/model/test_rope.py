import mlx.core as mx
import numpy as np
import pytest

from workbench.geometry import FLASH_NEXT
from workbench.model.rope import Rotary


@pytest.fixture(scope="module")
def reference_embedding(torch, load_reference):
    """cos and sin `[positions, rotated width]` by transformers."""
    from transformers import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextRotaryEmbedding

    def run(geometry, positions):
        rope = {"rope_type": "default", "rope_theta": geometry.rope_theta, "mrope_section": [11, 11, 10]}
        rope["partial_rotary_factor"] = geometry.partial_rotary_factor
        config = Qwen4ExpTextConfig(head_dim=geometry.head_dim, rope_parameters=rope)
        cos, sin = Qwen4ExpTextRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None, None])
        return cos[0].numpy(), sin[0].numpy()

    return run


@pytest.mark.parametrize(("start", "step"), [(0, 1), (1020, 4), (200_000, 1), (262_000, 8)])
def test_rotates_as_transformers_does_even_far_out(reference_embedding, start, step):
    """At position 200,000 one wrong bit of a frequency turns a pair by 0.01."""
    positions = np.arange(start, start + 20 * step, step)
    cos, sin = reference_embedding(FLASH_NEXT, positions)
    x = np.random.default_rng(0).standard_normal((20, 2, FLASH_NEXT.head_dim), np.float32)
    half, width = cos.shape[1] // 2, cos.shape[1]
    turned = np.concatenate([-x[..., half:width], x[..., :half]], axis=-1)
    expected = np.concatenate([x[..., :width] * cos[:, None] + turned * sin[:, None], x[..., width:]], axis=-1)
    actual = np.array(Rotary(FLASH_NEXT, FLASH_NEXT.head_dim)(mx.array(x), start, step))
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_a_head_that_is_wider_or_narrower_keeps_its_other_values():
    x = mx.ones((1, 1, FLASH_NEXT.indexer_head_dim))
    turned = np.array(Rotary(FLASH_NEXT, FLASH_NEXT.indexer_head_dim)(x, 5))
    assert (turned[..., 64:] == 1).all()
    assert (turned[..., :64] != 1).any()
