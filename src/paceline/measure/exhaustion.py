"""Recognises that memory ran out, of the host or of a device, without importing torch."""

from __future__ import annotations

from typing import Literal


def exhausted(error: BaseException) -> Literal["host", "device"] | None:
    """Which memory did not suffice, if that is what the exception says."""
    if type(error).__name__ == "OutOfMemoryError":
        return "device"
    text = str(error)
    if "CUDA" in text and ("out of memory" in text or "ALLOC_FAILED" in text):
        return "device"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
        return "host"
    return None
