"""What servers report alongside their answers, read after the run: their own stages, and the pieces of a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.load.trace import Times

HEADER = "x-paceline"
_LETTERS = ("d", "q", "b", "i", "p", "n", "r")
_FORMS = (_LETTERS, _LETTERS[:-1])  # tensors need no preparation
_WITH_PRE, _WITHOUT_PRE = (",".join(f"{letter}=%d" for letter in form) for form in _FORMS)

# The header `x-paceline: d=..,q=..,b=..,i=..,p=..,n=..,r=..`: nanoseconds, and the size of the batch.
STAGES = {b"d": "decode", b"r": "pre", b"q": "queue", b"b": "batch", b"i": "inference", b"p": "post"}
BATCH = b"n"


class Stages(NamedTuple):
    """Nanoseconds, one after the other without gaps, from the arrival of the whole request until its answer is written;
    the rest of what a client measures is transmission."""

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

    @classmethod
    def read(cls, text: str) -> Stages | None:
        """What `str()` made; None if it is something else."""
        try:
            letters, values = zip(*(part.split("=") for part in text.strip().split(",")), strict=True)
            found = dict(zip(letters, map(int, values), strict=True))
            return cls._make(found.get(letter, 0) for letter in _LETTERS) if letters in _FORMS else None
        except (ValueError, TypeError):
            return None


def read_stages(told: Sequence[bytes | None]) -> tuple[dict[str, Times], NDArray[np.int32] | None]:
    """Seconds per stage and the batch of each request; NaN and 0 where a server did not tell."""
    stages: dict[str, Times] = {}
    batch: NDArray[np.int32] | None = None
    for row, text in enumerate(told):
        for key, value in _pairs(text):
            if key == BATCH:
                if batch is None:
                    batch = np.zeros(len(told), np.int32)
                batch[row] = value
            elif key in STAGES:
                column = stages.setdefault(STAGES[key], np.full(len(told), np.nan))
                column[row] = value * 1e-9
    return stages, batch


def _pairs(text: bytes | None) -> list[tuple[bytes, int]]:
    pairs = []
    for part in (text or b"").split(b","):
        key, _, value = part.strip().partition(b"=")
        if value.isdigit() and len(value) < 19:
            pairs.append((key, int(value)))
    return pairs


def piece_times(events: Sequence[tuple[int, bytes]]) -> list[int]:
    """When those events came that carry a piece of the answer: neither the mark of its end nor roles and counts."""
    return [time for time, event in events if carries_text(event)]


def carries_text(event: bytes) -> bool:
    """Whether an event of a language model's stream holds some of its text; what is no JSON is taken for text."""
    if not event or event == b"[DONE]":
        return False
    try:
        found = json.loads(event)
    except ValueError:
        return True
    if not isinstance(found, dict) or "choices" not in found:
        return not is_error(event)
    choices = [one for one in found["choices"] or () if isinstance(one, dict)]
    return any(_text_of(choice) for choice in choices)


def is_error(event: bytes) -> bool:
    """Whether a stream that had begun well says here that it failed: the status was sent by then."""
    if b"error" not in event:
        return False
    try:
        found = json.loads(event)
    except ValueError:
        return False
    return isinstance(found, dict) and (bool(found.get("error")) or found.get("object") == "error")


def _text_of(choice: dict[str, object]) -> bool:
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    return any(parts.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "text"))
