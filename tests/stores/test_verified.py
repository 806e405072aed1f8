"""The resident weights are held to the manifest: read once, and again whenever their file may have changed."""

import json
import os
import shutil
import time

import pytest

from workbench.errors import BadInput
from workbench.paths import cache_folder
from workbench.stores import open_store, verified
from workbench.stores.verified import check_resident


@pytest.fixture
def store(packed, tmp_path, monkeypatch):
    """A store of its own, packed long ago, and no memory of any file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verified, "_SETTLED_NS", 0)
    folder = shutil.copytree(packed, tmp_path / "store")
    time.sleep(0.01)
    return open_store(folder)


@pytest.fixture
def reads(monkeypatch):
    """Counts the files that are read for their digest."""
    counted, digest = [], verified.file_sha256
    monkeypatch.setattr(verified, "file_sha256", lambda path, advance: counted.append(path) or digest(path, advance))
    return counted


def overwrite(path, *, times=None):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))
    if times is not None:
        os.utime(path, ns=times)


def test_an_unchanged_file_is_read_once(store, reads):
    assert check_resident(store) > 0
    assert check_resident(store) == 0
    assert len(reads) == 1


@pytest.mark.parametrize("restored", [False, True])
def test_overwritten_weights_are_refused_even_with_their_old_times(store, restored):
    check_resident(store)
    status = store.resident_path.stat()
    overwrite(store.resident_path, times=(status.st_atime_ns, status.st_mtime_ns) if restored else None)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"resident\.safetensors: its digest is not the manifest's"):
            check_resident(store)


def test_a_copy_is_read_anew(store, reads, tmp_path):
    check_resident(store)
    copy = open_store(shutil.copytree(store.folder, tmp_path / "copy"))
    overwrite(copy.resident_path)
    with pytest.raises(BadInput, match="digest"):
        check_resident(copy)
    shutil.move(copy.resident_path, store.resident_path)
    with pytest.raises(BadInput, match="digest"):
        check_resident(store)
    assert len(reads) == 3


def test_a_file_that_has_just_changed_is_not_remembered(store, reads, monkeypatch):
    monkeypatch.setattr(verified, "_SETTLED_NS", 3600 * 10**9)
    check_resident(store)
    check_resident(store)
    assert len(reads) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 3}', "[" * 100_000])
def test_a_damaged_memory_costs_one_more_read(store, reads, content):
    check_resident(store)
    (cache_folder() / "verified.json").write_text(content)
    check_resident(store)
    check_resident(store)
    assert len(reads) == 2
    assert str(store.resident_path.resolve()) in json.loads((cache_folder() / "verified.json").read_text())


def test_where_nothing_can_be_remembered_each_opening_reads(store, reads):
    cache_folder().parent.mkdir()
    cache_folder().write_text("a file where the folder would be")
    check_resident(store)
    check_resident(store)
    assert len(reads) == 2
