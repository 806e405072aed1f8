"""Every way to break an expert store ends in one line and exit status 2, through the real command line."""

import struct

import pytest

from workbench.stores.expert_header import DESCRIPTOR_BYTES, HEADER_BYTES, manifest_digest

HUGE = 2**63 - 4096
FIELDS = {
    "version": ("I", 8), "header_bytes": ("I", 12), "family": ("I", 16), "experts_used": ("I", 20), "num_layers": ("I", 24),
    "num_experts": ("I", 28), "num_source_tensors": ("Q", 32), "num_descriptors": ("Q", 40), "descriptor_bytes": ("Q", 48),
    "descriptor_offset": ("Q", 56), "data_offset": ("Q", 64), "data_bytes": ("Q", 72), "store_bytes": ("Q", 80),
    "source_bytes": ("Q", 88), "payload_sha256": ("Q", 128), "storage_format": ("I", 160), "group_size": ("I", 164),
    "reserved": ("I", 248),
}  # fmt: skip
LAYER_FIELDS = {
    "layer": ("I", 0), "num_experts": ("I", 4), "record_bytes": ("Q", 8), "offset": ("Q", 16), "num_bytes": ("Q", 24),
    "reserved": ("I", 220),
}  # fmt: skip
COMPONENT_FIELDS = {
    "role": ("I", 0), "ggml_type": ("I", 4), "num_dims": ("I", 8), "block_elements": ("I", 12), "input_size": ("Q", 16),
    "output_size": ("Q", 24), "num_experts": ("Q", 32), "num_bytes": ("Q", 40), "offset": ("Q", 48),
}  # fmt: skip


def sign_again(path, patch):
    """Makes the manifest digest right, so that only the field itself can be refused."""
    content = path.read_bytes()
    num_layers = min(struct.unpack_from("<I", content, 24)[0], 3)
    descriptors = content[HEADER_BYTES : HEADER_BYTES + num_layers * DESCRIPTOR_BYTES]
    patch(path, 168, manifest_digest(content[:HEADER_BYTES], descriptors))


def set_field(path, patch, offset, layout, value):
    patch(path, offset, struct.pack("<" + layout, value))
    sign_again(path, patch)


HEADER_CASES = [
    ("version", 1, "version 1"),
    ("version", 2**32 - 1, "version"),
    ("header_bytes", 512, "header of 512"),
    ("family", 0, "unknown family 0"),
    ("family", 5, "unknown family 5"),
    ("experts_used", 0, "0 of 5 experts used"),
    ("experts_used", 6, "6 of 5 experts used"),
    ("num_layers", 0, "0 layers"),
    ("num_layers", 2**32 - 1, "layers, must be"),
    ("num_layers", 2, "3 descriptors of 2 layers"),
    ("num_experts", 0, "0 experts"),
    ("num_experts", 513, "must be 1..512"),
    ("num_experts", 4, "4"),
    ("num_source_tensors", 0, "no tensors"),
    ("num_descriptors", HUGE, "descriptors"),
    ("descriptor_bytes", HUGE, "descriptors of"),
    ("descriptor_offset", 512, "descriptors at 512"),
    ("data_offset", 4100, "no multiple of 4096"),
    ("data_offset", 0, "within the descriptors"),
    ("data_offset", HUGE, "leaves the store"),
    ("data_bytes", HUGE, "leaves the store"),
    ("store_bytes", HUGE, "truncated or overlong"),
    ("store_bytes", 0, "truncated or overlong"),
    ("source_bytes", 2**63, "a source of"),
    ("payload_sha256", 0, "belongs to another payload"),
    ("storage_format", 3, "format 3"),
    ("storage_format", 0, "group size"),
    ("storage_format", 1, "don't describe"),
    ("group_size", 48, "group size 48"),
    ("group_size", 32, "don't describe"),
    ("reserved", 1, "reserved header bytes"),
]


@pytest.mark.parametrize(("field", "value", "says"), HEADER_CASES)
def test_each_header_field(refused, patch, tiny_store, field, value, says):
    layout, offset = FIELDS[field]
    path = tiny_store / "experts.em2"
    set_field(path, patch, offset, layout, value)
    refused(path, says)


LAYER_CASES = [
    ("layer", 0, "must ascend"),
    ("layer", 2**32 - 1, "must ascend"),
    ("num_experts", 4, "4 experts, the store has 5"),
    ("record_bytes", HUGE, "are not the sum of its records"),
    ("offset", HUGE, "behind the store"),
    ("offset", 4096, "overlaps layer 0"),
    ("offset", 4097, "no multiple of 4096"),
    ("offset", 4096 * 20, "missing extent between layers 0 and 1"),
    ("num_bytes", HUGE, "are not the sum of its records"),
    ("reserved", 1, "reserved descriptor bytes"),
]


@pytest.mark.parametrize(("field", "value", "says"), LAYER_CASES)
def test_each_descriptor_field(refused, patch, tiny_store, field, value, says):
    layout, offset = LAYER_FIELDS[field]
    path = tiny_store / "experts.em2"
    set_field(path, patch, HEADER_BYTES + DESCRIPTOR_BYTES + offset, layout, value)
    refused(path, says)


COMPONENT_CASES = [
    ("role", 0, "role 0, must be 1"),
    ("role", 2**32 - 1, "role"),
    ("ggml_type", 12, "ggml type 12"),
    ("num_dims", 2, "2 dimensions"),
    ("block_elements", 0, "blocks of 0"),
    ("block_elements", 128, "blocks of 128"),
    ("input_size", 0, "out of range"),
    ("input_size", HUGE, "out of range"),
    ("output_size", HUGE, "out of range"),
    ("output_size", 2**31 - 1, "don't describe"),
    ("num_experts", HUGE, "experts"),
    ("num_bytes", HUGE, "don't describe"),
    ("num_bytes", 4608 + 1024, "down at 9216 of the record, must be at 10240"),
    ("offset", 0, "up at 0 of the record"),
    ("offset", HUGE, "of the record"),
]


@pytest.mark.parametrize(("field", "value", "says"), COMPONENT_CASES)
def test_each_component_field(refused, patch, tiny_store, field, value, says):
    layout, offset = COMPONENT_FIELDS[field]
    path = tiny_store / "experts.em2"
    set_field(path, patch, HEADER_BYTES + DESCRIPTOR_BYTES + 32 + 56 + offset, layout, value)
    refused(path, says)


def test_a_first_layer_behind_the_data_offset(refused, patch, tiny_store):
    path = tiny_store / "experts.em2"
    set_field(path, patch, HEADER_BYTES + 16, "Q", 8192)
    refused(path, "but its first layer at 8192")


def test_records_longer_than_their_components(refused, patch, tiny_store):
    path = tiny_store / "experts.em2"
    for offset, value in ((8, 13_824 + 8), (24, 5 * (13_824 + 8))):
        set_field(path, patch, HEADER_BYTES + 2 * DESCRIPTOR_BYTES + offset, "Q", value)
    refused(path, "components of 13824 bytes in records of 13832")


def test_a_transposed_expert(refused, patch, tiny_store):
    path = tiny_store / "experts.em2"
    for component in range(2):
        patch(path, HEADER_BYTES + 32 + 56 * component + 16, struct.pack("<2Q", 64, 128))
    sign_again(path, patch)
    refused(path, "are not one expert's")


@pytest.mark.parametrize(("offset", "says"), [(0, "neither an ExpertMajor"), (100, "manifest digest"), (170, "manifest digest")])
def test_unsigned_changes(refused, patch, tiny_store, offset, says):
    path = tiny_store / "experts.em2"
    patch(path, offset, b"\xff\xfe\xfd")
    refused(path, says)


@pytest.mark.parametrize("offset", [HEADER_BYTES + 3 * DESCRIPTOR_BYTES, 4095, 4096 + 69_120, 4096 + 69_632 - 1])
def test_padding_that_is_not_zero(refused, patch, tiny_store, offset):
    path = tiny_store / "experts.em2"
    patch(path, offset, b"\x01")
    refused(path, "must be zero")


@pytest.mark.parametrize("num_bytes", [0, 7, 8, 255, 256, 500, 4096, 100_000, -1])
def test_truncation(refused, patch, tiny_store, num_bytes):
    path = tiny_store / "experts.em2"
    content = path.read_bytes()
    path.write_bytes(content[:num_bytes])
    refused(path, "neither an" if num_bytes in (0, 7) else "truncated")


def test_bytes_behind_the_end(refused, patch, tiny_store):
    path = tiny_store / "experts.em2"
    path.write_bytes(path.read_bytes() + b"\0")
    refused(path, "overlong")


def test_a_flipped_record_byte(refused, patch, tiny_store):
    path = tiny_store / "experts.em2"
    patch(path, 50_000, bytes([path.read_bytes()[50_000] ^ 1]))
    refused(path, "layer 0, expert 3, gate: checksum differs")
    (tiny_store / "experts.crc").unlink()
    refused(path, "payload digest differs")


def test_checksums_of_another_payload(refused, patch, tiny_store):
    patch(tiny_store / "experts.crc", 32, bytes(32))
    refused(tiny_store / "experts.em2", "belongs to another payload")


@pytest.mark.parametrize(
    ("offset", "content", "says"),
    [
        (0, b"X", "not a checksum file"),
        (8, b"\x02", "not a checksum file"),
        (16, b"\xff\xff\xff\xff", "the store has [3, 5, 3]"),
        (28, b"\x01", "reserved"),
        (64, b"\0\0", "its digest differs"),
        (100, b"\x01", "reserved"),
        (130, b"\0\0\0", "its digest differs"),
    ],
)
def test_each_field_of_the_checksum_file(refused, patch, tiny_store, offset, content, says):
    patch(tiny_store / "experts.crc", offset, content)
    refused(tiny_store / "experts.em2", says)


def test_a_truncated_checksum_file(refused, patch, tiny_store):
    path = tiny_store / "experts.crc"
    path.write_bytes(path.read_bytes()[:-1])
    refused(tiny_store / "experts.em2", "checksums in")


def test_mixed_bits(refused, patch, tiny_store):
    """Eight bits in one layer add up by themselves, but not with the others."""
    path = tiny_store / "experts.em2"
    start, part = HEADER_BYTES + 2 * DESCRIPTOR_BYTES, 64 * 128 + 512
    patch(path, start + 8, struct.pack("<Q", 3 * part))
    patch(path, start + 24, struct.pack("<Q", 15 * part))
    for component in range(3):
        patch(path, start + 32 + 56 * component + 40, struct.pack("<2Q", part, component * part))
    end = 4096 + 2 * 69_632 + 15 * part
    path.write_bytes(path.read_bytes().ljust(end, b"\0"))
    patch(path, 72, struct.pack("<2Q", end - 4096, end))
    sign_again(path, patch)
    refused(path, "different bits")


def test_the_store_itself_is_sound(command, tiny_store):
    for name in ("experts.em2", "ngrams.1.ple", "."):
        outcome = command("verify", tiny_store / name)
        assert (outcome.status, outcome.err) == (0, "")
        assert "sound" in outcome.out
