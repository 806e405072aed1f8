"""Runs a command and kills it, with all its children, once its own standard input closes.

The one who asked holds the other end of that pipe, so a parent that was killed leaves no arm running. Started by path, not
as a module, so that it costs a bare interpreter. It must lead its own session.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Exit status of the command, `128 + signal` when one ended it."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_with_the_pipe() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
