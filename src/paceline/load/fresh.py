"""Prompts that no cache of prefixes has seen: some words of each are chosen as it is sent.

They have one length, so that a request stays as long as it was prepared. Workers import this: nothing but the standard
library.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

WIDTH = 4  # letters of such a word; many common words have as many, and most tokenizers take each as one token
MOST_WORDS = 5  # of a prompt: of 64 words, enough for a thousand million prompts


@dataclass(frozen=True)
class Slot:
    """Where the words of one kind of request go."""

    at: int = 0  # bytes into the request
    words: int = 0  # how many; none for a request that is sent as it is


NO_SLOT = Slot()


@dataclass(frozen=True)
class FreshWords:
    """The words to choose from, and which prompts are this worker's."""

    words: tuple[str, ...] = ()
    first: int = 0
    step: int = 1

    @classmethod
    def drawn(cls, words: Sequence[str]) -> FreshWords:
        """Prompts that begin anywhere, so that those of an earlier load are hardly ever met again."""
        fitting = tuple(dict.fromkeys(word for word in words if len(word) == WIDTH and word.isascii()))
        return cls(fitting, secrets.randbelow(len(fitting) ** MOST_WORDS) if fitting else 0)

    def of_worker(self, number: int, workers: int) -> FreshWords:
        """Those of one of several workers."""
        return replace(self, first=self.first + number, step=workers)

    def put_into(self, payload: bytes, slot: Slot, row: int) -> bytes:
        """The request with the words of this row; the first word changes from each prompt to the next."""
        number, chosen = self.first + row * self.step, []
        for _ in range(slot.words):
            number, index = divmod(number, len(self.words))
            chosen.append(self.words[index])
        text = " ".join(chosen).encode()
        return payload[: slot.at] + text + payload[slot.at + len(text) :]


NO_WORDS = FreshWords()
