"""How bytes move: readers behind one interface (`submit`, `poll`)."""

from workbench.readers.base import Checksum, ChecksumMismatch, Completion, Read, Reader
from workbench.readers.choice import open_reader, quick_switching
from workbench.readers.clock import Clock, RealClock, VirtualClock
from workbench.readers.disk import Disk
from workbench.readers.faulty import Fault, FaultKind, FaultyReader
from workbench.readers.files import aligned_buffer
from workbench.readers.mmap import MmapReader
from workbench.readers.null import NullReader
from workbench.readers.paced import PacedReader
from workbench.readers.pread import PreadConfig, PreadReader
from workbench.readers.shuffled import ShuffledReader
from workbench.readers.timed import TimedReader
from workbench.readers.uring import UringConfig, UringReader

__all__ = [
    "Checksum",
    "ChecksumMismatch",
    "Clock",
    "Completion",
    "Disk",
    "Fault",
    "FaultKind",
    "FaultyReader",
    "MmapReader",
    "NullReader",
    "PacedReader",
    "PreadConfig",
    "PreadReader",
    "Read",
    "Reader",
    "RealClock",
    "ShuffledReader",
    "TimedReader",
    "UringConfig",
    "UringReader",
    "VirtualClock",
    "aligned_buffer",
    "open_reader",
    "quick_switching",
]
