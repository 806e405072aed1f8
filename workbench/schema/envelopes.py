"""Envelopes: what a disk gives, in the four numbers that its model needs. Measured by Gate A, or taken from a source."""

import json
import re
from pathlib import Path

from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.geometry import FLASH_NEXT, Geometry
from workbench.paths import data_folder


class Recommendation(Config):
    """How a class of reads is best done on a disk, and what that gives."""

    reader: str
    """uring, pread, buffered or mmap."""
    depth: int = Field(ge=1)
    """Reads in flight."""
    read_bytes: int = Field(gt=0)
    """Size of one read."""
    bandwidth_gbps: float = Field(gt=0)
    """Median of its repeats, decimal GB/s."""
    reads_per_s: float = Field(gt=0)
    """Median of its repeats."""
    p50_us: float = Field(gt=0)
    """Median time from submit to ready, microseconds."""
    spread: float = Field(ge=0)
    """Half the range of the middle four fifths of its repeats, over their median."""


class Measured(Config):
    """Where a measured envelope holds, and what follows from it; written by Gate A."""

    profile: str
    """Whose record and page sizes were read."""
    machine: str
    """Digest of the machine."""
    filesystem: str
    """Identity of the filesystem."""
    unix_s: float
    """When, seconds since 1970."""
    quiet: bool
    """Whether nothing else worth mentioning ran meanwhile; else the disk may give more than it says."""
    expert: Recommendation
    """For records."""
    ple: Recommendation
    """For pages."""
    sequential_from: float = Field(gt=0)
    """Share of a layer's records from which one sequential extent is faster; above 1: never."""
    split_components: bool
    """Whether gate+up and down may be read apart: at equal bytes in flight that costs no bandwidth that matters."""


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
    measured: Measured | None = None
    """Of an envelope that Gate A measured."""

    def slowed(self, times: float) -> "Envelope":
        """A disk whose transfers take so many times as long; latency and reads a second stay."""
        return self.model_copy(
            update={
                "name": slowed_name(self.name, times),
                "device": f"{self.device}, its transfers slowed {times:g} times",
                "stream_gbps": self.stream_gbps / times,
                "bandwidth_gbps": self.bandwidth_gbps / times,
            }
        )

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


def slowed_name(name: str, times: float) -> str:
    """Name of an envelope whose transfers take so many times as long, to six digits: `load_envelope` knows it."""
    return f"{name}-slowed-{times:g}"


def in_proportion(name: str, geometry: Geometry) -> str:
    """Name of a disk slowed by as much as records are smaller than Flash-Next's: they take as long, their padding apart."""
    return slowed_name(name, FLASH_NEXT.record_bytes / geometry.record_bytes)


def load_envelope(name: str) -> Envelope:
    """An envelope by the name of a bundled one, by that of a slowed one, or by its path.

    `m5-pro-2tb-slowed-100` is the bundled `m5-pro-2tb` as `slowed(100)`. Raises BadInput when there is none.
    """
    if name.endswith(".json"):
        return Envelope.from_json(Path(name))
    bundled = sorted(path.stem for path in (data_folder() / "envelopes").glob("*.json"))
    slowed = _SLOWED.fullmatch(name)
    plain = slowed["name"] if slowed else name
    if plain not in bundled:
        raise BadInput(f"no envelope {plain!r}; bundled are {', '.join(bundled)}, or give a path ending in .json")
    envelope = Envelope.from_json(data_folder() / "envelopes" / f"{plain}.json")
    return envelope.slowed(float(slowed["times"])) if slowed else envelope


_SLOWED = re.compile(r"(?P<name>.+)-slowed-(?P<times>(?=.*[1-9])\d{1,6}(\.\d{1,6})?)", re.ASCII)
