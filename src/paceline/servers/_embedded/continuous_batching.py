"""Continuous batching: which sequences are computed in the next step, and what becomes of them after it.

Every step decodes one token of each running sequence, and computes the prompts of as many new ones as there is room
for. Where the blocks of the KV cache run out, the sequence that came last is put back and computed anew later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.servers._embedded.kv_blocks import BLOCK, BlockPool

FinishReason = Literal["stop", "length"]


@dataclass(eq=False, slots=True)
class TokenSequence:
    """One prompt and what has been made of it."""

    tokens: list[int]  # the prompt, then the answer
    max_tokens: int
    on_token: Callable[[int, FinishReason | None], None]
    on_error: Callable[[Exception], None]
    min_tokens: int = 0
    end: int | None = None  # the token that ends the answer, if one does
    temperature: float = 0.0
    prompt_length: int = 0
    cached: int = 0  # tokens of the prompt that were not computed again
    computed: int = 0  # tokens whose keys and values are in the cache
    blocks: list[int] = field(default_factory=list)
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def made(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def missing(self) -> int:
        """Tokens that have to be computed before the next one can be chosen."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class Chunk:
    """The next tokens of a sequence that are computed at once."""

    sequence: TokenSequence
    size: int


@dataclass(frozen=True)
class SequenceToken:
    """A token that a step has made, and whether it is the last."""

    sequence: TokenSequence
    token: int
    reason: FinishReason | None
    is_first: bool


class Scheduler:
    """Belongs to the thread that computes."""

    def __init__(self, pool: BlockPool, max_sequences: int, prefill_tokens: int) -> None:
        self.pool = pool
        self.waiting: deque[TokenSequence] = deque()
        self.running: list[TokenSequence] = []  # those that were admitted first come first
        self.preemptions = 0
        self._max_sequences = max_sequences
        self._prefill_tokens = prefill_tokens

    def decodes(self) -> list[Chunk]:
        """One token of each sequence that has its prompt computed, with room in the cache for it."""
        self._drop_cancelled()
        chunks = []
        for sequence in list(self.running):
            if sequence.missing != 1 or not sequence.computed:
                continue
            while sequence.blocks and sequence.computed == len(sequence.blocks) * BLOCK:
                if self.pool.free:
                    sequence.blocks += self.pool.take(1)
                else:
                    self._preempt()  # the youngest, which may be this one
            if sequence.blocks:
                chunks.append(Chunk(sequence, 1))
        return chunks

    def prefills(self) -> list[Chunk]:
        """Prompts to compute together, padded to the longest; only the first may be cut."""
        self._drop_cancelled()
        chunks: list[Chunk] = []
        longest = 0
        begun = deque(one for one in self.running if one.missing > 1 or not one.computed)
        while begun or self._can_admit():
            sequence = begun[0] if begun else self.waiting[0]
            found = [] if begun else self.pool.find(sequence.tokens)
            size = sequence.missing - len(found) * BLOCK
            size = size if chunks else min(size, self._prefill_tokens)
            longest = max(longest, size)
            if longest * (len(chunks) + 1) > self._prefill_tokens:
                break
            if begun:
                begun.popleft()
            elif not self._admit(found):
                break
            chunks.append(Chunk(sequence, size))
        return chunks

    def advance(self, chunks: Sequence[Chunk], chosen: Sequence[int]) -> list[SequenceToken]:
        """These were computed, and would go on with these tokens."""
        made = []
        for chunk, token in zip(chunks, chosen, strict=True):
            sequence = chunk.sequence
            sequence.computed += chunk.size
            if sequence.computed // BLOCK > (sequence.computed - chunk.size) // BLOCK:
                self.pool.keep(sequence.tokens, sequence.blocks, sequence.computed)
            if sequence.missing:  # the rest of its prompt
                continue
            sequence.tokens.append(token)
            reason: FinishReason | None = None
            if token == sequence.end and sequence.made >= sequence.min_tokens:
                reason = "stop"
            elif sequence.made >= sequence.max_tokens:
                reason = "length"
            made.append(SequenceToken(sequence, token, reason, sequence.made == 1))
            if reason is not None:
                self._leave(sequence)
        return made

    def clear(self) -> list[TokenSequence]:
        """Drop everything, because a step has failed."""
        dropped = [*self.running, *self.waiting]
        for sequence in list(self.running):
            self._leave(sequence)
        self.waiting.clear()
        return dropped

    def _can_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self._max_sequences

    def _admit(self, found: list[int]) -> bool:
        """Give the first that waits all blocks that it needs for now; False if there are too few."""
        sequence = self.waiting[0]
        needed = len(sequence.tokens) // BLOCK + 1 - len(found)
        if not self.pool.share(found, leaving=needed):
            return False
        self.waiting.popleft()
        sequence.blocks = found + self.pool.take(needed)
        sequence.computed = len(found) * BLOCK
        if not sequence.made:
            sequence.cached = sequence.computed
        self.running.append(sequence)
        return True

    def _preempt(self) -> None:
        sequence = self.running[-1]
        self._leave(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _leave(self, sequence: TokenSequence) -> None:
        self.running.remove(sequence)
        self.pool.give_back(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0

    def _drop_cancelled(self) -> None:
        for sequence in [one for one in self.running if one.is_cancelled]:
            self._leave(sequence)
        if any(one.is_cancelled for one in self.waiting):
            self.waiting = deque(one for one in self.waiting if not one.is_cancelled)
