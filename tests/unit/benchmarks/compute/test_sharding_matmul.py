"""A divided product: which axis is split, what cannot be divided, and a rank's lost part is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from paceline.benchmarks.compute.sharding_matmul import (
    ShardedProduct,
    ShardingMatmul,
    ShardingMatmulParameters,
    divisible,
)
from paceline.benchmarks.ranks import Ranks
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices.cpu import CpuDevice
from support.refused import refused

SMALL = {"m": 24, "n": 40, "k": 56}
MODES = ["all-reduce", "all-gather"]


def case(ranks: int) -> Case:
    return Case(index=0, benchmark="sharding-matmul", parameters={}, title="", target="cpu", ranks=ranks)


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("mode", MODES)
def test_the_whole_result_has_the_shape_and_values_of_the_undivided_product(mode: Any) -> None:
    made = ShardedProduct(ShardingMatmulParameters(mode=mode, **SMALL), CpuDevice(), Ranks(0, 1))
    assert made.call().shape == (24, 40)
    made.check()
    assert made.worst <= 1


@pytest.mark.parametrize("mode", MODES)
def test_a_collective_that_loses_what_others_sent_is_silent_corruption(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_mine(whole: torch.Tensor, part: torch.Tensor) -> None:
        whole[: part.shape[0]].copy_(part)

    monkeypatch.setattr(distributed, "all_reduce", lambda tensor: None)
    for name in ("all_gather_single", "all_gather_into_tensor"):
        monkeypatch.setattr(distributed, name, only_mine, raising=False)
    made = ShardedProduct(ShardingMatmulParameters(mode=mode, **SMALL), CpuDevice(), Ranks(0, 2))
    with pytest.raises(SilentCorruption):
        made.check()


@pytest.mark.parametrize(("mode", "elements"), [("all-reduce", 24 * 40), ("all-gather", 24 * 20)])
def test_a_rank_sends_its_partial_result_or_its_columns(mode: Any, elements: int) -> None:
    made = ShardedProduct(ShardingMatmulParameters(mode=mode, **SMALL), CpuDevice(), Ranks(1, 2))
    assert made.communicated_bytes == 4 * elements


@pytest.mark.parametrize(
    ("mode", "name", "size", "better"), [("all-reduce", "k", 100, 99), ("all-gather", "n", 101, 102)]
)
def test_an_axis_that_the_ranks_cannot_share_is_refused_with_one_that_they_can(
    mode: Any, name: str, size: int, better: int
) -> None:
    parameters = ShardingMatmulParameters(mode=mode, **{name: size})
    with refused("not-divisible", key=name, value=size, suggestion=str(better)):
        ShardingMatmul.check(parameters, case(3))
    ShardingMatmul.check(ShardingMatmulParameters(mode=mode, **{name: better}), case(3))


def test_the_other_axis_may_be_anything() -> None:
    ShardingMatmul.check(ShardingMatmulParameters(mode="all-reduce", n=100), case(3))
    ShardingMatmul.check(ShardingMatmulParameters(mode="all-gather", k=100), case(3))


def test_the_devices_own_shape_is_rounded_for_the_ranks() -> None:
    assert divisible((10, 10, 10), "all-reduce", 4) == (10, 10, 12)
    assert divisible((10, 10, 10), "all-gather", 4) == (10, 12, 10)
    assert divisible((10, 10, 10), "all-gather", 5) == (10, 10, 10)


def test_one_rank_is_told_how_to_get_more() -> None:
    with pytest.raises(Unsupported, match="use --ranks 2"):
        ShardingMatmul().measure(ShardingMatmulParameters(), Context(case=case(1)))
