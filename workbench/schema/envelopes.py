"""Envelopes: a disk's performance in the four figures that the disk model needs, measured by Gate A or from a named source."""

import re
from pathlib import Path

from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.files import read_json_object
from workbench.geometry import FLASH_NEXT, Geometry
from workbench.paths import data_folder


class Recommendation(Config):
    """Recommended reader and depth for reads of one size on a disk, with their measured performance."""

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
    """Half the distance from the 10th to the 90th percentile of its repeats, divided by their median."""


class Measured(Config):
    """Profile, machine and filesystem that a measured envelope is valid for, and recommendations; written by Gate A."""

    profile: str
    """Profile whose record and page sizes were read."""
    machine: str
    """Digest of the machine."""
    filesystem: str
    """Identity of the filesystem."""
    unix_s: float
    """Time of the measurement, seconds since 1970."""
    quiet: bool
    """Whether other programs were idle meanwhile; if not, the disk may be faster than measured."""
    expert: Recommendation
    """Recommendation for records."""
    ple: Recommendation
    """Recommendation for n-gram pages."""
    sequential_from: float = Field(gt=0)
    """Share of a layer's records from which reading the layer as one extent is faster; above 1: never."""
    split_components: bool
    """Whether gate+up and down may be read separately: at equal bytes in flight, the loss of bandwidth is negligible."""


class Envelope(Config):
    """Content of `data/envelopes/*.json`."""

    version: int = 1
    """Schema version."""
    name: str
    """Short name of the envelope; the file's name without its suffix."""
    device: str
    """Machine and disk, in words."""
    source: str
    """Source of the figures."""
    latency_us: float = Field(gt=0)
    """Time of one 4 KiB read alone, without its transfer, microseconds."""
    stream_gbps: float = Field(gt=0)
    """Highest transfer rate of one read alone, decimal GB/s."""
    bandwidth_gbps: float = Field(gt=0)
    """Highest transfer rate of all reads together, decimal GB/s."""
    iops: float = Field(gt=0)
    """Most reads per second, however small."""
    assumed: tuple[str, ...] = ()
    """Fields that the source doesn't give: each is an assumption, explained in `notes`."""
    notes: str = ""
    """How the fields follow from the source."""
    measured: Measured | None = None
    """Where the envelope is valid and what Gate A recommends; None: Gate A did not measure it."""

    def slowed(self, times: float) -> "Envelope":
        """The envelope with transfers that take `times` as long; latency and reads per second are unchanged."""
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
        """Reads an envelope. Raises BadInput when the file is missing, is not JSON or has other fields."""
        return cls.build(read_json_object(path))


def slowed_name(name: str, times: float) -> str:
    """Name, for `load_envelope`, of the envelope `name` with transfers that take `times` (to six digits) as long."""
    return f"{name}-slowed-{times:g}"


def in_proportion(name: str, geometry: Geometry) -> str:
    """Name of an envelope slowed by (Flash-Next's record bytes) / (`geometry`'s): a record takes as long, padding aside."""
    return slowed_name(name, FLASH_NEXT.record_bytes / geometry.record_bytes)


def load_envelope(name: str) -> Envelope:
    """The envelope for a bundled name, a bundled name with `-slowed-<times>`, or the path of a JSON file.

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
