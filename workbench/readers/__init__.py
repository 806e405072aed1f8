"""How bytes move: readers behind one interface (`submit`, `poll`)."""

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.files import aligned_buffer
from workbench.readers.pread import PreadConfig, PreadReader

__all__ = ["Completion", "PreadConfig", "PreadReader", "Read", "Reader", "aligned_buffer"]
