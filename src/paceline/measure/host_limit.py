"""Lets allocation fail before the host's memory is gone, when the kernel would kill somebody for it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def host_limit(part: float) -> Iterator[None]:
    """Within, this process gets no more than this part of the memory that is free now, beside what it has."""
    import psutil

    free = int(psutil.virtual_memory().available)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(_data_size() + part * free)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_size() -> int:
    """Bytes of private writable memory, which is what the limit counts."""
    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123 -- a pseudo-file
        for line in lines:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
