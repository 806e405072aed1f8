"""The limit of a process's address space (`ulimit -v`): libraries that reach it end in a segmentation fault, hence the check."""

import os
import resource

from workbench.errors import UnmetPrerequisite
from workbench.units import MIB, format_bytes

_BASE_BYTES = 2048 * MIB
"""Code, tables and threads of the libraries: with 2 cores the peak (VmPeak) was 1.6 GiB, in `generate` of a model of 18 MB."""
_BYTES_PER_CORE = 256 * MIB
"""MLX, polars and OpenBLAS start threads for each further core: glibc reserves 8 MiB of stack and 64 MiB of arena for each."""
_MEASURED_CORES = 2


def check_address_space(num_bytes: int = 0) -> None:
    """Raises UnmetPrerequisite when the limit leaves no room for the libraries and `num_bytes` of weights and cache."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed_bytes = _BASE_BYTES + max(0, (os.cpu_count() or 1) - _MEASURED_CORES) * _BYTES_PER_CORE + num_bytes
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < needed_bytes:
        raise UnmetPrerequisite(
            f"this shell limits the address space to {format_bytes(limit_bytes)} (ulimit -v), "
            f"{format_bytes(needed_bytes)} are needed: raise the limit with ulimit -v {needed_bytes // 1024 + 1}"
        )
