"""Hostile GGUF headers, through the real command line."""

import struct

import pytest

from workbench.stores.gguf_index import find_tensor

HUGE = 2**63 - 1


def string(text):
    return struct.pack("<Q", len(text)) + text


def gguf(
    *, version=3, tensors=1, keys=b"", num_keys=0, name=b"ds4.expert_major.v2", dims=(64,), kind=24, offset=0, tail=bytes(4096)
):
    tensor = string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, offset)
    return b"GGUF" + struct.pack("<IQQ", version, tensors, num_keys) + keys + tensor + tail


def key(kind, value, name=b"general.thing"):
    return string(name) + struct.pack("<I", kind) + value


CASES = {
    "big-endian version": (gguf(version=3 << 24), "version"),
    "old version": (gguf(version=1), "version"),
    "no tensors": (gguf(tensors=0), "embeds no store"),
    "another tensor": (gguf(name=b"ds4.expert_major.v1"), "embeds no store"),
    "endless tensors": (gguf(tensors=HUGE), "more than"),
    "tensors past the end": (gguf(tensors=3_000_000), "runs past"),
    "endless keys": (gguf(num_keys=HUGE), "more than"),
    "keys past the end": (gguf(num_keys=1000), "a name of"),
    "endless name": (gguf(num_keys=1, keys=struct.pack("<Q", HUGE)), "a name of"),
    "name past the end": (gguf(num_keys=1, keys=struct.pack("<Q", 60_000)), "runs past"),
    "endless string": (gguf(num_keys=1, keys=key(8, struct.pack("<Q", HUGE))), "runs past"),
    "endless array": (gguf(num_keys=1, keys=key(9, struct.pack("<IQ", 0, HUGE))), "runs past"),
    "array that overflows": (gguf(num_keys=1, keys=key(9, struct.pack("<IQ", 12, 2**61))), "runs past"),
    "endless strings": (gguf(num_keys=1, keys=key(9, struct.pack("<IQ", 8, HUGE))), "more than"),
    "nested arrays": (gguf(num_keys=1, keys=key(9, struct.pack("<IQ", 9, 1) * 9)), "unknown type 9"),
    "unknown type": (gguf(num_keys=1, keys=key(99, b"")), "unknown type 99"),
    "alignment 0": (gguf(num_keys=1, keys=key(4, struct.pack("<I", 0), b"general.alignment")), "alignment 0"),
    "odd alignment": (gguf(num_keys=1, keys=key(4, struct.pack("<I", 48), b"general.alignment")), "alignment 48"),
    "huge alignment": (gguf(num_keys=1, keys=key(4, struct.pack("<I", 2**31), b"general.alignment")), "alignment"),
    "many dimensions": (gguf(dims=(1,) * 9), "9 dimensions"),
    "two dimensions": (gguf(dims=(8, 8)), "one row of I8"),
    "another type": (gguf(kind=0), "one row of I8"),
    "unaligned": (gguf(offset=8), "not aligned"),
    "offset past the end": (gguf(offset=HUGE - 31), "ends behind the file"),
    "size past the end": (gguf(dims=(HUGE,)), "ends behind the file"),
    "size wraps": (gguf(dims=(2**64 - 64,)), "ends behind the file"),
    "no room for a header": (gguf(dims=(64,)), "truncated"),
    "no store inside": (gguf(dims=(2048,)), "magic is"),
    "only the magic": (b"GGUF\3\0\0\0", "runs past"),
    "cut header": (gguf()[:40], "runs past"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_headers(refused, tmp_path, name):
    content, says = CASES[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    refused(path, says)


def test_a_header_of_every_value_type(tmp_path):
    scalars = [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
    keys = b"".join(key(kind, bytes(size)) for kind, size in scalars)
    keys += key(8, string(b"text")) + key(9, struct.pack("<IQ", 8, 2) + string(b"a") + string(b"bc"))
    keys += key(9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 3, 2) + bytes(4))
    keys += key(4, struct.pack("<I", 128), b"general.alignment")
    path = tmp_path / "whole.gguf"
    content = gguf(num_keys=len(scalars) + 4, keys=keys, offset=256, tail=b"")
    path.write_bytes(content + bytes(1000))
    tensor = find_tensor(path, "ds4.expert_major.v2")
    assert (tensor.shape, tensor.ggml_type, tensor.offset) == ((64,), 24, -(-len(content) // 128) * 128 + 256)
