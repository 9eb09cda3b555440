"""Memory that clients on this machine share with the server: the protocol's extension for it, as Triton has it."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.benchmarks.serving.protocol.shared_memory import FOLDER, PREFIX
from paceline.benchmarks.serving.protocol.values import ProtocolError

_KEY = re.compile(rf"/?({PREFIX}[A-Za-z0-9._-]{{1,200}})")
_MOST = 64  # regions; each takes a descriptor


@dataclass(frozen=True)
class Region:
    """A part of named memory, under a name of its own."""

    key: str
    offset: int
    size: int
    memory: mmap.mmap


class Regions:
    """What clients have registered. A region stays mapped as long as a request looks at it, also if it is unregistered.

    Who truncates the memory of a region ends the server that looks at it: clients on this machine are trusted not to.
    """

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: str, wanted: Any) -> None:
        """Map what {"key": ..., "offset": ..., "byte_size": ...} says; ProtocolError if it cannot be."""
        if not isinstance(wanted, Mapping):
            raise ProtocolError("the body must be a JSON object with 'key', 'offset' and 'byte_size'")
        key, offset, size = wanted.get("key"), wanted.get("offset", 0), wanted.get("byte_size")
        found = _KEY.fullmatch(key) if isinstance(key, str) else None
        if found is None:
            raise ProtocolError(f"key: {key!r:.80} is not the name of shared memory for this, like /{PREFIX}1")
        if type(offset) is not int or type(size) is not int or offset < 0 or size < 1:
            raise ProtocolError(f"offset {offset!r:.40} and byte_size {size!r:.40} must be numbers of bytes")
        if name in self._regions:
            raise ProtocolError(f"there is a region '{name}' already: unregister it, or choose another name")
        if len(self._regions) >= _MOST:
            raise ProtocolError(f"there are {_MOST} regions already: unregister some")
        self._regions[name] = Region(str(key), offset, size, _mapped(FOLDER / found[1], offset + size))

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all of them."""
        if name is None:
            self._regions.clear()
        else:
            self._regions.pop(name, None)

    def part(self, name: str, offset: int, size: int) -> memoryview:
        """So many bytes of a region; ProtocolError if there are not."""
        region = self._regions.get(name)
        if region is None:
            raise ProtocolError(f"there is no region '{name}'; register it first")
        if offset + size > region.size:
            raise ProtocolError(f"region '{name}' has {region.size} bytes, not {offset} + {size}")
        begin = region.offset + offset
        return memoryview(region.memory)[begin : begin + size]

    def describe(self, name: str | None = None) -> list[dict[str, Any]]:
        """All regions, or the one of this name."""
        return [
            {"name": one, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for one, region in self._regions.items()
            if name in (None, one)
        ]


def _mapped(path: Path, size: int) -> mmap.mmap:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ProtocolError(f"shared memory '{path.name}' cannot be opened: {error.strerror}") from None
    try:
        there = os.fstat(handle)
        if not stat.S_ISREG(there.st_mode):
            raise ProtocolError(f"'{path.name}' is no shared memory")
        if size > there.st_size:
            raise ProtocolError(f"shared memory '{path.name}' has {there.st_size} bytes, not {size}")
        # Its pages are looked up now, not by the first requests.
        return mmap.mmap(handle, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise ProtocolError(f"shared memory '{path.name}' cannot be mapped: {error}") from None
    finally:
        with suppress(OSError):
            os.close(handle)
