"""Every byte that computes is verified, and so is what is computed: damaged weights, and weights that are not finite."""

import re
import shutil

import mlx.core as mx
import pytest

from tests.hostile.commands import line_of
from workbench.paths import bundled_model
from workbench.schema import Status, list_runs, read_events
from workbench.stores.pack import pack

COMPUTING = ["generate", "trace"]
"""Commands that run the model of a store; the gates and comparisons open it by the same function."""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def damage(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(4096)
        file.seek(offset)
        file.write(bytes(255 - byte for byte in before))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("command", COMPUTING)
def test_damaged_resident_weights_compute_nothing(command, share, packed, runs, end, tmp_path, monkeypatch):
    store = shutil.copytree(packed, tmp_path / "store")
    path = store / "resident.safetensors"
    damage(path, int(share * path.stat().st_size))
    monkeypatch.setenv("WORKBENCH_STORE", str(store))
    ended = end(line_of(command))
    ended.check()
    assert ended.status == 2
    assert "resident.safetensors: its digest is not the manifest's" in ended.err
    assert not [run for run in list_runs(runs) if run.status is Status.FINISHED]


def packed_with(value, tensor, folder):
    """The bundled model packed, with one element of a tensor replaced."""
    checkpoint = shutil.copytree(bundled_model(), folder / "checkpoint")
    path = checkpoint / "model.safetensors"
    tensors = dict(mx.load(str(path)))
    flat = tensors[tensor].reshape(-1)
    # of each expert, so that whichever is chosen computes with it
    flat[:: flat.size // (128 if "switch_mlp" in tensor else 1)] = value
    tensors[tensor] = flat.reshape(tensors[tensor].shape)
    path.unlink()
    mx.save_safetensors(str(path), tensors, {"format": "mlx"})
    pack(checkpoint, folder / "store")
    return folder / "store"


@pytest.mark.parametrize(
    ("command", "tensor", "value"),
    [
        ("generate", "model.layers.3.mlp.gate.weight", "nan"),
        ("trace", "model.hyper_connection_mixer.hc_norm.weight", "-inf"),
        ("generate", "model.layers.0.mlp.switch_mlp.down_proj.scales", "nan"),
    ],
)
def test_weights_that_are_not_finite_end_the_run_in_one_line(command, tensor, value, runs, end, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(packed_with(float(value), tensor, tmp_path)))
    ended = end(line_of(command))
    ended.check()
    assert ended.status == 2
    assert re.search(rf"the tensor {tensor} holds NaN or infinity|the logits .* are not finite", ended.err)
    (run,) = list_runs(runs)
    assert run.status is Status.FAILED
    assert run.result.metrics == {}
    assert read_events(run.path / "events.parquet").filter(kind="token").height == 0
