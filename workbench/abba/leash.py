"""Runs a command; kills the command and all its children once the script's standard input closes.

The parent process holds the write end of that pipe, so a parent that was killed leaves no arm running. The script is started
by path, not as a module, so that it imports nothing of the package. It must lead its own session: it kills its process group.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Exit status of the command, or `128 + signal` when a signal ended it."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_with_the_pipe() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
