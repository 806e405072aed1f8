"""How commands print: markdown tables for people, one JSON document for programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from workbench.files import check_output, check_output_folder, json_text
from workbench.markdown import markdown_table

JSON_VERSION = 1
OutputFile = Annotated[Path, Parameter(validator=lambda _, path: path and check_output(path))]
"""Path of a file to write, checked before the command starts."""
OutputFolder = Annotated[Path, Parameter(validator=lambda _, path: path and check_output_folder(path))]
"""Path of a folder to write in, checked before the command starts."""


def print_json(kind: str, content: Mapping[str, Any]) -> None:
    """Prints one document of strict JSON with its schema version to stdout; units are part of the keys."""
    print(json_text({"schema_version": JSON_VERSION, "kind": kind, **content}, indent=1))


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Prints a markdown table to stdout, with its title above."""
    if title:
        print(f"\n**{title}**\n")
    print(markdown_table(rows))
