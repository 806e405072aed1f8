"""What this machine is and can do: identity for results, memory, swap, page cache. Nothing here measures speed."""

import ctypes
import functools
import hashlib
import mmap
import os
import platform
import re
import resource
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from workbench.units import KIB


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Identity of the machine a result was made on."""

    system: str
    release: str
    architecture: str
    cpu: str
    num_cores: int
    memory_bytes: int
    virtual_machine: bool
    """True where a hypervisor is seen: then `mincore` tells of the guest's page cache only."""

    @property
    def digest(self) -> str:
        """Twelve hex digits that name this machine in result keys; no host name goes in."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:12]


@functools.cache
def machine() -> Machine:
    """The machine that runs this process."""
    return Machine(
        system=platform.system(),
        release=platform.release(),
        architecture=platform.machine(),
        cpu=_cpu_name(),
        num_cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        virtual_machine=_in_virtual_machine(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _in_virtual_machine() -> bool:
    try:
        return "hypervisor" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def peak_rss_bytes() -> int:
    """The kernel's peak resident set of this process.

    On Linux `VmHWM`: `ru_maxrss` there starts at the size of the process that forked this one.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Path("/proc/self/status").read_text().splitlines()
    return KIB * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def swap_out_bytes() -> int:
    """Bytes swapped out since boot; compare two readings."""
    return psutil.swap_memory().sout


def memory_pressure() -> float:
    """Share of memory that is not available, 0 to 1."""
    memory = psutil.virtual_memory()
    return 1 - memory.available / memory.total


def free_disk_bytes(folder: Path) -> int:
    """Free bytes of the filesystem that holds `folder` or its nearest existing parent."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def drop_from_page_cache(path: Path) -> None:
    """Asks the kernel to drop a file's clean pages. It may not obey: check with `cached_fraction`."""
    if not hasattr(os, "posix_fadvise"):
        _invalidate(path)
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _invalidate(path: Path) -> None:
    """Drops a file's pages where `posix_fadvise` is missing (macOS): a shared mapping of it is invalidated."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        os.fsync(file.fileno())
        pages = np.frombuffer(view, dtype=np.uint8)
        ctypes.CDLL(None).msync(ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(view)), _MS_INVALIDATE)
        del pages


_MS_INVALIDATE = 2
"""macOS's and Linux's `sys/mman.h`."""


def cached_fraction(path: Path, offset: int = 0, num_bytes: int | None = None) -> float:
    """Share of a file's pages in the page cache by `mincore`; in a virtual machine that is the guest's cache only.

    `offset` (a multiple of the allocation granularity) and `num_bytes` choose a part of the file; by default all of it.
    """
    num_bytes = path.stat().st_size - offset if num_bytes is None else num_bytes
    if num_bytes == 0:
        return 0.0
    libc = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file, mmap.mmap(file.fileno(), num_bytes, mmap.MAP_PRIVATE, protection, offset=offset) as view:
        pages = -(-num_bytes // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        anchor = ctypes.c_char.from_buffer(view)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(num_bytes), flags)
        del anchor
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore failed on {path}")
        return (pages - bytes(flags).translate(_NOT_RESIDENT).count(1)) / pages


_NOT_RESIDENT = bytes(1 - (flag & 1) for flag in range(256))
"""1 for each flag of `mincore` whose lowest bit says that the page is not in memory."""


def prefer_huge_pages(start: int, num_bytes: int) -> None:
    """Puts memory of this process on pages of 2 MiB where the kernel has them (Linux); its content stays, nothing is promised.

    An uncached read pins the pages that it fills and gives the disk a segment for each run of them: 675 pages of 4 KiB for a
    record of 2.7 MB, 2 or 3 huge ones. On a disk of 2 GB/s they doubled the rate of such reads, fio's too, at a third of the CPU.

    Args:
        start: address of the first byte.
        num_bytes: bytes from there on; pages that lie across an end stay as they are.
    """
    if sys.platform != "linux":
        return
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(0, last - first)), advice)


def huge_page_bytes(start: int, num_bytes: int) -> int:
    """Bytes on huge pages in the mappings that hold `num_bytes` from address `start` on; 0 where the kernel does not tell."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    found, inside = 0, False
    for line in lines:
        if bounds := _MAPPING.match(line):
            inside = int(bounds[1], 16) < start + num_bytes and start < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            found += KIB * int(line.split()[1])
    return found


_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_MADV_COLLAPSE = 25
"""Moves pages that are in use to huge ones at once; `include/uapi/asm-generic/mman-common.h`, since Linux 6.1."""


def filesystem_identity(folder: Path) -> str:
    """Names the filesystem that holds `folder` or its nearest existing parent: type, device, id and size; no path."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    mounts = {Path(part.mountpoint): part for part in psutil.disk_partitions(all=True)}
    mount = next((mounts[parent] for parent in (folder, *folder.parents) if parent in mounts), None)
    about = os.statvfs(folder)
    kind = f"{mount.fstype} on {mount.device}" if mount else "unknown"
    return f"{kind}, id {about.f_fsid:x}, {about.f_blocks * about.f_frsize} bytes"
