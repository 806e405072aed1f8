"""Our readers and fio in turn on the same file, sizes and depths: interleaved pairs, ratios with intervals."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.analysis.storage import Median, median_of, spread_of
from workbench.errors import UnmetPrerequisite
from workbench.gates.a_storage.cells import PAGE, RECORD, Cell
from workbench.gates.a_storage.probe import Probe, open_kind, switching
from workbench.readers import Read
from workbench.units import GB, NS_PER_S, NS_PER_US, PAGE_BYTES, align_up

_TIMEOUT_S = 600
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Gives fio's memory huge pages as our readers' memory has (glibc 2.35): without them fio read records half as fast."""
_MISSING = (
    "fio is not installed: `apt-get install fio` (Debian, Ubuntu), `dnf install fio` (Fedora) or `brew install fio` (macOS)"
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Rates of one run of one tool."""

    gbps: float
    reads_per_s: float


def fio_version() -> str:
    """Version of the installed fio. Raises UnmetPrerequisite saying how to install it."""
    if shutil.which("fio") is None:
        raise UnmetPrerequisite(_MISSING)
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout.strip()


def fio_engine() -> str:
    """fio's engine for this machine."""
    return "io_uring" if sys.platform == "linux" else "posixaio"


def fio_command(path: Path, block_bytes: int, depth: int, limit: Sequence[str]) -> list[str]:
    """fio's command line for uncached random reads of whole blocks, each block once; fio does not lay the file out."""
    return [
        "fio", "--name=pair", f"--filename={path}", f"--size={path.stat().st_size}", "--readonly", "--rw=randread", "--direct=1",
        f"--bs={block_bytes}", f"--ioengine={fio_engine()}", f"--iodepth={depth}", "--output-format=json", *limit,
    ]  # fmt: skip


def run_fio(path: Path, block_bytes: int, depth: int, limit: Sequence[str]) -> Rate:
    """Rates of one run of fio. Raises UnmetPrerequisite with fio's message when fio fails."""
    command = fio_command(path, block_bytes, depth, limit)
    huge = {**os.environ, "GLIBC_TUNABLES": _HUGE_PAGES}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=huge)
    except subprocess.TimeoutExpired:
        raise UnmetPrerequisite(f"fio did not end within {_TIMEOUT_S} s: a smaller --file-bytes takes less") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UnmetPrerequisite(f"fio failed: {words[0] if words else f'exit status {done.returncode}'}")
    return parse_fio(done.stdout)


def parse_fio(text: str) -> Rate:
    """Rates from fio's JSON; lines that fio prints before its JSON are skipped."""
    [job] = json.loads(text[text.index("{") :])["jobs"]
    seconds = job["read"]["runtime"] / 1000
    # of short runs fio's own rates are rounded to its sampling; bytes over time are not
    return Rate(gbps=job["read"]["io_bytes"] / seconds / GB, reads_per_s=job["read"]["total_ios"] / seconds)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Rates of pairs of runs, our reader and fio; which of them ran first changes from pair to pair."""

    ours: list[Rate]
    theirs: list[Rate]

    @property
    def ratio(self) -> Median:
        """Bytes per second, our reader / fio."""
        return median_of(self._ratios)

    @property
    def _ratios(self) -> list[float]:
        return [ours.gbps / theirs.gbps for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def row(self, **columns: Any) -> dict[str, Any]:
        """The pairs as a row of a table."""
        ratio = self.ratio
        return {
            **columns,
            "pairs": ratio.count,
            "ours_gbps": median_of([rate.gbps for rate in self.ours]).value,
            "fio_gbps": median_of([rate.gbps for rate in self.theirs]).value,
            "ours_reads_per_s": median_of([rate.reads_per_s for rate in self.ours]).value,
            "fio_reads_per_s": median_of([rate.reads_per_s for rate in self.theirs]).value,
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "spread": spread_of(self._ratios),
        }


REST_S = 1.0
"""Rest before each run, seconds: a hypervisor may give an idle disk credit, and fio takes a third of a second to start."""


def pair(count: int, ours: Callable[[], Rate], theirs: Callable[[], Rate]) -> Pairs:
    """Runs our reader and fio `count` times each, the first of a pair in turn, each run after a rest."""
    pairs = Pairs(ours=[], theirs=[])
    for number in range(count):
        order = ((pairs.ours, ours), (pairs.theirs, theirs))
        for rates, run in order if number % 2 == 0 else order[::-1]:
            time.sleep(REST_S)
            rates.append(run())
    return pairs


def records_against_fio(probe: Probe, reader: str, depth: int, *, pairs: int) -> dict[str, Any]:
    """All records of the file at one depth, by our reader and by fio, `pairs` times."""
    block = align_up(probe.layout.read_bytes(RECORD), PAGE_BYTES)

    rows: list[dict[str, Any]] = []

    def ours() -> Rate:
        rows.append(probe.read_all(Cell(reader=reader, size=RECORD, depth=depth)))
        return Rate(gbps=rows[-1]["bandwidth_gbps"], reads_per_s=rows[-1]["reads_per_s"])

    both = pair(pairs, ours, lambda: run_fio(probe.path, block, depth, []))
    # small records lie across pages, so that windows of ours are longer than fio's blocks
    ours_bytes = round(rows[-1]["physical_bytes"] / rows[-1]["reads"])
    return both.row(size=RECORD, ours_read_bytes=ours_bytes, fio_read_bytes=block, reader=reader, depth=depth)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Many pages submitted in one call."""

    rate: Rate
    submit_us_per_page: float
    """Duration of that call."""
    cpu_us_per_page: float
    """CPU time of this process, kernel included, until all pages were seen."""
    user_us_per_page: float
    """CPU time of this process without the kernel: Python and the libraries that it calls."""


def read_batch(probe: Probe, reader_kind: str, pages: int, depth: int) -> Batch:
    """Reads `pages` random pages, submitted in one call, cold."""
    size = probe.path.stat().st_size
    windows = probe.layout.windows(PAGE, 0, size, probe.rng)
    offsets = windows.offsets[:pages].tolist()
    slots = probe.memory[: len(probe.memory) // PAGE_BYTES * PAGE_BYTES].reshape(-1, PAGE_BYTES)
    reads = [Read(key, 0, offset, PAGE_BYTES, slots[key % len(slots)]) for key, offset in enumerate(offsets)]
    with switching(reader_kind), open_kind(reader_kind, depth) as reader:
        reader.open_file(probe.path)
        before, start_ns = _cpu_s(), time.monotonic_ns()
        reader.submit(reads)
        submitted_ns = time.monotonic_ns()
        while reader.in_flight:
            if failed := [done.error for done in reader.poll(None, reader.in_flight) if done.error is not None]:
                raise failed[0]
        end_ns, after = time.monotonic_ns(), _cpu_s()
    count, seconds = len(reads), (end_ns - start_ns) / NS_PER_S
    user_s, system_s = (b - a for a, b in zip(before, after, strict=True))
    return Batch(
        rate=Rate(gbps=count * PAGE_BYTES / seconds / GB, reads_per_s=count / seconds),
        submit_us_per_page=(submitted_ns - start_ns) / NS_PER_US / count,
        cpu_us_per_page=(user_s + system_s) * 1e6 / count,
        user_us_per_page=user_s * 1e6 / count,
    )


def _cpu_s() -> tuple[float, float]:
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def pages_against_fio(probe: Probe, reader: str, pages: int, depth: int, *, pairs: int) -> dict[str, Any]:
    """Pairs of runs that read `pages` pages in one batch, by our reader and by fio."""
    batches: list[Batch] = []

    def ours() -> Rate:
        batches.append(read_batch(probe, reader, pages, depth))
        return batches[-1].rate

    both = pair(pairs, ours, lambda: run_fio(probe.path, PAGE_BYTES, depth, [f"--number_ios={pages}"]))
    per_page = {
        name: median_of([getattr(batch, name) for batch in batches]).value
        for name in ("submit_us_per_page", "cpu_us_per_page", "user_us_per_page")
    }
    return both.row(pages=pages, reader=reader, depth=depth) | per_page
