"""Hostile and broken archives are refused in one line, before anything large is read or anything outside is written."""

import io
import json
import random
import tarfile

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import __version__
from workbench.bundle import check_bundle
from workbench.bundle.archive import unpack_archive, write_archive
from workbench.errors import BadInput


def header(name="run/x", size=0, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


END = bytes(2 * tarfile.BLOCKSIZE)
HOSTILE = {
    "no archive": b"PK\x03\x04" + bytes(2000),
    "empty": b"",
    "cut": header(size=10),
    "path escape": header("../x") + END,
    "escape within": header("run/../../x") + END,
    "absolute": header("/etc/x") + END,
    "empty part": header("run//x") + END,
    "backslash": header("run\\x") + END,
    "drive": header("C:x") + END,
    "control character": header("run/\x07x") + END,
    "symbolic link": header(kind=tarfile.SYMTYPE, link="/etc/passwd") + END,
    "hard link": header(kind=tarfile.LNKTYPE, link="run/y") + END,
    "folder": header(kind=tarfile.DIRTYPE) + END,
    "device": header(kind=tarfile.CHRTYPE) + END,
    "pipe": header(kind=tarfile.FIFOTYPE) + END,
    "sparse": header(kind=tarfile.GNUTYPE_SPARSE) + END,
    "long name record": header(kind=tarfile.GNUTYPE_LONGNAME, size=1 << 40) + END,
    "extended header": header(kind=tarfile.XHDTYPE, size=1 << 40) + END,
    "size near 2^63": header(size=(1 << 63) - 1) + END,
    "size over the file": header(size=4096) + END,
    "twice the same": header() * 2 + END,
    "file as folder": header("run") + header("run/x") + END,
    "bytes after the end": header() + END + b"more" + bytes(508),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_archives_are_refused(tmp_path, content):
    path = tmp_path / "hostile.tar"
    path.write_bytes(content)
    (tmp_path / "inside").mkdir()
    with pytest.raises(BadInput) as refusal:
        unpack_archive(path, tmp_path / "inside")
    assert len(str(refusal.value).splitlines()) == 1
    assert str(path) in str(refusal.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["hostile.tar", "inside"], "nothing is written outside"


def test_negative_sizes_are_refused(tmp_path):
    block = bytearray(header(size=1 << 40))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    (tmp_path / "x.tar").write_bytes(bytes(block) + END)
    with pytest.raises(BadInput, match="claims -1 bytes"):
        unpack_archive(tmp_path / "x.tar", tmp_path / "inside")


def test_what_is_written_is_read_and_other_tools_read_it(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)
    write_archive(tmp_path / "a.tar", ("manifest.json", b"{}"), [("run/deep/file", source), ("run/empty", tmp_path / "source")])
    (tmp_path / "inside").mkdir()
    assert unpack_archive(tmp_path / "a.tar", tmp_path / "inside") == ["manifest.json", "run/deep/file", "run/empty"]
    assert (tmp_path / "inside/run/deep/file").read_bytes() == b"x" * 1000
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["manifest.json", "run/deep/file", "run/empty"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_reported(bundles, tmp_path_factory, data):
    content = bytearray(bundles["run"].read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "x.tar"
    path.write_bytes(content)
    try:
        _, checks = check_bundle(path)
    except BadInput:
        return
    # bytes that no content depends on: times, owners, checksums of headers, padding, the version that made the bundle
    assert any(check.state == "FAILED" for check in checks) or is_slack(bundles["run"], place)


def is_slack(path, place):
    made_by = path.read_bytes().index(b'"workbench": "') + len('"workbench": "')
    with tarfile.open(path) as archive:
        in_a_file = any(member.offset_data <= place < member.offset_data + member.size for member in archive.getmembers())
    return not in_a_file or made_by <= place < made_by + len(__version__)


@pytest.mark.parametrize(("name", "value"), [("kind", "trace"), ("run_id", "other"), ("needs", {"store_digest": "00"})])
def test_a_manifest_that_says_other_than_its_run_is_found(bundles, members, pack, name, value):
    content = members(bundles["run"])
    document = json.loads(content["manifest.json"]) | {name: value}
    _, checks = check_bundle(pack(content | {"manifest.json": json.dumps(document).encode()}))
    assert [check.detail for check in checks if check.state == "FAILED"] == [f"{name}: not what the run says"]


def seal(document, files, pack):
    """A bundle whose manifest agrees with its files."""
    return pack({"manifest.json": json.dumps(document).encode(), **files})


MANIFEST = {"kind": "generate", "run_id": "x", "workbench": "0", "needs": {}, "files": {}, "tables": {}}


@pytest.mark.parametrize(
    ("document", "files", "message"),
    [
        ({}, {}, "not a bundle manifest"),
        ([], {}, "not a bundle manifest"),
        (MANIFEST | {"version": 99}, {}, "bundle version 99"),
        (MANIFEST | {"extra": 1}, {}, "extra"),
        (MANIFEST, {}, "holds no finished run"),
        (MANIFEST, {"run/environment.json": b"{}", "run/result.json": b"{"}, r"can't be read|is not JSON|result.json: "),
        (
            MANIFEST,
            {"run/environment.json": b"{}", "run/result.json": b"[" * 100_000},
            r"can't be read|is not JSON|result.json: ",
        ),
        (
            MANIFEST,
            {"run/environment.json": b"{}", "run/result.json": b'{"version": 1}'},
            r"can't be read|is not JSON|result.json: ",
        ),
        (MANIFEST, {"run/environment.json": b"{}", "run/result.json": b'{"version": 7}'}, "result version 7"),
    ],
)
def test_manifests_and_records_that_lie_are_refused(pack, document, files, message):
    with pytest.raises(BadInput, match=message) as refusal:
        check_bundle(seal(document, files, pack))
    assert len(str(refusal.value).splitlines()) == 1


def test_a_deeply_nested_manifest_is_refused(pack):
    with pytest.raises(BadInput, match="manifest"):
        check_bundle(pack({"manifest.json": b"[" * 1_000_000}))
    with pytest.raises(BadInput, match="first file"):
        check_bundle(pack({"run/result.json": b"{}"}))


def test_a_table_that_would_fill_memory_is_refused(bundles, members, pack):
    content = members(bundles["run"])
    name = next(name for name in content if name.endswith("events.parquet"))
    out = io.BytesIO()
    frame = pl.DataFrame({"t_ns": pl.repeat(0, 3_000_000, dtype=pl.Int64, eager=True)})
    frame.write_parquet(out, metadata={"events_version": "2"})
    content[name] = out.getvalue()
    with pytest.raises(BadInput, match="claims 3,000,000 rows"):
        check_bundle(pack(content))


@pytest.mark.soak
def test_many_damages(bundles, tmp_path):
    original = bundles["series"].read_bytes()
    draw = random.Random(5)
    for _ in range(300):
        content = bytearray(original)
        place = draw.randrange(len(content))
        content[place] ^= draw.randrange(1, 256)
        (tmp_path / "x.tar").write_bytes(content)
        try:
            _, checks = check_bundle(tmp_path / "x.tar")
        except BadInput:
            continue
        assert any(check.state == "FAILED" for check in checks) or is_slack(bundles["series"], place)
