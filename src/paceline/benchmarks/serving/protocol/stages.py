"""Where a request's time went inside the server, as the server tells it in one header of the answer."""

from __future__ import annotations

from typing import NamedTuple

HEADER = "x-paceline"


class Stages(NamedTuple):
    """Nanoseconds, one after the other without gaps, from the arrival of the whole request until its answer is written;
    the rest of what a client measures is transmission."""

    decode: int
    queue: int  # until its batch was taken by an instance
    batch: int  # assembling
    inference: int  # with the copies to the device and back
    post: int  # splitting, encoding, and waiting for those of the same batch
    size: int  # samples in the batch, without padding

    def __str__(self) -> str:
        return "d=%d,q=%d,b=%d,i=%d,p=%d,n=%d" % self  # noqa: UP031 (three times as fast as a format string)

    @classmethod
    def read(cls, text: str) -> Stages | None:
        """What `str()` made; None if it is something else."""
        try:
            letters, values = zip(*(part.split("=") for part in text.strip().split(",")), strict=True)
            return cls(*map(int, values)) if letters == ("d", "q", "b", "i", "p", "n") else None
        except (ValueError, TypeError):
            return None
