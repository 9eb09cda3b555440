"""What one worker of the load generator can do is not what it could while somebody else had its core."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.load import native_client, null_server, quality
from paceline.load.parameters import LoadParameters
from paceline.load.quality import GeneratorCeiling, Probe, RequestKind
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import SHED, Trace
from support.traces import trace

QUIET = GeneratorCeiling(4000.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-3),))
LATE = GeneratorCeiling(500.0, 10_000.0, (Probe(500.0, 1.0, 1e-4, 1e-2),))
NOTHING = GeneratorCeiling(0.0, 10_000.0, (Probe(500.0, 0.5, 0.1, 0.3),))


@contextmanager
def _nobody(cpu: int | None = None, *, grpc: bool = False, in_c: bool = False) -> Iterator[tuple[Endpoint, int]]:
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
    monkeypatch.setattr(quality, "measure", lambda *_: left.pop(0))
    assert quality.calibrate((0, 0)) == taken
    assert left == []
    assert (quality._remembered(quality._key([0, 0])) == taken) is is_kept


def test_what_a_disturbed_worker_did_is_enough_for_a_load_far_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    now = 1000.0
    ticks = itertools.count()
    monkeypatch.setattr(quality.time, "monotonic", lambda: now + 1e-6 * next(ticks))
    measured: list[GeneratorCeiling] = []

    def measure(*_: object) -> GeneratorCeiling:
        measured.append(LATE)
        return LATE

    def measures(needed: float) -> bool:
        before = len(measured)
        assert quality.calibrate((0, 0), needed=needed) == LATE
        return len(measured) > before

    monkeypatch.setattr(quality, "measure", measure)
    assert measures(10.0)
    assert not measures(LATE.rate / 4)
    assert measures(LATE.rate / 3)
    assert measures(math.inf)
    now += 599.0
    assert not measures(10.0)
    now += 2.0
    assert measures(10.0)
    monkeypatch.setattr(quality, "measure", lambda *_: QUIET)
    assert quality.calibrate((0, 0)) == QUIET  # from now on this is known
    assert quality.calibrate((0, 0), needed=10.0) == QUIET


def test_a_bad_moment_does_not_lower_what_was_sent_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    better = replace(LATE, rate=1500.0)
    for seen, taken in ((LATE, LATE), (better, better), (LATE, better), (NOTHING, NOTHING), (LATE, better)):
        monkeypatch.setattr(quality, "measure", lambda *_, one=seen: one)
        assert quality.calibrate((0, 0)) == taken


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
    monkeypatch.setattr(quality, "measure", lambda _endpoint, _cpu, kind: replace(QUIET, rate=1.0 + kind.size))
    large = RequestKind(2**20)
    assert [quality.calibrate((0, 0), kind).rate for kind in (RequestKind(), large)] == [1.0, 1.0 + 2**20]
    monkeypatch.setattr(quality, "measure", lambda *_: pytest.fail("it was known"))
    assert [quality.calibrate((0, 0), kind).rate for kind in (RequestKind(), large)] == [1.0, 1.0 + 2**20]


def test_a_large_request_may_be_late_by_the_time_of_those_before_it() -> None:
    late = Probe(10.0, 1.0, 1e-3, 2e-2)
    assert GeneratorCeiling(10.0, 100.0, (late,)).is_undisturbed
    assert not GeneratorCeiling(10.0, 10_000.0, (late,)).is_undisturbed


def test_a_ceiling_of_a_null_server_that_had_to_wait_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(null_server, "started", _nobody)
    monkeypatch.setattr(quality, "measure", lambda *_: QUIET)
    waited = iter((0.0, 1e9))
    monkeypatch.setattr(quality, "waiting_for_cpu", lambda _process: next(waited))
    assert quality.calibrate((0, 1)) == QUIET
    assert quality._remembered(quality._key([0, 1])) is None


def test_how_long_a_process_waits_is_read() -> None:
    assert quality.waiting_for_cpu(os.getpid()) >= 0
    assert quality.waiting_for_cpu(2**30) == 0


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
    monkeypatch.setattr(quality, "measure", lambda *_: found)
    assert quality.calibrate((0, 0)) == found
    assert (quality._remembered(quality._key([0, 0])) == found) is is_remembered


def test_the_kind_of_requests_is_that_of_their_mean_size() -> None:
    endpoint = Endpoint("kserve-binary", "127.0.0.1", 1, "/", "x")
    assert RequestKind.of(endpoint, [Prepared(b"x" * 4000), Prepared(b"x" * 12_384)]) == RequestKind(8192)
    assert RequestKind.of(endpoint, [Prepared(b"x" * 8192)]) == RequestKind(8192)
    assert RequestKind.of(endpoint, [Prepared(b"x" * 8193)]) == RequestKind(8192 + 1024)
    assert RequestKind.of(endpoint, []) == RequestKind()


@pytest.mark.parametrize(("size", "users", "number"), [(1, 16, 4000), (2**25, 8, 64), (2**29, 1, 20)])
def test_the_larger_requests_are_the_fewer_suffice(size: int, users: int, number: int) -> None:
    assert (RequestKind(size).users, RequestKind(size).number) == (users, number)


@pytest.mark.parametrize(
    ("rate", "per_cpu_second", "late", "is_undisturbed"),
    [
        (0.5, 10_000.0, 1e-3, True),
        (0.0, 10_000.0, 1e-3, False),
        (100.0, 10_000.0, 5e-3, False),  # which is the bound
        (100.0, 0.5, 9.0, True),
        (100.0, 0.5, 11.0, False),
        (100.0, 0.0, 9.0, True),
    ],
)
def test_a_ceiling_is_undisturbed_if_its_slowest_probe_was_punctual(
    rate: float, per_cpu_second: float, late: float, is_undisturbed: bool
) -> None:
    probes = (Probe(500.0, 1.0, 1e-4, late), Probe(2000.0, 1.0, 1e-4, 100.0))
    assert GeneratorCeiling(rate, per_cpu_second, probes).is_undisturbed is is_undisturbed
    assert not GeneratorCeiling(rate, per_cpu_second, ()).is_undisturbed


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    made = Clock()
    monkeypatch.setattr(quality, "time", made)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return made


@pytest.mark.parametrize(
    ("cores", "seconds", "waited", "is_remembered"),
    [
        ((0, 1), 1.0, 0.05, True),
        ((0, 1), 0.25, 0.05, False),  # a fifth of the time
        ((0, 1), 10.0, 1.0, False),  # a tenth, which is too much
        ((0, 1), 1.0, 0.5, False),
        ((0, 1, 0), 1.0, 0.5, True),  # it shares its core with the worker: it has to wait
        ((0, 0, 1), 1.0, 0.5, False),
        ((1, 0, 0), 1.0, 0.5, False),
    ],
)
def test_a_null_server_may_wait_for_its_core_for_less_than_a_tenth_of_the_time(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    cores: tuple[int, ...],
    seconds: float,
    waited: float,
    is_remembered: bool,
) -> None:
    clock.now = 0.0
    monkeypatch.setattr(null_server, "started", _nobody)

    def measure(*_: object) -> GeneratorCeiling:
        clock.now += seconds
        return QUIET

    monkeypatch.setattr(quality, "measure", measure)
    before = 100.0 if seconds == 1.0 else 0.0
    looks = iter((before, before + waited))
    monkeypatch.setattr(quality, "waiting_for_cpu", lambda _process: next(looks))
    assert quality.calibrate(cores) == QUIET
    assert (quality._remembered(quality._key(cores)) == QUIET) is is_remembered
    assert quality._remembered(quality._key(cores), 10.0) == QUIET  # enough for so little


def test_how_long_the_null_server_waits_is_a_part_of_the_time_of_the_measurement(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(null_server, "started", _nobody)

    def measure(*_: object) -> GeneratorCeiling:
        clock.now += 1.0
        return QUIET

    monkeypatch.setattr(quality, "measure", measure)
    looks = iter((5.0, 5.5))
    monkeypatch.setattr(quality, "waiting_for_cpu", lambda _process: next(looks))
    quality.calibrate((0, 1))
    assert quality._remembered(quality._key((0, 1))) is None


@pytest.mark.parametrize("cpus", [None, (5, 6, 7)])
def test_the_worker_has_the_first_core_and_the_null_server_the_last(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, ...] | None
) -> None:
    where: list[int | None] = []

    @contextmanager
    def started(cpu: int | None = None, *, grpc: bool = False, in_c: bool = False) -> Iterator[tuple[Endpoint, int]]:
        where.append(cpu)
        with _nobody() as one:
            yield one

    def measure(_endpoint: Endpoint, cpu: int, _kind: RequestKind) -> GeneratorCeiling:
        clock.now += 1.0
        where.append(cpu)
        return LATE

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {7, 6, 5}, 1: {1, 2, 3}}[pid])
    monkeypatch.setattr(null_server, "started", started)
    monkeypatch.setattr(quality, "measure", measure)
    assert quality.calibrate(cpus) == LATE
    assert where == [7, 5, 5, 5]


@pytest.mark.parametrize(("rate", "is_stored"), [(0.0, False), (0.5, True)])
def test_a_disturbed_ceiling_is_worth_something_if_there_was_any_rate(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, rate: float, is_stored: bool
) -> None:
    monkeypatch.setattr(null_server, "started", _nobody)
    looked = replace(LATE, rate=rate)

    def measure(*_: object) -> GeneratorCeiling:
        clock.now += 1.0
        return looked

    monkeypatch.setattr(quality, "measure", measure)
    quality.calibrate((0, 0))
    assert (quality._remembered(quality._key((0, 0)), 0.0) == looked) is is_stored


@pytest.mark.parametrize(
    ("age", "needed", "is_enough"),
    [
        (0.0, 125.0, True),
        (0.0, 126.0, False),
        (0.5, 0.0, True),
        (599.0, 0.0, True),
        (600.0, 0.0, False),
        (-1.0, 0.0, False),
    ],
)
def test_a_disturbed_ceiling_holds_for_a_while_and_for_a_quarter_of_its_rate(
    clock: Clock, age: float, needed: float, is_enough: bool
) -> None:
    quality._remember("key at least", LATE, at=clock.now)
    clock.now += age
    assert (quality._remembered("key", needed) == LATE) is is_enough
    assert quality._remembered("another key", 0.0) is None


def test_ceilings_of_another_boot_are_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "boot", lambda: "first")
    quality._remember("first a", QUIET)
    quality._remember("first b", LATE)
    assert (quality._remembered("first a"), quality._remembered("first b")) == (QUIET, LATE)
    monkeypatch.setattr(quality, "boot", lambda: "second")
    quality._remember("second a", QUIET)
    assert list(json.loads(quality._file().read_text())) == ["second a"]


def test_how_long_a_process_waited_is_in_nanoseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("9000000000 4000000000 17\n")
    monkeypatch.setattr(quality, "Path", lambda text: {"/proc/7/schedstat": tmp_path / "schedstat"}[text])
    assert quality.waiting_for_cpu(7) == 4.0
    (tmp_path / "schedstat").write_text("0\n")
    assert quality.waiting_for_cpu(7) == 0.0


# Measuring.

SERVER = Endpoint("kserve-json", "127.0.0.1", 1, "/", "x")


class Loads:
    """Takes the place of the load generator: loads, and traces that come of them."""

    def __init__(self, closed: Trace) -> None:
        self.closed = closed
        self.loads: list[LoadParameters] = []
        self.more: list[dict[str, Any]] = []
        self.bodies: set[int] = set()
        self.late: dict[float, float] = {}  # s, by rate; otherwise none is

    def drive(self, endpoint: Endpoint, requests: list[Prepared], load: LoadParameters, **more: Any) -> Trace:
        assert endpoint == SERVER
        self.loads.append(load)
        self.more.append(more)
        self.bodies |= {len(request.body) for request in requests}
        if load.arrival == "closed":
            return self.closed
        assert load.arrival == "poisson"
        assert load.rate is not None
        return trace([0.5] * 20, gap=1.0, late=self.late.get(load.rate, 0.0))


def closed_loop(number: int, seconds: float, cpu_seconds: float) -> Trace:
    """Of so many good answers, the last of them after so long, and one more that was none."""
    done = np.append(np.linspace(0.0, seconds, number), 2 * seconds)
    status = np.array([200] * number + [SHED], np.int32)
    return replace(trace([0.1] * (number + 1)), done=done, status=status, cpu_seconds=cpu_seconds)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    made = Loads(closed_loop(10_000, 2.0, 0.5))
    monkeypatch.setattr(quality, "drive", made.drive)
    return made


def test_a_worker_is_probed_below_and_at_parts_of_what_a_closed_loop_reaches(loads: Loads) -> None:
    measured = quality.measure(SERVER, 3)
    assert [probe.rate for probe in measured.probes] == [500.0, 0.4 * 5000.0, 0.7 * 5000.0]
    assert (measured.rate, measured.requests_per_cpu_second) == (0.7 * 5000.0, 20_000.0)
    assert [(load.users, load.duration, load.requests) for load in loads.loads[:1]] == [(16, 0.4, None)]
    assert loads.more == [{"workers": 1, "cpus": [3], "client": "python"}] * 4
    assert loads.bodies == {len(RequestKind().request.body)}
    quality.measure(SERVER)
    assert loads.more[-1] == {"workers": 1, "cpus": None, "client": "python"}


def test_large_requests_are_probed_by_their_number(loads: Loads) -> None:
    quality.measure(SERVER, 3, RequestKind(2**25))
    assert [(load.users, load.duration, load.requests) for load in loads.loads[:1]] == [(8, None, 64)]
    assert loads.bodies == {2**25}


def test_calls_of_grpc_are_probed_by_what_the_worker_itself_needs(loads: Loads) -> None:
    measured = quality.measure(SERVER, 3, RequestKind(grpc=True))
    assert [probe.rate for probe in measured.probes] == [500.0, 2000.0, 0.4 * 20_000.0, 0.7 * 20_000.0]


@pytest.mark.parametrize(("number", "slow"), [(2500, []), (2600, [500.0])])
def test_only_rates_below_the_parts_are_probed_as_well(loads: Loads, number: int, slow: list[float]) -> None:
    loads.closed = closed_loop(number, 2.0, 0.5)
    assert [probe.rate for probe in quality.measure(SERVER).probes[:-2]] == slow


def test_the_ceiling_is_the_highest_rate_that_was_kept(loads: Loads) -> None:
    loads.late = {0.7 * 5000.0: 1.0}
    assert quality.measure(SERVER).rate == 0.4 * 5000.0
    loads.late = {500.0: 1.0, 2000.0: 1.0, 0.7 * 5000.0: 1.0}
    assert quality.measure(SERVER).rate == 0.0


def test_a_worker_that_is_busy_with_one_request_may_be_late_with_the_next(loads: Loads) -> None:
    loads.closed = closed_loop(10, 1.0, 1.0)  # 0.1 s each
    loads.late = {4.0: 0.49, 7.0: 0.51}
    assert [probe.is_kept for probe in quality.measure(SERVER).probes] == [True, False]
    loads.closed = closed_loop(10_000, 2.0, 0.5)
    loads.late = {500.0: 0.049, 2000.0: 0.051}
    assert [probe.is_kept for probe in quality.measure(SERVER).probes] == [True, False, True]


@pytest.mark.parametrize(("cpu_seconds", "expected"), [(0.5, 20.0), (0.0, 1e10)])
def test_requests_are_counted_by_seconds_of_the_core(loads: Loads, cpu_seconds: float, expected: float) -> None:
    loads.closed = closed_loop(10, 1.0, cpu_seconds)
    assert quality.measure(SERVER).requests_per_cpu_second == pytest.approx(expected)


def test_without_a_good_answer_there_is_no_ceiling(loads: Loads) -> None:
    loads.closed = replace(loads.closed, status=np.full(len(loads.closed), SHED, np.int32))
    assert quality.measure(SERVER) == GeneratorCeiling(0.0, 0.0, ())
    assert len(loads.loads) == 1


@pytest.mark.parametrize(
    ("kind", "rate", "seconds"),
    [
        (RequestKind(), 500.0, 0.4),
        (RequestKind(), 10.0, 2.0),  # at least so many requests
        (RequestKind(), 40.0, 0.5),
        (RequestKind(2**25), 80.0, 0.8),
        (RequestKind(2**25), 32.0, 1.0),  # of twice as many
        (RequestKind(2**25), 500.0, 0.4),
    ],
)
def test_a_probe_takes_as_long_as_it_needs(loads: Loads, kind: RequestKind, rate: float, seconds: float) -> None:
    quality._probe(SERVER, rate, [2], kind, 1.0)
    assert loads.loads[0].duration == pytest.approx(seconds)
    assert loads.more == [{"workers": 1, "cpus": [2], "client": "python"}]


@pytest.mark.parametrize(
    ("number", "late", "bound", "is_kept"),
    [
        (20, 0, 1.0, True),
        (20, 1, 1.0, True),  # of a few one may be late
        (20, 2, 1.0, False),
        (200, 2, 1.0, True),
        (200, 3, 1.0, False),
        (20, 0, 0.03125, True),  # the bound itself
        (20, 0, 0.03, False),
    ],
)
def test_a_rate_is_kept_if_enough_went_in_time_and_the_rest_not_much_later(
    monkeypatch: pytest.MonkeyPatch, number: int, late: int, bound: float, is_kept: bool
) -> None:
    one = trace([0.5] * number, gap=0.25, late=0.03125)
    status = np.array(one.status)
    status[:late] = 0  # never sent
    monkeypatch.setattr(quality, "drive", lambda *_, **__: replace(one, status=status))
    probe = quality._probe(SERVER, 500.0, None, RequestKind(), bound)
    assert probe.is_kept is is_kept
    assert [probe.rate, probe.delivered] == pytest.approx([500.0, 1.0 - late / number])


def test_a_probe_tells_the_median_and_the_ninety_ninth_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    one = trace([0.5] * 102, gap=0.25)
    late = np.append(np.arange(101) / 1000, np.nan)
    monkeypatch.setattr(quality, "drive", lambda *_, **__: replace(one, sent=one.intended + late))
    probe = quality._probe(SERVER, 500.0, None, RequestKind(), 1.0)
    assert [probe.lateness_p50, probe.lateness_p99] == pytest.approx([0.05, 0.099])


@pytest.mark.parametrize(("why", "client"), [("", "c"), ("no compiler", "python")])
def test_the_client_that_sends_is_measured_and_remembered_apart(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, why: str, client: str
) -> None:
    servers: list[bool] = []

    @contextmanager
    def started(cpu: int | None = None, *, grpc: bool = False, in_c: bool = False) -> Iterator[tuple[Endpoint, int]]:
        servers.append(in_c)
        clock.now += 1.0
        with _nobody() as one:
            yield one

    def measure(_endpoint: Endpoint, _cpu: int, kind: RequestKind) -> GeneratorCeiling:
        clock.now += 1.0
        return replace(QUIET, rate=9000.0 if kind.client == "c" else 4000.0)

    monkeypatch.setattr(native_client, "missing", lambda: why)
    monkeypatch.setattr(null_server, "started", started)
    monkeypatch.setattr(quality, "measure", measure)
    expected = 9000.0 if client == "c" else 4000.0
    assert quality.calibrate((0, 1), RequestKind(client="c")).rate == expected
    assert quality.calibrate((0, 1), RequestKind()).rate == 4000.0
    assert quality.calibrate((0, 1), RequestKind(client="c")).rate == expected
    assert servers == ([True, False] if client == "c" else [False])
    assert "C" in str(RequestKind(client="c"))
