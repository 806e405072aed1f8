"""How commands print: markdown tables for people, one JSON document for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

JSON_VERSION = 1


def print_json(kind: str, content: Mapping[str, Any]) -> None:
    """One JSON document on stdout, with its schema version; units stand in the keys."""
    print(json.dumps({"schema_version": JSON_VERSION, "kind": kind, **content}, indent=1, default=str))


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """A markdown table on stdout; columns are the keys of the first row, numbers are right-aligned."""
    if title:
        print(f"\n**{title}**\n")
    if not rows:
        print("(nothing)")
        return
    columns = list(rows[0])
    cells = [[format_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [all(_is_number(row.get(column)) for row in rows) for column in columns]
    widths = [max(3, len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    print("| " + " | ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(columns, widths, numeric, strict=True)) + " |")
    print("|" + "|".join("-" * (w + 1) + ":" if n else "-" * (w + 2) for w, n in zip(widths, numeric, strict=True)) + "|")
    for line in cells:
        print("| " + " | ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True)) + " |")


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def format_cell(value: Any) -> str:
    """Integers with thousands separators, floats with four significant digits, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)
