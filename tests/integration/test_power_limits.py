"""A case is measured at a power limit, and whatever ends it, the device has its earlier limit afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.core.record import Outcome
from support.cli import Sandbox, case_processes
from support.dimmable_kind import BEFORE, dimmable_machine, environment, limits_set

PATIENCE = 60.0
ON_DEVICE = {"target": "dimmable:0", "power_limit": 400}
LONG_NAP = {"benchmark": "nap", "duration": "1s", "steps": 600, **ON_DEVICE}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Sandbox]:
    with dimmable_machine(tmp_path / "sandbox") as sandbox:
        yield sandbox


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.long
def test_a_sweep_sets_each_limit_and_restores_it(place: Sandbox) -> None:
    done = place.run(
        *("run", "nap", "--duration", "1ms", "--target", "dimmable:0", "--power-limit", "300W,0.5kW", "--no-report"),
        env=environment(place),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert limits_set(place) == [BEFORE, 300, BEFORE, 500, BEFORE]
    records = place.load().records
    assert [record.case.power_limit for record in records] == [300, 500]
    assert [record.case.title.rpartition(" at ")[2] for record in records] == ["300 W", "500 W"]
    assert len({record.case.key for record in records}) == 2


@pytest.mark.long
def test_a_case_that_crashes_or_takes_too_long(place: Sandbox) -> None:
    hang = {"benchmark": "hang", "timeout": "1s", **ON_DEVICE}
    place.run("run", place.suite({"benchmark": "crash", **ON_DEVICE}, hang), "--no-report", env=environment(place))
    assert [record.outcome for record in place.load().records] == [Outcome.FAILED, Outcome.TIMEOUT]
    assert limits_set(place)[:3] == [BEFORE, 400, BEFORE]
    assert limits_set(place)[-1] == BEFORE


@pytest.mark.long
def test_what_the_device_refuses_is_unsupported_with_the_reason(place: Sandbox) -> None:
    cases = [{"benchmark": "nap", "duration": "1ms", **ON_DEVICE, "power_limit": 900}]
    cases += [{"benchmark": "nap", "duration": "1ms", "target": "dimmable:0", "clock_limit": "1GHz"}]
    place.run("run", place.suite(*cases), "--no-report", env=environment(place))
    power, clock = place.load().records
    assert power.outcome is clock.outcome is Outcome.UNSUPPORTED
    assert power.cause is not None and clock.cause is not None
    assert power.cause.message == "dimmable:0 cannot be held to 900 W: it takes at most 700 W"
    assert "does not know how to set the clock of a dimmable device" in clock.cause.message
    assert limits_set(place) == [BEFORE]


@pytest.mark.long
def test_a_limit_that_cannot_be_restored_is_a_warning_of_the_record(place: Sandbox) -> None:
    (place.folder / "stuck").touch()
    place.run(
        "run", place.suite({"benchmark": "nap", "duration": "1ms", **ON_DEVICE}), "--no-report", env=environment(place)
    )
    (record,) = place.load().records
    assert record.outcome is Outcome.OK
    (warning,) = [one for one in record.warnings if one.kind == "limit-not-restored"]
    assert "the knob is stuck" in warning.message


@pytest.mark.long
def test_a_case_that_is_killed(place: Sandbox) -> None:
    runner = place.start("run", place.suite(LONG_NAP), "--no-report", env=environment(place))
    wait_for(lambda: case_processes(runner.pid))
    assert limits_set(place) == [BEFORE, 400]
    for process in case_processes(runner.pid):
        process.kill()
    runner.communicate(timeout=PATIENCE)
    assert limits_set(place) == [BEFORE, 400, BEFORE]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGTERM))]
)
def test_a_runner_that_is_ended(place: Sandbox, number: signal.Signals) -> None:
    runner = place.start("run", place.suite(LONG_NAP), "--no-report", env=environment(place))
    wait_for(lambda: case_processes(runner.pid))
    assert limits_set(place) == [BEFORE, 400]
    os.killpg(runner.pid, number)
    runner.communicate(timeout=PATIENCE)
    wait_for(lambda: limits_set(place) == [BEFORE, 400, BEFORE])
    assert place.left_behind(PATIENCE) == []
