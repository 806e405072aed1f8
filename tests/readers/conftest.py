"""A real file whose every byte is known, and readers over it."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from workbench.readers import MmapReader, PreadConfig, PreadReader, Read, UringConfig, UringReader, aligned_buffer
from workbench.readers.ring import ring_refusal

NUM_BYTES = 64 * 4096 + 1000


@pytest.fixture(scope="session")
def content():
    return np.random.default_rng(7).integers(0, 256, NUM_BYTES, dtype=np.uint8)


@pytest.fixture(scope="session")
def path(tmp_path_factory, content):
    where = tmp_path_factory.mktemp("reads") / "content.bin"
    where.write_bytes(content.tobytes())
    return where


def uncached_works(path):
    try:
        os.close(os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)))
    except OSError:
        return False
    return True


READERS = {
    "buffered": lambda: PreadReader(PreadConfig(threads={"expert": 3, "ple": 2})),
    "uncached": lambda: PreadReader(PreadConfig(uncached=True, threads={"expert": 3, "ple": 2})),
    "uring": lambda: UringReader(UringConfig(depth={"expert": 3, "ple": 2})),
    "uring alone": lambda: UringReader(UringConfig(depth={"expert": 3, "ple": 2}, watch=False, spin_us=0)),
    "uring buffered": lambda: UringReader(UringConfig(depth={"expert": 3, "ple": 2}, uncached=False)),
    "mmap": MmapReader,
}


@pytest.fixture
def uncached_path(path):
    """The file, where it can be read past the page cache by io_uring."""
    if refusal := ring_refusal():
        pytest.skip(refusal)
    if not uncached_works(path):
        pytest.skip("the filesystem of the temporary folder refuses uncached reads")
    return path


@pytest.fixture(params=READERS)
def reader(request, path):
    if request.param.startswith("uring") and (refusal := ring_refusal()):
        pytest.skip(refusal)
    if request.param not in ("buffered", "uring buffered", "mmap") and not uncached_works(path):
        pytest.skip("the filesystem of the temporary folder refuses uncached reads")
    with READERS[request.param]() as made:
        yield made


@pytest.fixture
def make_reads():
    """Reads of `(offset, num_bytes)` windows, each into pages of its own."""

    def make(file, windows, *, queue="expert", **about):
        reads = []
        for key, (offset, num_bytes) in enumerate(windows):
            reads.append(Read(key, file, offset, num_bytes, memoryview(aligned_buffer(num_bytes)), queue, **about))
        return reads

    return make


@pytest.fixture
def drain():
    """All completions of a reader, by key."""

    def collect(reader):
        done = {}
        while reader.in_flight:
            for completion in reader.poll(None):
                assert completion.key not in done, "completed twice"
                done[completion.key] = completion
        return done

    return collect


def _held():
    descriptors = Path("/proc/self/fd")
    return (len(list(descriptors.iterdir())) if descriptors.exists() else 0), threading.active_count()


@pytest.fixture
def nothing_leaks():
    """The test ends with as many descriptors and threads as it began with."""
    before = _held()
    yield
    assert _held() == before
