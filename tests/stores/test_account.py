import re

import mlx.core as mx
import pytest

from workbench.errors import BadInput
from workbench.stores import open_store
from workbench.stores.account import check_account
from workbench.stores.checkpoint import Checkpoint
from workbench.stores.pack import pack
from workbench.stores.verify import verify

NAMES = [
    "lm_head.weight",
    "model.embed_tokens.weight",
    "model.hyper_connection_mixer.hc_norm.weight",
    "model.layers.0.linear_attn.A_log",
    "model.layers.0.linear_attn.conv1d.weight",
    "model.layers.2.mlp.gate.weight",
    "model.layers.1.ple.ple_embedding.layer_multipliers",
    "mtp.fc_hidden.weight",
    "mtp.layers.0.self_attn.k_norm.weight",
]


GAIN = re.compile(
    r"(hc_norm|q_norm|k_norm|q_layernorm|k_layernorm|norm_key|norm_query|norm_conv|pre_fc_norm_embedding|pre_fc_norm_hidden)\.weight$"
)


def without(tensors, name):
    del tensors[name]


def transposed(tensors, name):
    tensors[name] = tensors[name].reshape(-1, 1, 1, 1)


def of_another_type(tensors, name):
    tensors[name] = tensors[name].astype(mx.uint8)


def renamed(tensors, name):
    tensors[name + "s"] = tensors.pop(name)


def added(tensors, name):
    tensors[name + "_inv_freq"] = mx.zeros(3)


def quantised(tensors, name):
    tensors[name.replace(".weight", ".scales")] = mx.zeros(3)


CHANGES = {
    without: "is missing",
    transposed: r"is \w+ \[\d+, 1, 1, 1\], not",
    of_another_type: "is U8",
    renamed: "is missing",
    added: "is none of this model's tensors",
    quantised: "is quantised",
}


@pytest.fixture
def changed(make_checkpoint):
    """A small checkpoint whose resident tensors were changed."""

    def make(change, **options):
        folder = make_checkpoint("changed", **options)
        path = folder / "model.safetensors"
        tensors = dict(mx.load(str(path)))
        change(tensors)
        mx.save_safetensors(str(path), tensors)
        return folder

    return make


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_checkpoint_is_refused_before_the_first_byte(change, name, changed, tmp_path):
    if change is quantised and not name.endswith(".weight"):
        return
    folder = changed(lambda tensors: change(tensors, name))
    with pytest.raises(BadInput, match=CHANGES[change]) as error:
        pack(folder, tmp_path / "out")
    assert name.removesuffix(".weight") in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_head_that_is_tied_is_named(changed, tmp_path):
    with pytest.raises(BadInput, match="a head that is tied to the embedding is not supported"):
        pack(changed(lambda tensors: without(tensors, "lm_head.weight")), tmp_path / "out")


def test_hash_integers_that_do_not_follow_from_the_configuration_are_refused(changed):
    def other(tensors):
        tensors["model.layers.1.ple.ple_embedding.layer_multipliers"] += 2

    with Checkpoint(changed(other)) as source, pytest.raises(BadInput, match="layer_multipliers holds other integers"):
        check_account(source)


@pytest.mark.parametrize("part", ["model.", "mtp."])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_gains_to_which_1_was_added_are_refused(part, dtype, changed, tmp_path):
    def add(tensors):
        for name in tensors:
            if name.startswith(part) and GAIN.search(name):
                tensors[name] = (tensors[name] + 1).astype(dtype)

    with pytest.raises(BadInput, match=rf"norms below {part[:-1]}\. have a mean of (0\.9|1\.?0?)\d*: 1 was added"):
        pack(changed(add), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_convolutions_as_mlx_keeps_them_pack_to_the_same_bytes(make_checkpoint, changed, tmp_path):
    def turn(tensors):
        for name in [name for name in tensors if name.endswith("conv1d.weight")]:
            tensors[name] = mx.contiguous(tensors[name].moveaxis(2, 1))

    manifests = [pack(make_checkpoint("plain"), tmp_path / "one"), pack(changed(turn), tmp_path / "other")]
    one, other = (manifest.files["resident.safetensors"].sha256 for manifest in manifests)
    assert one == other


def test_a_sound_checkpoint_of_half_precision_is_accepted(changed):
    def halve(tensors):
        for name in ("lm_head.weight", "model.layers.0.linear_attn.dt_bias"):
            tensors[name] = tensors[name].astype(mx.float16)

    with Checkpoint(changed(halve)) as source:
        check_account(source)


def test_a_conversion_without_the_mtp_head_that_its_config_names_packs_into_a_sound_store(make_checkpoint, tmp_path):
    folder = make_checkpoint("stock", mtp=False)
    assert '"mtp_num_hidden_layers": 1' in (folder / "config.json").read_text()
    pack(folder, tmp_path / "out")
    verify(tmp_path / "out")
    assert open_store(tmp_path / "out").geometry.mtp_num_hidden_layers == 0


@pytest.mark.parametrize("kept", ["experts", "other tensors"])
def test_half_an_mtp_head_is_refused(kept, changed, tmp_path):
    def drop(tensors):
        for name in [name for name in tensors if name.startswith("mtp.") and (".switch_mlp." in name) != (kept == "experts")]:
            del tensors[name]

    with pytest.raises(BadInput, match="the MTP head lacks its"):
        pack(changed(drop), tmp_path / "out")
    assert not (tmp_path / "out").exists()
