"""Linux io_uring through ctypes: a batch of reads costs one system call, completions are read from shared memory.

There is no extension to compile and no thread to pass reads on. A short call keeps the GIL (`ctypes.PyDLL`), a wait releases
it (`ctypes.CDLL`). Layouts and numbers are those of the kernel's `include/uapi/linux/io_uring.h`.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from functools import cache

_SETUP, _ENTER = 425, 426
OP_READV, OP_READ = 1, 22
_OFFSET_SQES = 0x10000000
_GETEVENTS, _EXT_ARG = 1, 8
_FEAT_SINGLE_MMAP, _FEAT_EXT_ARG = 1, 1 << 8
# opcode, flags, priority, descriptor, offset, address, length, flags of the read, user data; padding to 64 bytes
_SQE = struct.Struct("=BBHiQQIIQ24x")
# user data, result, flags
_CQE = struct.Struct("=QiI")
_PARAMS = struct.Struct("=30I")
_TIMESPEC = struct.Struct("=qq")
_WAIT_ARG = struct.Struct("=QIIQ")


_HARDLINK = 8
"""`IOSQE_IO_HARDLINK`: the next entry starts when this one has ended, with or without an error."""
ASYNC = 16
"""`IOSQE_ASYNC`: a worker of the kernel does the read, even where its pages are cached."""
_FLAGS_AT, _TOKEN_TOP_AT = 1, 39
"""Bytes of an entry: its flags, and the most significant one of its token."""
LAST = 1 << 63
"""Set in the token of the last entry of a chain."""


def entry(opcode: int, token: int, descriptor: int, offset: int, address: int, length: int, flags: int = 0) -> bytes:
    """`OP_READ` of `length` bytes to `address`, or `OP_READV` into `length` iovecs at `address`: a chain of one entry."""
    return _SQE.pack(opcode, flags, 0, descriptor, offset, address, length, 0, token | LAST)


def chained(entries: Sequence[bytes], length: int) -> bytearray:
    """The entries side by side, in chains of `length`: the kernel starts each one when the one before has ended."""
    made = bytearray(b"".join(entries))
    for number in range(len(entries) - 1 if length > 1 else 0):
        if (number + 1) % length:
            at = number * _SQE.size
            made[at + _FLAGS_AT] |= _HARDLINK
            made[at + _TOKEN_TOP_AT] &= 0x7F
    return made


@cache
def _libraries() -> tuple[ctypes.PyDLL, ctypes.CDLL]:
    libraries = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)
    for library in libraries:
        library.syscall.restype = ctypes.c_long
    return libraries


@cache
def ring_refusal() -> str | None:
    """Why io_uring can't be used here; None when it can."""
    if sys.platform != "linux":
        return "io_uring exists on Linux only"
    try:
        Ring(1).close()
    except OSError as error:
        return f"the kernel refuses io_uring ({error.strerror}); containers and some distributions switch it off"
    return None


class Ring:
    """One submission and one completion queue. `push` fills entries, `enter` submits them to the kernel."""

    def __init__(self, entries: int) -> None:
        """At most `entries` (rounded up to a power of two) between two calls of `enter`. Raises OSError when refused."""
        self._keep_gil, self._free_gil = _libraries()
        self.stuck = False
        """The kernel refused some pushed entries for now: call `enter` again, because a `wait` for completions may never end."""
        params = ctypes.create_string_buffer(_PARAMS.size)
        self._descriptor = self._free_gil.syscall(_SETUP, entries, params)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        values = _PARAMS.unpack(params.raw)
        num_sqes, num_cqes, features = values[0], values[1], values[5]
        if features & (_FEAT_SINGLE_MMAP | _FEAT_EXT_ARG) != _FEAT_SINGLE_MMAP | _FEAT_EXT_ARG:
            os.close(self._descriptor)
            raise OSError(errno.ENOSYS, "io_uring of Linux 5.11 or later is needed")
        self._map(num_sqes, num_cqes, sq=values[10:20], cq=values[20:30])

    def _map(self, num_sqes: int, num_cqes: int, sq: tuple[int, ...], cq: tuple[int, ...]) -> None:
        size = max(sq[6] + 4 * num_sqes, cq[5] + _CQE.size * num_cqes)
        self._rings = mmap.mmap(self._descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._sqes = mmap.mmap(
            self._descriptor, _SQE.size * num_sqes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_OFFSET_SQES
        )
        # heads and tails as ctypes integers: the kernel reads them at any time, so each must be written by one store instruction
        heads = [ctypes.c_uint32.from_buffer(self._rings, offset) for offset in (sq[0], sq[1], cq[0], cq[1])]
        self._sq_head, self._sq_tail, self._cq_head, self._cq_tail = heads
        self._tail = self._sq_tail.value
        self._sq_mask, self._cq_mask, self._first_cqe = num_sqes - 1, num_cqes - 1, cq[5]
        struct.pack_into(f"={num_sqes}I", self._rings, sq[6], *range(num_sqes))

    @property
    def room(self) -> int:
        """Entries that can be pushed before the next `enter`."""
        return self._sq_mask + 1 - (self._tail - self._sq_head.value & 0xFFFFFFFF)

    def push(self, entries: bytes | bytearray) -> None:
        """Queues at most `room` entries for `enter`. Memory and iovecs must live until the completion with their token."""
        count = len(entries) // _SQE.size
        start = (self._tail & self._sq_mask) * _SQE.size
        until_wrap = min(len(entries), len(self._sqes) - start)
        self._sqes[start : start + until_wrap] = entries[:until_wrap]
        self._sqes[: len(entries) - until_wrap] = entries[until_wrap:]
        self._tail = self._tail + count & 0xFFFFFFFF

    def enter(self, *, keep_gil: bool) -> None:
        """Submits the pushed entries. Entries that the kernel refuses stay pushed for the next call, and `stuck` is set."""
        library = self._keep_gil if keep_gil else self._free_gil
        self.stuck = False
        self._sq_tail.value = self._tail
        while (waiting := self._tail - self._sq_head.value & 0xFFFFFFFF) > 0:
            if library.syscall(_ENTER, self._descriptor, waiting, 0, 0, None, ctypes.c_size_t(0)) >= 0:
                continue
            if (code := ctypes.get_errno()) in (errno.EAGAIN, errno.EBUSY):
                self.stuck = True
                return
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def wait(self, timeout_ns: int | None = None, count: int = 1) -> None:
        """Sleeps, without the GIL, until `count` completions are ready, a signal arrives or `timeout_ns` has passed."""
        argument, size, flags = None, 0, _GETEVENTS
        if timeout_ns is not None:
            time = ctypes.create_string_buffer(_TIMESPEC.pack(*divmod(timeout_ns, 1_000_000_000)), _TIMESPEC.size)
            argument = ctypes.create_string_buffer(_WAIT_ARG.pack(0, 0, 0, ctypes.addressof(time)), _WAIT_ARG.size)
            size, flags = _WAIT_ARG.size, _GETEVENTS | _EXT_ARG
        if self._free_gil.syscall(_ENTER, self._descriptor, 0, count, flags, argument, ctypes.c_size_t(size)) < 0:
            code = ctypes.get_errno()
            if code not in (errno.EINTR, errno.ETIME, errno.EAGAIN, errno.EBUSY):
                raise OSError(code, os.strerror(code))

    def reap(self) -> list[tuple[int, int, int]]:
        """`(token, result, flags)` of all completions; a result is bytes read, or minus the error number. No system call."""
        head, tail = self._cq_head.value, self._cq_tail.value
        if head == tail:
            return []
        start, count = head & self._cq_mask, tail - head & 0xFFFFFFFF
        first = min(count, self._cq_mask + 1 - start)
        done = [*_CQE.iter_unpack(self._cqes(start, first)), *_CQE.iter_unpack(self._cqes(0, count - first))]
        self._cq_head.value = tail
        return done

    def _cqes(self, start: int, count: int) -> bytes:
        position = self._first_cqe + _CQE.size * start
        return self._rings[position : position + _CQE.size * count]

    def close(self) -> None:
        """Unmaps and closes. Nothing may be in flight."""
        del self._sq_head, self._sq_tail, self._cq_head, self._cq_tail
        self._rings.close()
        self._sqes.close()
        os.close(self._descriptor)
