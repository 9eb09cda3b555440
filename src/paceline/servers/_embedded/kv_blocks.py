"""The blocks of a paged KV cache: which are free, how many use each, and which hold a beginning that is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 16  # tokens
PADDING = 0  # the block that padding is written to; no sequence ever has it


class BlockPool:
    """Numbers of blocks, from 1. With prefix caching, a free block keeps what it holds until it is needed."""

    def __init__(self, count: int, *, prefix_caching: bool = False) -> None:
        self.count = count
        self.prefix_caching = prefix_caching
        self._free = OrderedDict.fromkeys(range(1, count + 1))  # the one that was freed first is taken first
        self._users = [0] * (count + 1)
        self._blocks: dict[int, int] = {}  # by the key of what they hold
        self._keys: dict[int, int] = {}  # the same, by block

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many blocks, which must be free; what they held is forgotten."""
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._blocks.pop(self._keys.pop(block, 0), None)
            self._users[block] = 1
            blocks.append(block)
        return blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Not used any more by one sequence; the end of a text is forgotten before its beginning."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Blocks that hold the beginning of a text, but never all of it: its last token has to be computed."""
        found = []
        key = 0
        for end in range(BLOCK, len(tokens), BLOCK) if self.prefix_caching else ():
            key = _key(key, tokens[end - BLOCK : end])
            if key not in self._blocks:
                break
            found.append(self._blocks[key])
        return found

    def share(self, blocks: Sequence[int], *, leaving: int) -> bool:
        """One more sequence uses these blocks, some of which may be free; False if too few others would be left."""
        if len(self._free) - sum(not self._users[block] for block in blocks) < leaving:
            return False
        for block in blocks:
            self._users[block] += 1
            self._free.pop(block, None)
        return True

    def keep(self, tokens: Sequence[int], blocks: Sequence[int], computed: int) -> None:
        """Remember which full blocks hold this text, as far as it is computed."""
        key = 0
        for number in range(computed // BLOCK if self.prefix_caching else 0):
            key = _key(key, tokens[number * BLOCK : (number + 1) * BLOCK])
            if key not in self._blocks and blocks[number] not in self._keys:
                self._blocks[key] = blocks[number]
                self._keys[blocks[number]] = key


def _key(before: int, tokens: Sequence[int]) -> int:
    return hash((before, *tokens)) or 1
