"""Settings and output that the commands of `workbench simulate` share."""

from typing import Annotated, Any

from cyclopts import Parameter

from workbench.cli.output import print_json, print_table
from workbench.schema import Result, RunFolder

Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]
"""`--set key=value` options; may be repeated."""


def result_of(folder: RunFolder) -> Result:
    """The result of a run that has finished."""
    result = folder.result
    if result is None:
        raise ValueError(f"{folder.path} has no result")
    return result


def show(folder: RunFolder, table: str, title: str, *, json: bool) -> None:
    """Prints a table of the run and its folder, or one JSON document with the whole result."""
    result = result_of(folder)
    if json:
        print_json("simulate", {"folder": str(folder.path), **result.model_dump(mode="json")})
        return
    print_table(rounded(result.tables[table]), title)
    if "twin" in result.tags:
        print(f"\n{result.tags['twin']}")
    print(f"\nresult folder: {folder.path}")


def rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with floats as text of four significant digits."""
    return [{name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows]
