"""Commands that only hold other commands, such as `workbench bench`."""

from difflib import get_close_matches
from typing import Annotated

from cyclopts import App, Parameter

from workbench.errors import BadInput


def command_group(name: str, about: str, example: str) -> App:
    """A group without commands yet: alone it shows its help, and a word that is no command suggests the nearest."""
    group = App(name=name)

    def overview(*words: Annotated[str, Parameter(show=False)]) -> None:
        if words:
            near = get_close_matches(words[0], [known for known in group if not known.startswith("-")], n=1)
            hint = f"; did you mean {near[0]}?" if near else f" (see workbench {name} --help)"
            raise BadInput(f"no such command: {name} {words[0]!r}" + hint)
        group.help_print()

    overview.__doc__ = f"{about}\n\nExample: workbench {example}"
    group.default(overview)
    return group
