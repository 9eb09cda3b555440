"""What one worker of the load generator can do is not what it could while somebody else had its core."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.load import calibrate, null_server
from paceline.load.calibrate import GeneratorCeiling, Probe, RequestKind
from paceline.load.request import Endpoint, Prepared

QUIET = GeneratorCeiling(4000.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-3),))
LATE = GeneratorCeiling(500.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-2),))
NOTHING = GeneratorCeiling(0.0, 10_000.0, (Probe(500.0, 0.5, 0.1, 0.3),))


@contextmanager
def _nobody(behaviour: object, cpu: int | None = None) -> Iterator[tuple[Endpoint, int]]:
    yield Endpoint("kserve-json", "127.0.0.1", 1, "/", "x"), 0


@pytest.mark.parametrize(
    ("seen", "taken", "is_kept"),
    [
        ([QUIET], QUIET, True),
        ([NOTHING, QUIET], QUIET, True),
        ([LATE, NOTHING, QUIET], QUIET, True),
        ([NOTHING, LATE, NOTHING], LATE, False),
    ],
)
def test_a_disturbed_calibration_is_made_again(
    seen: list[GeneratorCeiling],
    taken: GeneratorCeiling,
    is_kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    left = list(seen)
    monkeypatch.setattr(calibrate, "measure", lambda *_: left.pop(0))
    assert calibrate.calibrate((0, 0)) == taken
    assert left == []
    assert (calibrate._remembered(calibrate._key([0, 0])) == taken) is is_kept


def test_what_a_disturbed_worker_did_is_enough_for_a_load_far_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    now = 1000.0
    ticks = itertools.count()
    monkeypatch.setattr(calibrate.time, "monotonic", lambda: now + 1e-6 * next(ticks))
    measured: list[GeneratorCeiling] = []

    def measure(*_: object) -> GeneratorCeiling:
        measured.append(LATE)
        return LATE

    def measures(needed: float, **more: bool) -> bool:
        before = len(measured)
        assert calibrate.calibrate((0, 0), needed=needed, **more) == LATE
        return len(measured) > before

    monkeypatch.setattr(calibrate, "measure", measure)
    assert measures(10.0)
    assert not measures(LATE.rate / 4)
    assert measures(LATE.rate / 3)
    assert measures(math.inf)
    assert measures(10.0, is_fresh=True)
    now += 599.0
    assert not measures(10.0)
    now += 2.0
    assert measures(10.0)
    monkeypatch.setattr(calibrate, "measure", lambda *_: QUIET)
    assert calibrate.calibrate((0, 0)) == QUIET  # from now on this is known
    assert calibrate.calibrate((0, 0), needed=10.0) == QUIET


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 5000, 602_217, 4_816_896, 77_070_336])
def test_requests_are_calibrated_for_at_a_size_that_is_hardly_larger(size: int) -> None:
    endpoint = Endpoint("kserve-binary", "127.0.0.1", 1, "/", "x")
    kind = RequestKind.of(endpoint, [Prepared(b"x" * size), Prepared(b"x" * size)])
    if size <= 4096:
        assert kind == RequestKind()
    else:
        assert size <= kind.size <= size * 9 / 8
        assert len(kind.request.body) == kind.size
    assert RequestKind.of(replace(endpoint, wire="kserve-grpc"), [Prepared(b"x" * size)]) == replace(kind, grpc=True)


def test_ceilings_of_several_kinds_are_remembered_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    monkeypatch.setattr(calibrate, "measure", lambda _endpoint, _cpu, kind: replace(QUIET, rate=1.0 + kind.size))
    large = RequestKind(2**20)
    assert [calibrate.calibrate((0, 0), kind).rate for kind in (RequestKind(), large)] == [1.0, 1.0 + 2**20]
    monkeypatch.setattr(calibrate, "measure", lambda *_: pytest.fail("it was known"))
    assert [calibrate.calibrate((0, 0), kind).rate for kind in (RequestKind(), large)] == [1.0, 1.0 + 2**20]


def test_a_large_request_may_be_late_by_the_time_of_those_before_it() -> None:
    late = Probe(10.0, 1.0, 1e-3, 2e-2)
    assert GeneratorCeiling(10.0, 100.0, (late,)).is_undisturbed
    assert not GeneratorCeiling(10.0, 10_000.0, (late,)).is_undisturbed


def test_a_ceiling_of_a_null_server_that_had_to_wait_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    monkeypatch.setattr(calibrate, "measure", lambda *_: QUIET)
    waited = iter((0.0, 1e9))
    monkeypatch.setattr(calibrate, "waiting_for_cpu", lambda _process: next(waited))
    assert calibrate.calibrate((0, 1)) == QUIET
    assert calibrate._remembered(calibrate._key([0, 1])) is None


def test_how_long_a_process_waits_is_read() -> None:
    assert calibrate.waiting_for_cpu(os.getpid()) >= 0
    assert calibrate.waiting_for_cpu(2**30) == 0


@pytest.mark.parametrize(("size", "users", "number"), [(0, 16, None), (600_000, 16, 3579), (2**28, 1, 20)])
def test_large_requests_are_sent_by_few_and_counted(size: int, users: int, number: int | None) -> None:
    assert (RequestKind(size).users, RequestKind(size).number) == (users, number)


@pytest.mark.parametrize(("kept", "is_remembered"), [((True, True, False), True), ((True, False, False), False)])
def test_a_ceiling_far_below_what_it_should_be_is_not_remembered(
    kept: tuple[bool, ...], is_remembered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = tuple(Probe(500.0 * 4**i, 1.0, 1e-4, 1e-3, one) for i, one in enumerate(kept))
    found = GeneratorCeiling(500.0, 10_000.0, probes)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    monkeypatch.setattr(calibrate, "measure", lambda *_: found)
    assert calibrate.calibrate((0, 0)) == found
    assert (calibrate._remembered(calibrate._key([0, 0])) == found) is is_remembered
