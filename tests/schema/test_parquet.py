import errno
from pathlib import Path

import polars as pl
import pytest

from workbench.schema.parquet import write_parquet

OLD, NEW = pl.DataFrame({"x": [1]}), pl.DataFrame({"x": [1, 2]})


def test_a_table_comes_back_with_what_was_said_of_it(tmp_path):
    write_parquet(NEW, tmp_path / "table.parquet", {"version": "3"})
    assert pl.read_parquet(tmp_path / "table.parquet").equals(NEW)
    assert pl.read_parquet_metadata(tmp_path / "table.parquet")["version"] == "3"


def test_a_full_disk_leaves_the_old_table_and_says_where(tmp_path, monkeypatch):
    path = tmp_path / "table.parquet"
    write_parquet(OLD, path)

    def full(part, content):
        part.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: .*table\.parquet"):
        write_parquet(NEW, path)
    assert [each.name for each in tmp_path.iterdir()] == ["table.parquet"]
    assert pl.read_parquet(path).equals(OLD)
