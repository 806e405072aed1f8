"""Markdown tables, the same on a terminal, in a notebook and in MLflow."""

from collections.abc import Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table whose columns are the keys of the first row; columns of numbers are right-aligned."""
    if not rows:
        return "(nothing)"
    columns = list(rows[0])
    cells = [[format_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [all(_is_number(row.get(column)) for row in rows) for column in columns]
    widths = [max(3, len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    rule = "|".join("-" * (w + 1) + ":" if n else "-" * (w + 2) for w, n in zip(widths, numeric, strict=True))
    lines = [_line(columns, widths, numeric), f"|{rule}|", *(_line(line, widths, numeric) for line in cells)]
    return "\n".join(lines)


def format_cell(value: Any) -> str:
    """A cell as text: integers with thousands separators, floats with four significant digits, None and NaN as a dash."""
    if value is None or value != value:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    # a cell stays in its cell
    return " ".join(str(value).replace("|", "\\|").splitlines())


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
