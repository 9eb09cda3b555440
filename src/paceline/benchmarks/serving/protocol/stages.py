"""Where a request's time went inside the server, as the server tells it in one header of the answer."""

from __future__ import annotations

from typing import NamedTuple

HEADER = "x-paceline"
_LETTERS = ("d", "q", "b", "i", "p", "n", "r")
_FORMS = (_LETTERS, _LETTERS[:-1])  # tensors need no preparation
_WITH_PRE, _WITHOUT_PRE = (",".join(f"{letter}=%d" for letter in form) for form in _FORMS)


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
