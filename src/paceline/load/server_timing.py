"""What Paceline's own server reports alongside its answers, read after the run: its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.load.trace import Times

# The header `x-paceline: d=..,q=..,b=..,i=..,p=..,n=..,r=..`: nanoseconds, and the size of the batch.
HEADER = "x-paceline"
STAGES = {b"d": "decode", b"r": "pre", b"q": "queue", b"b": "batch", b"i": "inference", b"p": "post"}
BATCH = b"n"
_WITHOUT_PRE = "d=%d,q=%d,b=%d,i=%d,p=%d,n=%d"  # tensors need no preparation
_WITH_PRE = _WITHOUT_PRE + ",r=%d"


class Stages(NamedTuple):
    """Nanoseconds, without gaps from the arrival of the whole request until its answer is written.

    The rest of what a client measures is transmission.
    """

    decode: int
    queue: int  # until its batch was taken by an instance
    batch: int  # assembling
    inference: int  # with the copies to the device and back
    post: int  # what is made of the outputs, splitting, encoding, and waiting for those of the same batch
    size: int  # samples in the batch, without padding
    pre: int = 0  # between decode and queue: making tensors of images and texts, and the wait for a thread to do it

    def __str__(self) -> str:
        # Three times as fast as a format string.
        return (_WITH_PRE % self) if self.pre else (_WITHOUT_PRE % self[:-1])


def read_stages(headers: Sequence[bytes | None]) -> tuple[dict[str, Times], NDArray[np.int32] | None]:
    """Seconds per stage and the batch of each request; NaN and 0 where a server did not report them."""
    stages: dict[str, Times] = {}
    batch: NDArray[np.int32] | None = None
    for row, header in enumerate(headers):
        for pair in (header or b"").split(b","):
            key, _, value = pair.strip().partition(b"=")
            if not value.isdigit() or len(value) >= 19:
                continue
            if key == BATCH and int(value) < 2**31:
                if batch is None:
                    batch = np.zeros(len(headers), np.int32)
                batch[row] = int(value)
            elif key in STAGES:
                column = stages.get(STAGES[key])
                if column is None:
                    column = stages[STAGES[key]] = np.full(len(headers), np.nan)
                column[row] = int(value) * 1e-9
    return stages, batch
