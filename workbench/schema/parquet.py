"""Tables in files: read or refused in one line, written atomically. No other module calls the readers of polars."""

import contextlib
import errno
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from workbench.errors import BadInput
from workbench.files import open_regular, replacing, write_atomically
from workbench.units import GIB, MIB

MAX_ROWS = 50_000_000
"""Most rows of a table that is read."""
_FREE_ROWS, _ROWS_PER_BYTE = 1 << 16, 4
"""Rows that a small file may claim, and further rows per byte: events take about 15 bytes each, repeated rows of routes 0.5."""
_FREE_VALUES, _VALUES_PER_BYTE = 1 << 26, 64
"""Values that lists of a small file may hold, and further ones per byte: top-10 routes that repeat have 40 per byte."""
_FREE_TEXT_BYTES, _TEXT_BYTES_PER_ROW = 16 * MIB, 1024
"""Bytes of strings that a table may hold, and further ones per row: equal strings share memory only until code takes them out."""
MAX_JSON_LINES_BYTES = 4 * GIB
"""Largest JSON Lines file that is read: 40 million rows of top-10 routes; convert a larger one to parquet."""
_BATCH_ROWS = 1 << 15
"""Rows of a lazy table that are written together: more of them take more memory and make hardly smaller files."""


def write_parquet(frame: pl.DataFrame | pl.LazyFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table whole or not at all; rows of a lazy table pass through memory in batches.

    Raises OSError, also on a full disk, for which polars has an error of its own.
    """
    if isinstance(frame, pl.LazyFrame):
        _stream(frame, path, dict(metadata or {}))
        return
    content = io.BytesIO()
    frame.write_parquet(content, metadata=dict(metadata or {}))
    write_atomically(path, content.getvalue())


def _stream(frame: pl.LazyFrame, path: Path, metadata: dict[str, str]) -> None:
    with replacing(path) as part:
        try:
            frame.sink_parquet(part, metadata=metadata, row_group_size=_BATCH_ROWS)
        except pl.exceptions.PolarsError as error:
            raise OSError(errno.EIO, str(error)) from None


def read_parquet(path: Path) -> pl.DataFrame:
    """The table of a parquet file. Raises BadInput unless it is a readable regular file with a plausible number of rows."""
    check_parquet(path)
    with _one_line(path):
        frame = pl.read_parquet(path, glob=False)
    text_bytes = sum(int(column.str.len_bytes().sum()) for column in frame.select(pl.col(pl.String)))
    if text_bytes > _FREE_TEXT_BYTES + _TEXT_BYTES_PER_ROW * frame.height:
        raise BadInput(f"{path} claims {text_bytes:,} bytes of text in {frame.height:,} rows: refused")
    return frame


def parquet_metadata(path: Path) -> dict[str, str]:
    """The metadata of a parquet file. Raises BadInput as `check_parquet` does."""
    with _one_line(path), os.fdopen(open_regular(path), "rb") as file:
        return pl.read_parquet_metadata(file)


def read_json_lines(path: Path) -> pl.DataFrame:
    """The table of a JSON Lines file; columns and types follow from all of its rows. Raises BadInput on any other file."""
    with _one_line(path, "JSON Lines"), os.fdopen(open_regular(path, MAX_JSON_LINES_BYTES), "rb") as file:
        return pl.read_ndjson(file, infer_schema_length=None)


def check_parquet(path: Path) -> None:
    """Raises BadInput unless `path` is a parquet file that does not claim more rows than its bytes can hold."""
    num_bytes = os.stat(path).st_size if path.is_file() else 0
    parquet_metadata(path)
    with _one_line(path):
        num_rows = scan_parquet([path]).select(pl.len()).collect().item()
        has_lists = any(kind.is_nested() for kind in scan_parquet([path]).collect_schema().dtypes())
    if num_rows > min(MAX_ROWS, _FREE_ROWS + _ROWS_PER_BYTE * num_bytes):
        raise BadInput(f"{path} claims {num_rows:,} rows in {num_bytes:,} bytes: refused")
    if has_lists and (num_values := _num_values(path)) > _FREE_VALUES + _VALUES_PER_BYTE * num_bytes:
        raise BadInput(f"{path} claims {num_values:,} values in {num_bytes:,} bytes: refused")


def _num_values(path: Path) -> int:
    """Values in all columns of a parquet file, those within lists included; polars does not tell."""
    # costs 0.15 s, hence for files with lists alone
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        found = read_metadata(path)
    except (ArrowException, OSError) as error:
        raise BadInput(f"{path} is not a readable parquet file ({str(error).splitlines()[0][:200]})") from None
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    return sum(group.column(number).num_values for group in groups for number in range(group.num_columns))


@contextlib.contextmanager
def _one_line(path: Path, kind: str = "parquet") -> Iterator[None]:
    """Turns errors of polars into one line; PanicException, for some damaged pages, is no subclass of Exception."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BadInput(f"{path} is not a readable {kind} file ({reason})") from None


def scan_parquet(paths: Sequence[Path]) -> pl.LazyFrame:
    """The rows of tables one behind the other, read when they are needed; a path is a name, never a pattern."""
    return pl.scan_parquet(list(paths), glob=False)
