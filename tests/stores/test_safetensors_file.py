import json
import struct

import mlx.core as mx
import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.stores.safetensors_file import SafetensorsFile, TensorInfo, safetensors_header


def write(path, header, data=bytes(64)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(shape=(4, 4), start=0, end=64, dtype="F32"):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


def test_what_is_written_can_be_loaded_by_mlx(tmp_path):
    values = {"wide": np.arange(6, dtype=np.float32).reshape(2, 3), "whole": np.array([-(2**63), 2**63 - 1])}
    infos = [("whole", TensorInfo(dtype="I64", shape=(2,))), ("wide", TensorInfo(dtype="F32", shape=(2, 3)))]
    path = tmp_path / "made.safetensors"
    path.write_bytes(safetensors_header(infos) + values["whole"].tobytes() + values["wide"].tobytes())
    loaded = mx.load(str(path))
    assert {name: np.array(array).tolist() for name, array in loaded.items()} == {k: v.tolist() for k, v in values.items()}
    file = SafetensorsFile(path)
    assert file.tensors == dict(infos)
    assert file.read("wide", 4, 8).view(np.float32).tolist() == [1, 2]
    file.close()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"x",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        tensor(dtype="F33"),
        tensor(dtype=["F32"]),
        tensor(shape="abcd"),
        tensor(shape=[4, "4"]),
        tensor(shape=[-4, -4]),
        tensor(shape=[4, 4.0]),
        tensor(shape=[True, 16]),
        tensor(shape=[2**62, 4]),
        tensor(start=64, end=0),
        tensor(end=2**63),
        tensor(start=4, end=68),
        {"a": None},
        {"a": {"dtype": "F32", "shape": [16]}},
        {"a": {"dtype": "F32", "shape": [16], "data_offsets": [0]}},
    ],
)
def test_unsound_headers_are_refused(tmp_path, header):
    with pytest.raises(BadInput, match="sound safetensors"):
        SafetensorsFile(write(tmp_path / "bad.safetensors", header))


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 100)])
def test_truncated_files(tmp_path, content):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="truncated"):
        SafetensorsFile(path)
