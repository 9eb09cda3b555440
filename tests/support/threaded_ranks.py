"""Several ranks of one mesh as threads of the test's process: collectives go through memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed import multi_threaded_pg

from paceline.benchmarks.parallel import _trainer
from paceline.benchmarks.parallel._parameters import ParallelParameters, build
from paceline.models.base import Workload

T = TypeVar("T")
SECONDS = 60.0


def as_ranks(count: int, work: Callable[[int], T]) -> list[T]:
    """What the work returns on each rank; the first failure of one is raised."""
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store = distributed.HashStore()  # type: ignore[attr-defined]

    def run(rank: int) -> None:
        try:
            distributed.init_process_group("threaded", rank=rank, world_size=count, store=store)
            try:
                results[rank] = work(rank)
                distributed.barrier()
            finally:
                distributed.destroy_process_group()
        except BaseException as error:
            failures.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)

    try:
        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    finally:
        multi_threaded_pg.ProcessLocalGroup.reset()
        multi_threaded_pg._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(count)]


def share_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share what ranks have in processes of their own: the random generator, and the loss over a mesh."""
    lock = threading.Lock()
    parallel_loss = _trainer.loss_parallel
    inside: list[AbstractContextManager[Any]] = []
    count = 0

    def drawn(parameters: ParallelParameters) -> Workload:
        with lock:
            torch.manual_seed(parameters.seed)
            return build(parameters)

    @contextmanager
    def counted() -> Iterator[None]:
        nonlocal count
        with lock:
            count += 1
            if count == 1:
                inside.append(parallel_loss())
                inside[0].__enter__()
        try:
            yield
        finally:
            with lock:
                count -= 1
                if count == 0:
                    inside.pop().__exit__(None, None, None)

    monkeypatch.setattr(_trainer, "seed_everything", lambda _seed: None)  # `drawn` does it
    monkeypatch.setattr(_trainer, "build", drawn)
    monkeypatch.setattr(_trainer, "loss_parallel", counted)
