import errno
import fcntl
import os
import sys

import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.readers import Read
from workbench.readers.files import MAX_RUN, FileTable, aligned_buffer, runs_of


def pages(*numbers, file=0, queue="expert", **about):
    return [
        Read(key, file, 4096 * number, 4096, memoryview(bytearray(4096)), queue, **about) for key, number in enumerate(numbers)
    ]


def keys(runs):
    return [[read.key for read in run] for run in runs]


def test_runs_are_made_of_reads_without_a_gap_in_their_order():
    assert keys(runs_of(pages(1, 2, 3, 7, 8, 6, 7), 1 << 20)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert keys(runs_of(pages(1, 2) + pages(3, file=1), 1 << 20)) == [[0, 1], [0]]
    assert keys(runs_of(pages(1, 2) + pages(3, queue="ple"), 1 << 20)) == [[0, 1], [0]]
    assert keys(runs_of(pages(1, alone=True) + pages(2) + pages(3), 1 << 20)) == [[0], [0, 0]]
    assert runs_of([], 1 << 20) == []


def test_runs_keep_their_limits():
    assert keys(runs_of(pages(1, 2, 3, 4), 2 * 4096)) == [[0, 1], [2, 3]]
    assert keys(runs_of(pages(1, 2), 0)) == [[0], [1]]
    assert [len(run) for run in runs_of(pages(*range(MAX_RUN + 3)), 1 << 30)] == [MAX_RUN, 3]


def test_a_filesystem_without_uncached_reads_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def refuse(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnmetPrerequisite, match="refuses uncached reads"):
        FileTable(uncached=True).open(path)


def test_a_folder_or_a_missing_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(BadInput, match="can't be opened: No such file"):
        FileTable(uncached=False).open(tmp_path / "nothing")


def test_macos_turns_off_cache_and_read_ahead(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    asked = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command, value: asked.append((command, value)))
    files = FileTable(uncached=True)
    files.open(path)
    files.close()
    assert asked == [(48, 1), (45, 0)], "F_NOCACHE on, F_RDAHEAD off, as in macOS's sys/fcntl.h"


def test_aligned_memory_starts_on_a_page_and_can_be_written():
    memory = aligned_buffer(5000)
    assert memory.ctypes.data % 4096 == 0
    memory[:] = 7
    assert memory.sum() == 35_000
    assert len(aligned_buffer(0)) == 0
