"""What operators of a real trace compute and move, each counted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.core.trace_events import Inputs, TraceEvent
from paceline.core.trace_signs import Operation, StepDetails
from support.explained import explained_gpu, launched, traced_on_cpu

torch = pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")
from torch.nn import functional as F  # noqa: E402


def details(step: Callable[[], object]) -> StepDetails:
    return traced_on_cpu(step).details


def named(name: str, step: Callable[[], object]) -> Operation:
    (found,) = [one for one in details(step).operations if one.name == f"aten::{name}"]
    return found


def test_a_convolution_is_one_whatever_calls_it() -> None:
    images, weight = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    found = details(lambda: F.conv2d(images, weight, padding=1))
    (sign,) = [one for one in found.signs if one.kind == "layout"]
    assert (sign.calls, sign.bytes) == (1, 4 * images.numel() * 4)
    assert [one.flops for one in found.operations if one.group == "convolutions"] == [2.0 * 4 * 16 * 32 * 32 * 16 * 9]


def test_attention_is_counted_once() -> None:
    query = torch.randn(1, 4, 64, 32)
    found = details(lambda: F.scaled_dot_product_attention(query, query, query))
    assert [one.flops for one in found.operations if one.group == "attention"] == [2.0 * 4 * 64 * 64 * 64]


def test_a_lookup_moves_what_it_finds_and_not_its_table() -> None:
    table, places = torch.randn(5000, 64), torch.randint(0, 5000, (40,))
    moved = 2 * 4 * 40 * 64 + 8 * 40
    for step in (
        lambda: table.index_select(0, places),
        lambda: F.embedding(places, table),
    ):
        assert [one.bytes for one in details(step).operations if one.group == "indexing"] == [moved]
    columns = torch.zeros(3, 64, dtype=torch.long)
    assert named("gather", lambda: table.gather(0, columns)).bytes == 2 * 4 * 3 * 64 + 8 * 3 * 64
    across = torch.randint(0, 64, (40,))
    assert named("index_select", lambda: table.index_select(1, across)).bytes == 2 * 4 * 40 * 5000 + 8 * 40


def test_a_reduction_reads_and_a_copy_reads_and_writes() -> None:
    table, narrow = torch.randn(5000, 64), torch.empty(5000, 64, dtype=torch.bfloat16)
    assert named("sum", lambda: table.sum()).bytes == 4 * 5000 * 64
    assert named("copy_", lambda: narrow.copy_(table)).bytes == (4 + 2) * 5000 * 64
    assert named("add", lambda: table + table).bytes == 3 * 4 * 5000 * 64


def test_nothing_is_said_of_work_that_inputs_do_not_tell() -> None:
    scores, right = torch.randn(40, 500), torch.randint(0, 500, (40,))
    assert named("nll_loss_forward", lambda: F.nll_loss(scores, right)).bytes is None


@pytest.mark.parametrize(
    ("left", "right", "flops", "numbers"),
    [
        ((32, 64), (4, 64, 16), 2 * 32 * 64 * 16, 32 * 64 + 4 * 64 * 16 + 32 * 16),
        ((4, 16, 64), (64, 32), 2 * 16 * 64 * 32, 4 * 16 * 64 + 64 * 32 + 16 * 32),
        ((16, 32), (32, 64), 2 * 16 * 32 * 64, 16 * 32 + 32 * 64 + 4 * 16 * 64),
        ((4, 8, 64), (4, 64, 16), 2 * 4 * 8 * 64 * 16, 4 * (8 * 64 + 64 * 16 + 8 * 16)),
    ],
)
def test_grouped_products_have_the_work_of_their_rows(
    left: tuple[int, ...], right: tuple[int, ...], flops: int, numbers: int
) -> None:
    event = TraceEvent(
        name="aten::_grouped_mm",
        start=0,
        end=1,
        lane=1,
        on_device=False,
        arguments={
            "Input Dims": [list(left), list(right), [4], []],
            "Input type": ["c10::BFloat16", "c10::BFloat16", "int", ""],
        },
    )
    inputs = Inputs(event)
    assert (inputs.format, inputs.flops, inputs.bytes) == ("bf16", flops, 2 * numbers)


def test_on_a_device_an_operator_with_a_kernel_of_its_own_counts_beside_what_it_calls() -> None:
    sizes = {"Input_Dims": [[1000]], "Input_type": ["float"]}
    outer, *others = launched(1, "aten::topk", "gather_topk", 1100, 50, **sizes)
    inner = launched(2, "aten::sort", "radix_sort", 1110, 5, **sizes)
    found = explained_gpu(outer | {"dur": 40}, *others, *inner).details.operations
    assert {one.name: one.seconds for one in found} == pytest.approx({"aten::topk": 50e-6, "aten::sort": 5e-6})
