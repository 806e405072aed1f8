"""Commands that only hold other commands, such as `workbench bench`."""

from typing import Annotated

from cyclopts import App, Parameter

from workbench.errors import BadInput, did_you_mean


def command_group(name: str, about: str, example: str) -> App:
    """An empty group of commands: alone it shows its help; an unknown command is refused with the nearest name."""
    group = App(name=name)

    def overview(*words: Annotated[str, Parameter(show=False)]) -> None:
        if words:
            known = [known for known in group if not known.startswith("-")]
            hint = did_you_mean(words[0], known, otherwise=f"see workbench {name} --help")
            raise BadInput(f"no such command: {name} {words[0]!r}; {hint}")
        group.help_print()

    overview.__doc__ = f"{about}\n\nExample: workbench {example}"
    group.default(overview)
    return group
