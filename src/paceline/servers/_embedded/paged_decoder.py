"""A decoder of the zoo over a paged KV cache: prompts as they come, next tokens in one batch, replayed where possible.

The module sees all tokens of a step as one sample in which each has a position of its own; only attention tells the
sequences apart. It gathers the blocks of each sequence, which costs a copy of what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from paceline.devices import Device, open_device
from paceline.models._modules.decoder import attend
from paceline.models.base import low_dtype, seed_everything, set_fp32_mode
from paceline.models.sources import find_model
from paceline.servers._embedded.continuous_batching import Chunk
from paceline.servers._embedded.kv_blocks import BLOCK, PADDING
from paceline.servers.base import Need

if TYPE_CHECKING:
    from torch import Tensor

ACCELERATOR_PART, HOST_PART = 0.8, 0.25  # of the free memory that the cache may have
FEWEST_BLOCKS = 16  # of a sequence, in the smallest step that is recorded
_COLUMNS = 3  # of a step's input before the table of blocks: token, position, slot


class PagedCache:
    """Keys and values of all blocks, and which of them the step at hand reads and writes."""

    def __init__(self, shape: Any, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (blocks + 1, BLOCK, shape.key_heads, shape.head_width)  # one more, for padding

        def pool() -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.layers = [PagedLayer(self, pool(), pool()) for _ in range(shape.layers)]
        self._places = torch.arange(-(-shape.context // BLOCK) * BLOCK, device=device)

    def begin(self, slots: Tensor, positions: Tensor, table: Tensor | None, sizes: Sequence[int] | None = None) -> None:
        """A step that writes its tokens at these slots: one of each sequence, or as many as `sizes` says.

        Row by row, the table has the blocks of the sequences. Without it, nothing comes before these tokens.
        """
        self._slots, self._table = slots, table
        self._where: tuple[Tensor, Tensor] | None = None  # row and column of each token among the padded ones
        if sizes is not None:
            rows = np.repeat(np.arange(len(sizes)), sizes)
            columns = np.concatenate([np.arange(size) for size in sizes])
            self._where = torch.tensor(rows, device=slots.device), torch.tensor(columns, device=slots.device)
            self._padded_size = len(sizes), max(sizes)
        self.mask: Tensor | None = None  # which places each query sees; none for a causal mask
        if table is not None:
            places = self._places[: table.shape[1] * BLOCK]
            self.mask = (places <= self._padded(positions)[..., None])[:, None]

    def exchange(self, pool: Tensor, heads: Tensor) -> Tensor:
        """Write [heads, tokens, size] to the pool; what each sequence then has: [sequences, heads, length, size]."""
        new = heads.transpose(0, 1)
        pool.flatten(0, 1).index_copy_(0, self._slots, new)
        if self._table is None:
            held = self._padded(new)
        else:
            held = pool.index_select(0, self._table.flatten()).view(len(self._table), -1, *pool.shape[2:])
        return held.transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None) -> Tensor:
        """Attention of each sequence's tokens over its own keys: [1, heads, tokens, size]."""
        padded = self._padded(query[0].transpose(0, 1)).transpose(1, 2)
        mixed = attend(padded, key, value, causal=mask is None, mask=mask).transpose(1, 2)
        tokens = mixed[:, 0] if self._where is None else mixed[self._where]
        return tokens.transpose(0, 1)[None]

    def _padded(self, tokens: Tensor) -> Tensor:
        """Tokens [tokens, ...] as [sequences, the longest, ...]."""
        if self._where is None:
            return tokens[:, None]
        padded = tokens.new_zeros(*self._padded_size, *tokens.shape[1:])
        padded[self._where] = tokens
        return padded


class PagedLayer:
    """Keys and values of one layer, as its attention asks for them."""

    def __init__(self, cache: PagedCache, keys: Tensor, values: Tensor) -> None:
        self._cache, self.keys, self.values = cache, keys, values

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write [1, heads, tokens, size]; what each sequence then has."""
        return self._cache.exchange(self.keys, key[0]), self._cache.exchange(self.values, value[0])

    def mask(self, positions: Tensor) -> Tensor | None:
        """Which places each query sees."""
        return self._cache.mask


class PagedDecoder:
    """A model with its cache; only one thread may call it."""

    def __init__(
        self, need: Need, *, max_sequences: int, max_length: int | None, blocks: int | None, with_graphs: bool
    ) -> None:
        self.device: Device = open_device(need.device)
        set_fp32_mode(need.precision)
        seed_everything(need.seed)
        dtype, usual = low_dtype(need.precision) or torch.float32, torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # no copy in fp32, which may not fit
        try:
            with torch.device(self.device.torch()):
                module: Any = find_model(need.model, allow_import=False).build(need.scale).module
        finally:
            torch.set_default_dtype(usual)
        self.module = module.eval().requires_grad_(False)
        self.max_length = min(max_length or module.shape.context, module.shape.context)
        self.vocabulary: int = module.shape.vocabulary
        longest = -(-self.max_length // BLOCK)
        self.blocks = blocks or min(longest * max_sequences, self._most_blocks(dtype))
        if self.blocks < longest:
            raise ValueError(
                f"the KV cache has {self.blocks} blocks, room for {self.blocks * BLOCK} tokens; a sequence of "
                f"max_length = {self.max_length} does not fit: lower max_length, or raise kv_blocks"
            )
        self.cache = PagedCache(module.shape, self.blocks, dtype, self.device.torch())
        for block in module.blocks:
            block.attention.attend = self.cache.attend
        self._recorded: list[DecodeStep] = []  # the smallest first
        if with_graphs and self.device.kind.supports_graphs:
            self._record(_doubled(1, max_sequences), _doubled(min(FEWEST_BLOCKS, longest), longest))

    def facts(self) -> dict[str, Any]:
        """How it computes, for the record."""
        sizes = sorted({step.rows for step in self._recorded})
        return {
            "versions": {"torch": torch.__version__},
            "parameters": sum(one.numel() for one in self.module.parameters()),
            "max_length": self.max_length,
            "kv_blocks": self.blocks,
            "kv_block_tokens": BLOCK,
            "kv_bytes": sum(2 * one.keys.numel() * one.keys.element_size() for one in self.cache.layers),
            "graph": f"captured for {', '.join(map(str, sizes))} sequences" if sizes else "off",
        }

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[Chunk]) -> list[int]:
        """The next token after each chunk; of one that does not end its prompt it means nothing."""
        tokens, positions, slots, sizes = [], [], [], [chunk.size for chunk in chunks]
        for chunk in chunks:
            sequence = chunk.sequence
            places = np.arange(sequence.computed, sequence.computed + chunk.size)
            tokens += sequence.tokens[sequence.computed : sequence.computed + chunk.size]
            positions.append(places)
            slots.append(np.array(sequence.blocks)[places // BLOCK] * BLOCK + places % BLOCK)
        table = None
        if any(chunk.sequence.computed for chunk in chunks):
            blocks = [chunk.sequence.blocks for chunk in chunks]
            width = max(map(len, blocks))
            table = self._there([one + [PADDING] * (width - len(one)) for one in blocks])
        at = self._there(np.concatenate(positions))
        self.cache.begin(self._there(np.concatenate(slots)), at, table, sizes)
        logits = self.forward(self._there(tokens), at, self._there(np.cumsum(sizes) - 1))
        return self._chosen(logits, logits.argmax(-1).tolist(), chunks)

    @torch.inference_mode()
    def decode(self, chunks: Sequence[Chunk]) -> list[int]:
        """The next token of each sequence."""
        rows, width = len(chunks), max(len(chunk.sequence.blocks) for chunk in chunks)
        fitting = (step for step in self._recorded if step.rows >= rows and step.width >= width)
        step = next(fitting, None) or DecodeStep(self, rows, width)
        step.inputs[:] = PADDING
        columns = []
        for row, one in enumerate(chunk.sequence for chunk in chunks):
            slot = one.blocks[one.computed // BLOCK] * BLOCK + one.computed % BLOCK
            columns.append((one.tokens[-1], one.computed, slot))
            step.inputs[row, _COLUMNS : _COLUMNS + len(one.blocks)] = one.blocks
        step.inputs[:rows, :_COLUMNS] = columns
        step.replay()
        self.device.synchronize()
        return self._chosen(step.logits, step.chosen[:rows].tolist(), chunks)

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor | None = None) -> Tensor:
        """Logits of the tokens at `last`, or of all; the cache knows what belongs together."""
        x = self.module.embed(tokens[None])
        for block, layer in zip(self.module.blocks, self.cache.layers, strict=True):
            x = block(x, layer, positions)
        logits: Tensor = self.module.head(x if last is None else x[:, last])[0]
        return logits

    def _chosen(self, logits: Tensor, likeliest: list[int], chunks: Sequence[Chunk]) -> list[int]:
        """The likeliest tokens, or drawn ones where a request has a temperature."""
        for row, chunk in enumerate(chunks):
            if chunk.sequence.temperature > 0:
                shares = torch.softmax(logits[row].float() / chunk.sequence.temperature, -1)
                likeliest[row] = int(torch.multinomial(shares, 1))
        return likeliest

    def _there(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64).to(self.device.torch())

    def _most_blocks(self, dtype: torch.dtype) -> int:
        """How many blocks there is room for."""
        shape = self.module.shape
        size: int = 2 * shape.layers * BLOCK * shape.key_heads * shape.head_width * dtype.itemsize
        if self.device.kind.is_accelerator:
            return int(ACCELERATOR_PART * self.device.free_memory()) // size
        return int(HOST_PART * psutil.virtual_memory().available) // size

    def _record(self, rows: list[int], widths: list[int]) -> None:
        with torch.inference_mode(), self.device.recording() as record:
            for width in reversed(widths):  # the largest first: the others find room in its memory
                for count in reversed(rows):
                    step = DecodeStep(self, count, width)
                    step.replay = record(step.run)
                    self._recorded.append(step)
        self._recorded.sort(key=lambda step: (step.rows, step.width))


class DecodeStep:
    """One token of so many sequences of so many blocks, between buffers that stay where they are."""

    def __init__(self, decoder: PagedDecoder, rows: int, width: int) -> None:
        device = decoder.device
        is_pinned = device.kind.is_accelerator
        self.rows, self.width = rows, width
        self._decoder = decoder
        self._here = torch.zeros(rows, _COLUMNS + width, dtype=torch.int64, pin_memory=is_pinned)
        self._there = torch.zeros(rows, _COLUMNS + width, dtype=torch.int64, device=device.torch())
        self._answer = torch.zeros(rows, dtype=torch.int64, pin_memory=is_pinned)
        self.inputs, self.chosen = self._here.numpy(), self._answer.numpy()
        self.logits: Any = None
        self.replay: Callable[[], object] = self.run  # or what was recorded of it

    def run(self) -> None:
        """From `inputs` to `chosen`; on an accelerator this only launches the work."""
        self._there.copy_(self._here, non_blocking=True)
        tokens, positions, slots = self._there[:, :_COLUMNS].unbind(1)
        self._decoder.cache.begin(slots, positions, self._there[:, _COLUMNS:])
        self.logits = self._decoder.forward(tokens, positions)
        self._answer.copy_(self.logits.argmax(-1), non_blocking=True)


def _doubled(first: int, last: int) -> list[int]:
    """Twice as many each time, and the last."""
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return sorted({*sizes, last})
