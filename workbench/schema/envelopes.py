"""Envelopes: what a disk gives, in the four numbers that its model needs. Measured by Gate A, or taken from a source."""

import json
from pathlib import Path

from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput


class Envelope(Config):
    """Content of `data/envelopes/*.json`."""

    version: int = 1
    """Schema version."""
    name: str
    """Short name; the file's name without its suffix."""
    device: str
    """Machine and disk, in words."""
    source: str
    """Where the figures come from."""
    latency_us: float = Field(gt=0)
    """Time of one 4 KiB read alone, without its transfer, microseconds."""
    stream_gbps: float = Field(gt=0)
    """Most that one read alone transfers, decimal GB/s."""
    bandwidth_gbps: float = Field(gt=0)
    """Most that all reads together transfer, decimal GB/s."""
    iops: float = Field(gt=0)
    """Most reads a second, however small."""
    assumed: tuple[str, ...] = ()
    """Fields that the source doesn't give: each is an assumption, said in `notes`."""
    notes: str = ""
    """How the fields follow from the source."""

    @classmethod
    def from_json(cls, path: Path) -> "Envelope":
        """Reads an envelope. Raises BadInput when the file is missing, is not JSON or says something else."""
        try:
            values = json.loads(path.read_text())
        except FileNotFoundError:
            raise BadInput(f"no such envelope: {path}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None
        return cls.build(values)
