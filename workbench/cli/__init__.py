"""The `workbench` command. Results go to stdout, progress and logs to stderr; README.md lists the exit statuses."""

import io
import os
import sys

from cyclopts import App, CycloptsError, Parameter

from workbench import __version__
from workbench.address_space import check_address_space
from workbench.cli.values import check_variables, check_words, number_as_written
from workbench.errors import BadInput, UnmetPrerequisite, one_line, shortened
from workbench.interrupts import sigterm_as_interrupt

app = App(
    name="workbench",
    help="Which SSD reads of a mixture-of-experts model can be hidden behind compute, and which mechanism pays?",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(converter=number_as_written),
)


def main() -> None:
    """Entry point: registers the commands, runs one, turns errors into one line and an exit status."""
    # UTF-8 whatever the locale
    words = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv[1:]]
    _open_standard_streams()
    with sigterm_as_interrupt():
        try:
            check_address_space()
            from workbench.cli import commands

            commands.register(app, words[0] if words else None)
            status = run(words)
        except KeyboardInterrupt:
            # while it starts there is nothing to tell
            status = 130
        except UnmetPrerequisite as error:
            status = _refused(error)
    sys.exit(status)


def _open_standard_streams() -> None:
    """Gives closed standard streams to the null device (MLX can't read a file whose descriptor is 0); the others are UTF-8."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def run(tokens: list[str]) -> int:
    """Runs one command line and returns its exit status; a command returns its status, or None for 0."""
    try:
        check_words(tokens)
        check_variables()
        status = app(tokens, exit_on_error=False, print_error=False)
        return status if isinstance(status, int) else 0
    except CycloptsError as error:
        said = one_line(shortened(" ".join(str(error).split()), 300))
        print(f"workbench: {said} (see workbench {_command(tokens)}--help)", file=sys.stderr)
        return BadInput.exit_code
    except (BadInput, UnmetPrerequisite) as error:
        return _refused(error)
    except KeyboardInterrupt as stop:
        # its argument, if there is one, says how to resume
        print("; ".join(["workbench: interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the program that reads the output (head, less) has ended; nothing may be flushed into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError as error:
        return _refused(UnmetPrerequisite(f"not enough memory ({error}): close other programs, or ask for less"))
    except OSError as error:
        # a disk that is full, unreadable or broken: the error's text says what and where
        print(f"workbench: {one_line(str(error))}", file=sys.stderr)
        return BadInput.exit_code


def _refused(error: BadInput | UnmetPrerequisite) -> int:
    print(f"workbench: {one_line(str(error))}", file=sys.stderr)
    return error.exit_code


def _command(tokens: list[str]) -> str:
    known = bool(tokens) and not tokens[0].startswith("-") and tokens[0] in set(app)
    return f"{tokens[0]} " if known else ""
