"""Starts the command line: an interrupt while its modules are imported ends the program without a traceback."""

import sys


def main() -> None:
    """Entry point of the `workbench` program."""
    try:
        from workbench.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()
