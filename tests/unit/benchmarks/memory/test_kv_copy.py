"""Blocks of a paged cache: copied by a table, compared byte by byte, and counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.benchmarks.memory.kv_copy import BlockCache, KvCopy, KvCopyParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.record import Result
from paceline.devices.cpu import CpuDevice

CASE = Case(index=0, benchmark="kv-copy", parameters={}, title="", target="cpu")
SMALL = {"block": 4, "kv_heads": 2, "head_size": 8}
BLOCK_BYTES = 2 * 4 * 2 * 8 * 2


def measured(**values: Any) -> Result:
    parameters = KvCopyParameters.read({"steps": 2, "warm_up": "1ms", **SMALL, **values})
    return KvCopy().measure(parameters, Context(case=CASE))


def cache(**values: Any) -> BlockCache:
    return BlockCache(KvCopyParameters(**(SMALL | values)), CpuDevice(), 8)


@pytest.mark.parametrize("direction", ["gather", "scatter"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_every_number_of_blocks_is_measured_and_the_largest_speaks_for_the_case(direction: str, precision: str) -> None:
    result = measured(direction=direction, blocks=[8, 2], precision=precision)
    found = {(one.metric.name, one.at.get("blocks")): one for one in result.measurements}
    size = BLOCK_BYTES * (2 if precision == "fp32" else 1)
    for count in (2, 8):
        assert found["bandwidth", count].work == size * count
    assert found["bandwidth", None].value == found["bandwidth", 8].value
    assert result.facts["block_bytes"] == size


@pytest.mark.parametrize(("cache", "kinds"), [(2 * BLOCK_BYTES, {"cached"}), (BLOCK_BYTES, set())])
def test_blocks_that_stay_in_the_caches_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, cache: int, kinds: set[str]
) -> None:
    monkeypatch.setattr("paceline.benchmarks.memory.host.cache_of", lambda: cache)
    result = measured(blocks=[1])
    assert {warning.kind for warning in result.warnings} & {"cached"} == kinds


def test_a_gathered_block_is_the_one_that_the_table_names() -> None:
    made = cache()
    made.call(5)()
    for place, block in enumerate(made.table[:5].tolist()):
        assert torch.equal(made.piece[place], made.cache[block])
    made.check(5)


def test_a_scattered_block_arrives_where_the_table_says_and_others_stay() -> None:
    made = cache(direction="scatter")
    before = made.cache.clone()
    made.call(5)()
    touched = made.table[:5].tolist()
    assert torch.equal(made.cache[touched], made.piece[:5])
    others = [block for block in range(16) if block not in touched]
    assert torch.equal(made.cache[others], before[others])


@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_a_block_that_never_moved_is_silent_corruption(direction: str) -> None:
    made = cache(direction=direction)
    made.call(8)()
    made.check(8)
    made.piece[3, 1, 2, 1, 5] += 1.0
    with pytest.raises(SilentCorruption, match=f"copied {direction} did not arrive"):
        made.check(8)


@pytest.mark.parametrize("direction", ["d2h", "h2d"])
def test_between_device_and_host_needs_a_device(direction: str) -> None:
    with pytest.raises(Unsupported, match="needs a GPU: use --target cuda:0"):
        measured(direction=direction)
