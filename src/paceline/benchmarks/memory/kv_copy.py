"""Blocks of a paged cache of keys and values, copied by a table: within memory, and between device and host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    PEAK_SHARE,
    TIME,
    MicroParameters,
    OneOrMore,
    TorchBenchmark,
    Upwards,
    join_words,
)
from paceline.benchmarks._micro.session import MicroSession, TimedPoint, headline
from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.copy import Way, compare, share_of_peak
from paceline.core.benchmark import Context
from paceline.core.errors import Unsupported
from paceline.core.quantity import Duration
from paceline.core.record import Result
from paceline.core.subject import FloatPrecision
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

Direction = Literal["gather", "scatter", "d2h", "h2d"]
Counts = Annotated[list[Annotated[int, Field(ge=1)]], OneOrMore, Field(min_length=1), Upwards]

SPARE = 2  # blocks in the cache for each that is copied: neighbours in a table are none in memory
_COUNTED = {
    "gather": "bytes copied, once; memory reads and writes each of them, which peak_share counts",
    "scatter": "bytes copied, once; memory reads and writes each of them, which peak_share counts",
    "d2h": "bytes that reach the host, once; bringing them together on the device first is in the time",
    "h2d": "bytes that leave the host, once; distributing them on the device is in the time",
}


class KvCopyParameters(MicroParameters):
    """What of a cache is copied where, and how."""

    budget: Duration = Field(default=0.5, gt=0)
    """Time to spend on measuring each number of blocks, at most"""
    warm_up: Duration = 0.25
    """Time to spend on warming up each number of blocks, at most; it ends sooner when the time is steady"""
    direction: Direction = "gather"
    """gather: blocks into one piece; scatter: one piece into blocks; d2h: blocks of the device into one piece of pinned
    host memory; h2d: back"""
    blocks: Counts | None = None
    """Blocks in a table; unset takes 64 to 4096 on a GPU, 64 to 1024 on a CPU"""
    block: int = Field(default=16, ge=1)
    """Tokens in a block"""
    kv_heads: int = Field(default=8, ge=1)
    """Heads of keys and values"""
    head_size: int = Field(default=128, ge=1)
    """Numbers in each head's vector"""
    precision: FloatPrecision = "bf16"
    """fp32, fp16, bf16"""


class KvCopy(TorchBenchmark[KvCopyParameters]):
    """Copies random blocks by a random table and compares what arrived."""

    name = "kv-copy"
    summary = "blocks of a paged KV cache copied by a table: gather, scatter, device to host and back, data checked"
    category = "memory"
    metrics = (BANDWIDTH, PEAK_SHARE, TIME)

    @classmethod
    def title(cls, parameters: KvCopyParameters) -> str:
        return join_words(
            parameters.direction,
            f"blocks of {parameters.block} tokens",
            parameters.precision if parameters.precision != "bf16" else "",
        )

    def measure(self, parameters: KvCopyParameters, context: Context) -> Result:
        device = open_device(context.target)
        if parameters.direction in ("d2h", "h2d") and not device.kind.is_accelerator:
            raise Unsupported(
                f"direction = {parameters.direction} needs a GPU: use --target cuda:0, or gather and scatter on a CPU"
            )
        most = 4096 if device.kind.is_accelerator else 1024
        counts = parameters.blocks or [count for count in (64, 256, 1024, 4096) if count <= most]
        cache = BlockCache(parameters, device, counts[-1])
        with MicroSession(parameters, context, device) as session:
            points = [cache.time(session, count) for count in counts]
        sizes = [cache.block_bytes * count for count in counts]
        rates = [point.rate(BANDWIDTH, float(size)) for point, size in zip(points, sizes, strict=True)]
        times = [point.time for point in points]
        share, peak_facts = share_of_peak(cache.way, device, context.target, sizes[-1], rates[-1], headline(times))
        facts = {
            "direction": parameters.direction,
            "library_call": cache.how,
            "block_bytes": cache.block_bytes,
            "counted": _COUNTED[parameters.direction],
            "checked": "every byte, after each number of blocks, against the table",
            **peak_facts,
        }
        result = session.result([headline(rates), *share, headline(times), *rates, *times], facts)
        if cache.way == "h2h":  # each byte is read and written
            result.warnings += host.cached_warning(2 * sizes[-1], host.cache_of(), 2, "use more --blocks")
        return result


class BlockCache:
    """A cache in blocks with a table of those to copy, and the memory that they are copied to or from in one piece."""

    def __init__(self, parameters: KvCopyParameters, device: Device, most: int) -> None:
        import torch

        self._device, self._direction = device, parameters.direction
        generator = torch.Generator(device.torch()).manual_seed(parameters.seed)
        shape = (2, parameters.block, parameters.kv_heads, parameters.head_size)  # keys and values of a block

        def drawn(count: int) -> Tensor:
            return formats.random_operand(parameters.precision, (count, *shape), generator)

        self.cache = drawn(SPARE * most)
        self.block_bytes = self.cache[0].numel() * self.cache.element_size()
        self.table = torch.randperm(SPARE * most, generator=generator, device=device.torch())[:most]
        self.piece = drawn(most)
        self.way: Way  # what of it bounds the rate
        if parameters.direction in ("d2h", "h2d"):
            self.way = parameters.direction
        else:
            self.way = "d2d" if device.kind.is_accelerator else "h2h"
        self._on_host = parameters.direction in ("d2h", "h2d")
        if self._on_host:
            self.host = self.piece.to("cpu").pin_memory()
        self.how = {
            "gather": "torch.index_select",
            "scatter": "torch.index_copy_",
            "d2h": f"torch.index_select, then {device.kind.copy_call}",
            "h2d": f"{device.kind.copy_call}, then torch.index_copy_",
        }[parameters.direction]

    def time(self, session: MicroSession, count: int) -> TimedPoint:
        """Time copies of the first so many blocks of the table, and compare what arrived."""
        before = self._destination(count)
        before.zero_()
        point = session.time(
            self.call(count), TIME, at={"blocks": count}, work=float(self.block_bytes * count), graph=True
        )
        self.check(count)
        return point

    def call(self, count: int) -> Callable[[], object]:
        """The copy of so many blocks."""
        import torch

        table, piece = self.table[:count], self.piece[:count]
        if not self._on_host:
            if self._direction == "gather":
                return lambda: torch.index_select(self.cache, 0, table, out=piece)
            return lambda: self.cache.index_copy_(0, table, piece)
        host = self.host[:count]
        if self._direction == "d2h":
            return lambda: host.copy_(torch.index_select(self.cache, 0, table, out=piece), non_blocking=True)
        return lambda: self.cache.index_copy_(0, table, piece.copy_(host, non_blocking=True))

    def check(self, count: int) -> None:
        """Compare every block with the one that the table names."""
        self._device.synchronize()
        blocks, table = _bytes(self.cache), self.table[:count].tolist()
        piece = _bytes(self.host if self._on_host else self.piece)[:count]
        sent, arrived = (blocks[table], piece) if self._direction in ("gather", "d2h") else (piece, blocks[table])
        compare(sent.reshape(-1), arrived.reshape(-1), self._direction)

    def _destination(self, count: int) -> Tensor:
        if self._direction in ("gather", "d2h"):
            return self.host[:count] if self._on_host else self.piece[:count]
        return self.cache


def _bytes(blocks: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The bytes of each block, one row each."""
    import torch

    return blocks.flatten(1).contiguous().view(torch.uint8).cpu().numpy()
