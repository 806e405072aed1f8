"""Runs a command and acts at its n-th file system call, from outside: the program knows nothing of it. Linux, stdlib only.

    python trace_syscalls.py count -- COMMAND           print the names of the calls, in order
    python trace_syscalls.py kill N [MS] -- COMMAND     SIGKILL before call N takes effect, or MS milliseconds after it was let go
    python trace_syscalls.py interrupt N -- COMMAND     SIGINT at call N, as Ctrl-C sends it
    python trace_syscalls.py fill N FILE -- COMMAND     before call N, fill the disk of FILE with FILE

A seccomp filter stops the tracee at these calls only, and ptrace decides: the same as `strace --inject`, without strace.
Exit status: the command's (137 when it was killed), 99 when this machine forbids tracing.
"""

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
import time

CALLS = ("pwrite64", "fsync", "ftruncate", "rename", "unlink")
_NUMBERS = {"x86_64": (18, 74, 77, 82, 87), "aarch64": (68, 82, 46, 38, 35)}
_TRACEME, _CONT, _SETOPTIONS, _GETEVENTMSG = 0, 7, 0x4200, 0x4201
_OPTIONS = 0x80 | 0x100000 | 0x08 | 0x02 | 0x04  # seccomp stops; kill with the tracer; follow clone, fork, vfork
_EVENT_SECCOMP = 7
_WALL = 0x40000000
_FORBIDDEN = 99

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def filter_program():
    """BPF: load the call's number; for each of ours return TRACE with its index, else ALLOW."""
    numbers = _NUMBERS[platform.machine()]
    code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]
    for index, number in enumerate(numbers):
        code.append(struct.pack("<HBBI", 0x15, 0, 1, number))
        code.append(struct.pack("<HBBI", 0x06, 0, 0, 0x7FF00000 | index))
    code.append(struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000))
    return b"".join(code), len(code)


def become(command):
    """In the child: ask to be traced, install the filter, run the command."""
    content, length = filter_program()
    buffer = ctypes.create_string_buffer(content)
    program = struct.pack("<HxxxxxxQ", length, ctypes.addressof(buffer))
    failed = _libc.ptrace(_TRACEME, 0, None, None) or _libc.prctl(38, 1, 0, 0, 0) or _libc.prctl(22, 2, program, 0, 0)
    if failed:
        os._exit(_FORBIDDEN)
    os.execvp(command[0], command)


def trace(command, at_call):
    """Runs the command; `at_call(n, name, pid)` is called before each call takes effect. Returns the exit status."""
    root = os.fork()
    if root == 0:
        os.setpgid(0, 0)
        become(command)
    _, status = os.waitpid(root, _WALL)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    _libc.ptrace(_SETOPTIONS, root, None, _OPTIONS)
    seen, resumed, pid, pass_on = 0, {root}, root, 0
    while True:
        _libc.ptrace(_CONT, pid, None, pass_on)
        pid, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if pid == root:
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            continue
        stop = os.WSTOPSIG(status)
        pass_on = 0 if stop in (signal.SIGTRAP, signal.SIGSTOP) or pid not in resumed else stop
        resumed.add(pid)
        if status >> 16 == _EVENT_SECCOMP:
            message = ctypes.c_ulong()
            _libc.ptrace(_GETEVENTMSG, pid, None, ctypes.addressof(message))
            at_call(seen, CALLS[message.value], root)
            seen += 1


def fill(path):
    """Writes until the disk is full."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12, 1):
        with contextlib.suppress(OSError):
            while os.write(file, bytes(size)):
                pass
    os.close(file)


def kill(pid, after_ms=0.0):
    """At once, or after a while from a process of its own."""
    if after_ms and os.fork():
        return
    time.sleep(after_ms / 1000)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if after_ms:
        os._exit(0)


def main(action, *words):
    split = words.index("--")
    options, command = words[:split], list(words[split + 1 :])
    names = []

    def at_call(n, name, pid):
        names.append(name)
        if action == "kill" and n == int(options[0]):
            kill(pid, *map(float, options[1:]))
        if action == "interrupt" and n == int(options[0]):
            os.kill(pid, signal.SIGINT)
        if action == "fill" and n == int(options[0]):
            fill(options[1])

    status = trace(command, at_call)
    if action == "count":
        print("\n".join(names))
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
