"""A computation and a collective side by side: each one's end is its own, whichever comes first."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import torch

from paceline.benchmarks.communication.compute_during_collective import HostRunner


def handle_of(future: torch.futures.Future[Any]) -> SimpleNamespace:
    return SimpleNamespace(get_future=lambda: future)


def test_a_collective_that_ends_first_is_not_charged_with_the_rest_of_the_computation() -> None:
    future: torch.futures.Future[Any] = torch.futures.Future()
    ended = threading.Event()

    def carry_out() -> None:
        future.set_result(None)  # what waits for it runs here, before it returns
        ended.set()

    def compute() -> None:
        threading.Thread(target=carry_out).start()
        ended.wait()

    seen = HostRunner()(compute, lambda: handle_of(future))
    assert 0 < seen.arrived < seen.computed
    assert seen.whole == seen.computed


def test_a_collective_that_ends_last_is_waited_for() -> None:
    future: torch.futures.Future[Any] = torch.futures.Future()
    computed = threading.Event()
    thread = threading.Thread(target=lambda: (computed.wait(), future.set_result(None)))
    thread.start()
    seen = HostRunner()(computed.set, lambda: handle_of(future))
    thread.join()
    assert seen.computed > 0
    assert seen.arrived > 0
    assert seen.whole == max(seen.computed, seen.arrived)


def test_what_did_not_run_took_no_time() -> None:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(None)
    assert HostRunner()(lambda: None, None).arrived == 0.0
    assert HostRunner()(None, lambda: handle_of(future)).computed == 0.0
