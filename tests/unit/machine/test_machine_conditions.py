"""Warnings are a function of two looks, so they are tested with literals."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from paceline.core.environment import GpuProcess
from paceline.devices.base import DeviceConditions
from paceline.machine.conditions import (
    Conditions,
    cpu_seconds,
    descendants,
    observe,
    others_share,
    strangers_on,
    warnings,
)

BEFORE = Conditions(
    target="cpu",
    clock=100.0,
    cpus=4,
    cpu_seconds=1000.0,
    busy_seconds=500.0,
    steal_seconds=1.0,
    own_seconds=2.0,
    own_pids=[10],
    quota_stopped_seconds=0.0,
    pressure_seconds={"memory": 0.0},
    swapped_bytes=0,
)
# Ten seconds on four cores, of which our own work took twenty.
QUIET = BEFORE.model_copy(update={"clock": 110.0, "cpu_seconds": 1040.0, "busy_seconds": 520.5, "own_seconds": 22.0})


def kinds(after: Conditions, before: Conditions = BEFORE, own: float | None = None) -> list[str]:
    return [warning.kind for warning in warnings(before, after, own)]


def test_a_quiet_machine_raises_no_warning() -> None:
    assert kinds(QUIET) == []


def test_other_processes() -> None:
    busy = QUIET.model_copy(update={"busy_seconds": 530.0})
    (warning,) = warnings(BEFORE, busy, None)
    assert warning.kind == "contended"
    assert "25%" in warning.message
    assert warning.remedy
    assert kinds(busy, own=30.0) == [], "a caller that knows its own time better is believed"
    assert kinds(QUIET, own=0.0) == ["contended"]


def test_siblings_are_no_strangers() -> None:
    before = BEFORE.model_copy(update={"sibling_seconds": {7: 5.0}})
    busy = QUIET.model_copy(update={"busy_seconds": 535.0})
    assert kinds(busy.model_copy(update={"sibling_seconds": {7: 20.0}}), before) == []
    assert kinds(busy, before) == [], "where a rank has ended, its time is not known, and nothing is claimed"


def test_unknown_counters_raise_no_warning() -> None:
    nothing = Conditions(target="cpu", clock=1.0)
    assert kinds(nothing.model_copy(update={"clock": 2.0}), nothing) == []
    assert others_share(nothing, nothing) is None
    assert kinds(BEFORE) == [], "no time has passed"


def test_steal() -> None:
    assert kinds(QUIET.model_copy(update={"steal_seconds": 3.0})) == ["contended"]
    assert kinds(QUIET.model_copy(update={"steal_seconds": 1.5})) == []


def test_quota() -> None:
    assert kinds(QUIET.model_copy(update={"quota_stopped_seconds": 1.0})) == ["throttled"]


def test_swapping() -> None:
    assert kinds(QUIET.model_copy(update={"swapped_bytes": 64 * 1024**2})) == ["swapping"]
    assert kinds(QUIET.model_copy(update={"swapped_bytes": 4096})) == []
    assert kinds(QUIET.model_copy(update={"pressure_seconds": {"memory": 2.0}})) == ["swapping"]


def with_gpu(conditions: Conditions, **values: object) -> Conditions:
    return conditions.model_copy(update={"target": "cuda:0", "gpus": [DeviceConditions.model_validate(values)]})


@pytest.mark.parametrize("reason", ["hw-slowdown", "sw-thermal-slowdown", "hw-thermal-slowdown"])
def test_slowdown_after(reason: str) -> None:
    after = with_gpu(QUIET, throttle_reasons=["sw-power-cap", reason], temperature_celsius=88)
    (warning,) = warnings(with_gpu(BEFORE), after, None)
    assert warning.kind == "throttled"
    assert reason in warning.message
    assert "88 °C" in warning.message


def test_power_cap_alone_is_said_more_softly() -> None:
    after = with_gpu(QUIET, throttle_reasons=["sw-power-cap"], power_limit_watts=700.0)
    (warning,) = warnings(with_gpu(BEFORE), after, None)
    assert warning.kind == "power-capped"
    assert "700 W" in warning.message


@pytest.mark.parametrize(
    "reasons", [None, [], ["gpu-idle"], ["applications-clocks-setting"], ["gpu-idle", "sync-boost"]]
)
def test_harmless_reasons(reasons: list[str] | None) -> None:
    assert kinds(with_gpu(QUIET, throttle_reasons=reasons), with_gpu(BEFORE)) == []


def test_a_counter_remembers_what_was_over_before_the_second_look() -> None:
    before = with_gpu(BEFORE, held_down_seconds={"hw-thermal-slowdown": 5.0, "sw-power-cap": 1.0})
    thermal = with_gpu(QUIET, held_down_seconds={"hw-thermal-slowdown": 9.0, "sw-power-cap": 1.0})
    power = with_gpu(QUIET, held_down_seconds={"hw-thermal-slowdown": 5.0, "sw-power-cap": 6.0})
    (warning,) = warnings(before, thermal, None)
    assert warning.kind == "throttled"
    assert "40% of the time" in warning.message
    assert kinds(power, before) == ["power-capped"]
    assert kinds(with_gpu(QUIET, held_down_seconds={"thermal": 9.0}), before) == [], "its growth is not known"


def test_strangers_on_the_gpu() -> None:
    def seen(*listed: tuple[int, str | None]) -> DeviceConditions:
        return DeviceConditions(processes=[GpuProcess(pid=pid, name=name) for pid, name in listed])

    assert strangers_on(DeviceConditions(processes=None), [10]) == 0
    assert strangers_on(seen((10, "python")), [10]) == 0
    assert strangers_on(seen((10, "python"), (11, "python")), [10]) == 1
    assert strangers_on(seen((4242, None)), [10]) == 0, "that is us, by the host's number"
    assert strangers_on(seen((4242, None), (4243, None)), [10]) == 1
    assert strangers_on(seen((10, "python"), (4243, None)), [10]) == 1

    after = QUIET.model_copy(update={"target": "cuda:0", "gpus": [seen((10, "python"), (11, "train"))]})
    assert kinds(after, with_gpu(BEFORE)) == ["contended"]


def test_observing_this_machine() -> None:
    first = observe("cpu")
    started = time.perf_counter()
    second = observe("cpu")
    assert time.perf_counter() - started < 0.2  # about 1 ms; the rest is patience with a busy machine
    assert Conditions.model_validate_json(second.model_dump_json()) == second
    assert second.clock > first.clock
    assert second.own_seconds is not None and second.own_pids


SPIN = """
import time
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print(flush=True)
input()
"""


def test_what_a_child_uses_is_ours() -> None:
    before = observe("cpu")
    child = subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in descendants()
        during = observe("cpu")
        assert before.own_seconds is not None and during.own_seconds is not None
        assert child.pid in during.own_pids
        assert during.own_seconds - before.own_seconds > 0.25
    finally:
        child.communicate(b"\n")
    after = observe("cpu")
    assert after.own_seconds is not None and after.own_seconds > during.own_seconds - 0.005, "also once it has ended"
    assert cpu_seconds(child.pid) is None


def test_a_sibling_is_counted() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        seen = observe("cpu", siblings=[child.pid])
        assert child.pid in seen.sibling_seconds
    finally:
        child.communicate(b"\n")
