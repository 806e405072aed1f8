"""Ranges of bytes in a file."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Extent:
    """A run of bytes at an absolute file offset."""

    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        """The file offset behind the last byte."""
        return self.offset + self.num_bytes
