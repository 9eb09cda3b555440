"""A timed call of a collective is the library's call and nothing beside it."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.communication import _mpi_worker
from paceline.benchmarks.communication._exchange import OPERATIONS, Payload, TorchExchange, Transfer
from paceline.benchmarks.ranks import Ranks
from paceline.devices.cpu import CpuDevice

FUNCTIONS = {
    "all-reduce": ("all_reduce", "Allreduce"),
    "all-gather": ("all_gather_single", "Allgather"),
    "broadcast": ("broadcast", "Bcast"),
    "reduce": ("reduce", "Reduce"),
    "reduce-scatter": ("reduce_scatter_single", "Reduce_scatter_block"),
    "all-to-all": ("all_to_all_single", "Alltoall"),
}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules that are asked for from now on."""
    names: list[str] = []
    real = builtins.__import__

    def noting(name: str, *more: Any, **others: Any) -> Any:
        names.append(name)
        return real(name, *more, **others)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", noting)
        yield names


def noted(calls: list[str], name: str) -> Callable[..., None]:
    return lambda *arguments, **options: calls.append(name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_torch_is_called_without_a_search_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch, imported: list[str]
) -> None:
    from torch import distributed

    calls: list[str] = []
    wanted = FUNCTIONS[name][0]
    monkeypatch.setattr(distributed, wanted, noted(calls, wanted), raising=False)
    exchange = TorchExchange(Transfer(OPERATIONS[name], "fp32", False, 1), Ranks(0, 2), 64, CpuDevice())
    imported.clear()
    exchange.call()
    exchange.start()
    assert calls == [wanted, wanted]
    assert imported == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_mpi_is_called_without_a_search_for_it(name: str, monkeypatch: pytest.MonkeyPatch, imported: list[str]) -> None:
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(IN_PLACE=object())))
    functions = {function: noted(calls, function) for _, function in FUNCTIONS.values()}
    payload = Payload(
        Transfer(OPERATIONS[name], "fp32", False, 1),
        0,
        2,
        64,
        empty=lambda count: np.empty(count, np.float32),
        lift=lambda table: table.astype(np.float32),
    )
    exchange = _mpi_worker.MpiExchange(payload, SimpleNamespace(Get_rank=lambda: 0, **functions))
    imported.clear()
    exchange.call()
    assert calls == [FUNCTIONS[name][1]]
    assert imported == []
