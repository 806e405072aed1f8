"""How commands print: markdown tables for people, one JSON document for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.files import json_text
from workbench.markdown import markdown_table

JSON_VERSION = 1


def print_json(kind: str, content: Mapping[str, Any]) -> None:
    """Prints one document of strict JSON with its schema version to stdout; units are part of the keys."""
    print(json_text({"schema_version": JSON_VERSION, "kind": kind, **content}, indent=1))


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Prints a markdown table to stdout, with its title above."""
    if title:
        print(f"\n**{title}**\n")
    print(markdown_table(rows))
