"""A new store that many open at the same moment: each gets it whole, and it is migrated once."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from paceline.store import open_store
from support.store_samples import a_run

MANY = 8
PATIENCE = 120.0  # seconds; only what hangs takes so long


def open_and_begin(url: str, together: Barrier | threading.Barrier, run_id: str) -> None:
    together.wait(PATIENCE)
    with open_store(url) as store:
        store.begin(a_run(run_id))


def in_threads(urls: Sequence[str]) -> None:
    together, failed = threading.Barrier(len(urls)), list[Exception]()

    def work(number: int) -> None:
        try:
            open_and_begin(urls[number], together, f"run-{number}")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(urls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failed == []


def in_processes(urls: Sequence[str]) -> None:
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(len(urls))
    openers = [
        fork.Process(target=open_and_begin, args=(url, together, f"run-{number}")) for number, url in enumerate(urls)
    ]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(PATIENCE)
    assert [opener.exitcode for opener in openers] == [0] * len(urls)


@pytest.mark.parametrize("openers", [in_threads, in_processes])
def test_many_may_open_a_new_store_at_once(url: str, openers: Callable[[Sequence[str]], None]) -> None:
    openers([url] * MANY)
    with open_store(url) as store:
        assert {row.id for row in store.runs(limit=None)} == {f"run-{number}" for number in range(MANY)}


def test_threads_may_open_new_stores_of_their_own_at_once(tmp_path: Path) -> None:
    places = [str(tmp_path / f"{number}.db") for number in range(MANY)]
    in_threads(places)
    for number, place in enumerate(places):
        with open_store(place) as store:
            assert [row.id for row in store.runs(limit=None)] == [f"run-{number}"]
