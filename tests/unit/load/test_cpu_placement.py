"""Cores are shared out between the server and those who ask it."""

from __future__ import annotations

import os

import pytest

from paceline.load.processes import CpuPlacement, on_cores


def machine(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))


@pytest.mark.parametrize(
    ("cores", "workers", "sending"), [(2, None, 1), (8, None, 1), (16, None, 2), (192, None, 8), (4, 2, 2), (4, 9, 3)]
)
def test_some_cores_send_and_all_others_serve(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int | None, sending: int
) -> None:
    machine(monkeypatch, cores)
    place = CpuPlacement.of_machine(workers)
    assert len(place.load) == sending
    assert sorted((*place.server, *place.load)) == list(range(cores))


def test_a_server_that_may_run_where_the_load_comes_from_shares_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    place = CpuPlacement(server=(0,), load=(1,))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {10: {0}, 11: {0, 1}}[pid])
    assert not place.is_shared([10])
    assert place.is_shared([10, 11])
    assert not place.is_shared([])


def test_what_is_started_on_cores_stays_there_and_the_rest_goes_back() -> None:
    before = os.sched_getaffinity(0)
    with on_cores((min(before),)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
