"""A gate's tables and figures as files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from workbench.schema.parquet import write_parquet


def save_tables(tables: Mapping[str, pl.DataFrame], artifacts: Path) -> None:
    """Writes each table as `artifacts/tables/NAME.parquet`."""
    (artifacts / "tables").mkdir(exist_ok=True)
    for name, table in tables.items():
        write_parquet(table, artifacts / "tables" / f"{name}.parquet")


def save_figures(figures: Mapping[str, Any], artifacts: Path) -> None:
    """Writes each matplotlib figure as `artifacts/figures/NAME.png`."""
    # matplotlib takes a while to import: only a run that draws pays for it
    from workbench.plots.style import save_figure

    for name, figure in figures.items():
        save_figure(figure, artifacts / "figures" / f"{name}.png")
