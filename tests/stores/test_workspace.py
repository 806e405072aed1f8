import os

import numpy as np
import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.stores.workspace import JOURNAL_NAME, FilePlan, Piece, Workspace

IDENTITY = {"source": "a"}


def plan(num_pieces=4, made=None, seen=None, piece_bytes=1000):
    def make(i):
        if made is not None:
            made.append(i)
        return np.full(piece_bytes, i + 1, np.uint8)

    pieces = tuple(
        Piece(
            num_bytes=piece_bytes,
            make=lambda i=i: make(i),
            observe=(lambda content: seen.append(content[0])) if seen is not None else (lambda content: None),
        )
        for i in range(num_pieces)
    )
    return FilePlan(name="data.bin", head_bytes=64, pieces=pieces, make_head=lambda digest: digest.hex().encode())


def write(folder, plan, identity=IDENTITY):
    with Workspace(folder, identity) as work:
        return work.write(plan, lambda num_bytes: None)


def interrupted(folder, after):
    """A file of which `after` pieces are written when the next one raises."""

    def broken():
        raise KeyboardInterrupt

    whole = plan()
    pieces = tuple(p if i < after else Piece(num_bytes=1000, make=broken) for i, p in enumerate(whole.pieces))
    with pytest.raises(KeyboardInterrupt):
        write(folder, FilePlan(name="data.bin", head_bytes=64, pieces=pieces, make_head=whole.make_head))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_only_what_is_missing_is_made_again(tmp_path, after):
    write(tmp_path / "whole", plan())
    interrupted(tmp_path / "cut", after)
    made, seen = [], []
    write(tmp_path / "cut", plan(made=made, seen=seen))
    assert made == list(range(after, 4))
    assert seen == [1, 2, 3, 4]
    files = [(tmp_path / name / "data.bin").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    assert not (tmp_path / "cut" / "data.bin.part").exists()


def test_a_finished_file_is_read_back_and_not_made(tmp_path):
    digest = write(tmp_path / "a", plan())
    made = []
    assert write(tmp_path / "a", plan(made=made)) == digest
    assert made == []


@pytest.mark.parametrize("torn", [b"{", b'{"file": "data.bin", "end": 9', b"\x00\x00"])
def test_a_torn_last_line_of_the_journal_is_forgotten(tmp_path, torn):
    interrupted(tmp_path / "cut", 2)
    with (tmp_path / "cut" / JOURNAL_NAME).open("ab") as journal:
        journal.write(torn)
    made = []
    write(tmp_path / "cut", plan(made=made))
    assert made == [2, 3]


@pytest.mark.parametrize("line", [b"x", b"[]", b'{"file": "a"}', b'{"file": 3, "end": 1, "sha256": ""}', b'"text"'])
def test_a_damaged_journal_is_refused(tmp_path, line):
    interrupted(tmp_path / "cut", 2)
    with (tmp_path / "cut" / JOURNAL_NAME).open("ab") as journal:
        journal.write(line + b"\n")
    with pytest.raises(BadInput, match=r"journal\.part is damaged"):
        write(tmp_path / "cut", plan())


def test_a_journal_can_not_reach_out_of_its_folder(tmp_path):
    (tmp_path / "precious").touch()
    interrupted(tmp_path / "cut", 1)
    with (tmp_path / "cut" / JOURNAL_NAME).open("ab") as journal:
        journal.write(b'{"file": "../precious", "end": 1, "sha256": ""}\n')
    write(tmp_path / "cut", plan(), identity={"source": "b"})
    assert (tmp_path / "precious").exists()


def test_bytes_behind_the_last_recorded_piece_are_written_again(tmp_path):
    interrupted(tmp_path / "cut", 2)
    with (tmp_path / "cut" / "data.bin.part").open("ab") as part:
        part.write(b"half a piece")
    write(tmp_path / "cut", plan())
    write(tmp_path / "whole", plan())
    assert (tmp_path / "cut" / "data.bin").read_bytes() == (tmp_path / "whole" / "data.bin").read_bytes()


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_part_that_changed_is_refused(tmp_path, damage):
    interrupted(tmp_path / "cut", 2)
    part = tmp_path / "cut" / "data.bin.part"
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes({"flip": content, "cut": content[:500], "gone": b""}[damage])
    with pytest.raises(BadInput, match="changed since it was interrupted"):
        write(tmp_path / "cut", plan())


def test_another_identity_starts_afresh(tmp_path):
    interrupted(tmp_path / "cut", 2)
    with Workspace(tmp_path / "cut", IDENTITY) as work:
        work.put("small.json", b"{}")
    made = []
    write(tmp_path / "cut", plan(made=made), identity={"source": "b"})
    assert made == [0, 1, 2, 3]
    assert sorted(os.listdir(tmp_path / "cut")) == ["data.bin", JOURNAL_NAME]


def test_two_processes_on_one_folder(tmp_path):
    with Workspace(tmp_path / "a", IDENTITY), pytest.raises(BadInput, match="another process is packing"):
        Workspace(tmp_path / "a", IDENTITY)


def test_a_process_that_came_too_late(tmp_path):
    with Workspace(tmp_path / "a", IDENTITY) as work:
        work.install(b"{}")
    (tmp_path / "a" / JOURNAL_NAME).touch()
    with pytest.raises(BadInput, match="has just packed"):
        Workspace(tmp_path / "a", IDENTITY)
    assert os.listdir(tmp_path / "a") == ["manifest.json"]


def test_space_that_is_missing_is_said_with_both_figures(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.stores.workspace.free_disk_bytes", lambda folder: 20 * 2**20)
    with Workspace(tmp_path / "a", IDENTITY) as work:
        work.check_space([plan()])
        with pytest.raises(UnmetPrerequisite, match=r"needs 20\.77 MiB, 20 MiB are free"):
            work.check_space([plan(piece_bytes=1_250_000)])


def test_what_is_written_already_needs_no_space(tmp_path, monkeypatch):
    big = plan(piece_bytes=2**20)
    write(tmp_path / "a", big)
    monkeypatch.setattr("workbench.stores.workspace.free_disk_bytes", lambda folder: 17 * 2**20)
    with Workspace(tmp_path / "a", IDENTITY) as work:
        work.check_space([big])


def test_a_fresh_volume_may_hold_its_own_names(tmp_path):
    for name in ("lost+found", ".Trashes"):
        (tmp_path / name).mkdir()
    write(tmp_path, plan())
    assert (tmp_path / "data.bin").exists()
