"""Recognises that memory ran out, of the host or of a device, without importing torch."""

from __future__ import annotations

import errno
from typing import Literal

from paceline.devices import accelerators


def exhausted(error: BaseException) -> Literal["host", "device"] | None:
    """Which memory did not suffice, if that is what the exception says."""
    if type(error).__name__ == "OutOfMemoryError":
        return "device"
    text = str(error)
    names = [name for kind in accelerators() for name in kind.out_of_memory_words]
    of_device = any(name in text.casefold() for name in names)
    if of_device and ("out of memory" in text or "ALLOC_FAILED" in text):
        return "device"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    if "Storage size calculation overflowed" in text:  # torch, of more than can be counted
        return "host"
    if "bad_alloc" in text or "can't allocate memory" in text or "not enough memory" in text:
        return "host"
    return None
