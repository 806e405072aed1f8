import sys

import pytest

from workbench.errors import UnmetPrerequisite
from workbench.readers import PreadReader, UringReader, choice, open_reader, quick_switching, uring
from workbench.readers.ring import ring_refusal

DEPTH = {"expert": 2, "ple": 3}


@pytest.mark.skipif(ring_refusal() is not None, reason="no io_uring")
@pytest.mark.parametrize("uncached", [True, False])
def test_reads_go_by_io_uring(uncached):
    with open_reader(uncached=uncached, depth=DEPTH, coalesce_bytes=0) as reader:
        assert isinstance(reader, UringReader)
        assert (reader.config.depth, reader.config.uncached, reader.config.coalesce_bytes) == (DEPTH, uncached, 0)


@pytest.mark.parametrize("uncached", [True, False])
def test_without_io_uring_threads_read(monkeypatch, uncached):
    monkeypatch.setattr(choice, "ring_refusal", lambda: "switched off")
    with open_reader(uncached=uncached, depth=DEPTH, coalesce_bytes=0) as reader:
        assert isinstance(reader, PreadReader)
        assert (reader.config.threads, reader.config.uncached, reader.config.coalesce_bytes) == (DEPTH, uncached, 0)


def test_without_io_uring_its_reader_says_what_to_use(monkeypatch):
    monkeypatch.setattr(uring, "ring_refusal", lambda: "the kernel refuses")
    with pytest.raises(UnmetPrerequisite, match="use the thread pool"):
        UringReader()


def test_only_linux_has_io_uring(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in ring_refusal.__wrapped__()


def test_quick_switching_ends_with_its_block():
    before = sys.getswitchinterval()
    with quick_switching(1e-4):
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == before
