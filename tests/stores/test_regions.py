import os

import pytest

from workbench.errors import BadInput
from workbench.stores import regions
from workbench.stores.regions import Region, file_sha256


def test_an_inner_part_ends_where_it_says(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with Region(path) as region:
        region.narrow(2, 5)
        assert region.read(1, 3) == b"345"
        with pytest.raises(BadInput, match="truncated: 3 bytes at 3"):
            region.read(3, 3)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with Region(path) as region:
        os.truncate(path, 50)
        with pytest.raises(BadInput, match="only 10 of 20 bytes"):
            region.read(40, 20)


def test_a_disk_that_fails_is_one_line(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(5, "Input/output error")

    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with Region(path) as region:
        monkeypatch.setattr(regions.os, "pread", failing)
        with pytest.raises(BadInput, match="can't be read: Input/output error"):
            region.read(0, 1)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink(path + "-nowhere", path), lambda path: None])
def test_what_is_no_file(tmp_path, make):
    make(str(tmp_path / "thing"))
    with pytest.raises(BadInput, match="can't read"):
        Region(tmp_path / "thing")


def test_zeros_are_checked_across_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(regions, "READ_BYTES", 16)
    path = tmp_path / "file"
    path.write_bytes(bytes(50) + b"x" + bytes(50))
    with Region(path) as region:
        region.check_zero(0, 50, "padding")
        region.check_zero(51, 101, "padding")
        with pytest.raises(BadInput, match="padding must be zero"):
            region.check_zero(0, 101, "padding")
    seen = []
    digest = file_sha256(path, seen.append)
    assert (len(digest), sum(seen), max(seen)) == (32, 101, 16)
