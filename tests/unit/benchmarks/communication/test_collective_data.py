"""What a collective must deliver is known for every element, and anything else is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.communication._exchange import EXACT, OPERATIONS, ROOT, Payload, Transfer
from paceline.core.errors import Unsupported

DTYPES = {"fp32": np.float32, "fp16": np.float16}
LARGE = 4 * 3 * 10_000  # bytes: more than one period of the data for each of three ranks


def payloads(name: str, ranks: int, size: int, *, in_place: bool = False, precision: str = "fp32") -> list[Payload]:
    return [
        Payload(
            Transfer(OPERATIONS[name], precision, in_place, seed=5),
            rank,
            ranks,
            size,
            empty=lambda count: np.zeros(count, DTYPES[precision]),
            lift=lambda table: table.astype(DTYPES[precision]),
        )
        for rank in range(ranks)
    ]


def deliver(name: str, everybody: list[Payload]) -> None:
    """The operation by its definition, among arrays of one process."""
    sent: list[Any] = [payload.sent.copy() for payload in everybody]
    shares = [np.array_split(array, len(everybody)) for array in sent]
    for rank, payload in enumerate(everybody):
        match name:
            case "all-reduce":
                payload.received[:] = sum(sent)
            case "reduce":
                if rank == ROOT:
                    payload.received[:] = sum(sent)
            case "broadcast":
                payload.received[:] = sent[ROOT]
            case "all-gather":
                payload.received[:] = np.concatenate(sent)
            case "reduce-scatter":
                payload.received[:] = sum(share[rank] for share in shares)
            case "all-to-all":
                payload.received[:] = np.concatenate([share[rank] for share in shares])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", [1, 12, 1000, LARGE])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_definition_delivers_is_right(name: str, size: int, in_place: bool) -> None:
    everybody = payloads(name, 3, size, in_place=in_place)
    for payload in everybody:
        payload.prepare()
    deliver(name, everybody)
    assert [payload.complaint() for payload in everybody] == [None, None, None]


@pytest.mark.parametrize("element", [0, 17, 8_190, 8_191, 9_999])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_wrong_element_is_named_with_its_rank_and_what_it_should_be(name: str, element: int) -> None:
    everybody = payloads(name, 3, LARGE)
    for payload in everybody:
        payload.prepare()
    deliver(name, everybody)
    right = float(everybody[ROOT].received[element])
    everybody[ROOT].received[element] = np.nextafter(np.float32(right), np.float32(0))  # one bit
    complaint = everybody[ROOT].complaint()
    assert complaint is not None
    assert f"rank 0 received a wrong element in {name} of 117 KiB: element {element} is" in complaint
    assert f"expected {right:g}" in complaint
    assert [payload.complaint() for payload in everybody[1:]] == [None, None]


@pytest.mark.parametrize("distance", [1, 2, 64, 1024, 4096, 8192])
def test_elements_in_the_wrong_place_are_seen(distance: int) -> None:
    everybody = payloads("all-reduce", 3, LARGE)
    for payload in everybody:
        payload.prepare()
    deliver("all-reduce", everybody)
    everybody[2].received[:] = np.roll(everybody[2].received, distance)
    assert everybody[2].complaint() is not None


@pytest.mark.parametrize("name", ["all-gather", "all-to-all"])
def test_parts_of_two_ranks_that_changed_places_are_seen(name: str) -> None:
    everybody = payloads(name, 3, LARGE)
    for payload in everybody:
        payload.prepare()
    deliver(name, everybody)
    first, second, third = np.split(everybody[1].received.copy(), 3)
    everybody[1].received[:] = np.concatenate([first, third, second])
    assert everybody[1].complaint() is not None


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_data_that_never_moved_is_seen(name: str, in_place: bool) -> None:
    everybody = payloads(name, 2, 4096, in_place=in_place)
    for payload in everybody:
        payload.prepare()
        deliver_to_nobody = payload.complaint()
        expects_something = payload.operation.pieces(payload.rank, 2, payload.count)
        holds_it_already = name == "broadcast" and in_place and payload.rank == ROOT
        assert (deliver_to_nobody is not None) == (bool(expects_something) and not holds_it_already)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_sums_stay_exact_in_short_formats(ranks: int) -> None:
    everybody = payloads("all-reduce", ranks, 4096, precision="fp16")
    for payload in everybody:
        payload.prepare()
    total = sum(payload.sent.astype(np.float64) for payload in everybody)
    assert total.max() <= EXACT["fp16"]
    assert np.array_equal(total, total.astype(np.float16).astype(np.float64))


def test_sums_that_no_short_format_can_hold_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="300 ranks cannot be checked exactly in bf16: use fp32"):
        Payload(
            Transfer(OPERATIONS["reduce"], "bf16", in_place=True, seed=1),
            0,
            300,
            4096,
            empty=np.zeros,
            lift=lambda table: table,
        )


@pytest.mark.parametrize(
    ("name", "size", "ranks", "count"),
    [
        ("all-reduce", 1, 4, 1),
        ("all-reduce", 9, 4, 3),
        ("all-gather", 8, 4, 4),
        ("reduce-scatter", 1024, 3, 258),
        ("all-to-all", 1 << 20, 4, 1 << 18),
    ],
)
def test_sizes_become_whole_elements_and_equal_shares(name: str, size: int, ranks: int, count: int) -> None:
    assert OPERATIONS[name].count(size, 4, ranks) == count


@pytest.mark.parametrize(
    ("name", "two", "four", "eight"),
    [
        ("all-reduce", 1.0, 1.5, 1.75),
        ("all-gather", 0.5, 0.75, 0.875),
        ("reduce-scatter", 0.5, 0.75, 0.875),
        ("all-to-all", 0.5, 0.75, 0.875),
        ("broadcast", 1.0, 1.0, 1.0),
        ("reduce", 1.0, 1.0, 1.0),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(name: str, two: float, four: float, eight: float) -> None:
    assert [OPERATIONS[name].factor(ranks) for ranks in (2, 4, 8)] == [two, four, eight]


def test_a_place_that_a_library_does_not_have_is_unsupported() -> None:
    assert OPERATIONS["all-gather"].in_place(True, "torch") is True
    assert OPERATIONS["all-reduce"].in_place(None, "torch") is True
    with pytest.raises(Unsupported, match="all-reduce of torch works in place only"):
        OPERATIONS["all-reduce"].in_place(False, "torch")
    with pytest.raises(Unsupported, match="all-to-all of torch works out of place only"):
        OPERATIONS["all-to-all"].in_place(True, "torch")
