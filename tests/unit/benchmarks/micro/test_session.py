"""How many calls make a sample, issued one by one or recorded into a graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from paceline.benchmarks._micro import session as micro
from paceline.benchmarks._micro.parameters import TIME, MicroParameters
from paceline.benchmarks._micro.session import MicroSession, repeats_for
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.devices import kind_named
from paceline.devices.cpu import CpuDevice

PARAMETERS = MicroParameters(steps=3, warm_up=0.001)
CONTEXT = Context(case=Case(index=0, benchmark="x", parameters={}, title=""))


class Call:
    """Takes next to nothing, but for the calls of these numbers, in which the machine pauses."""

    def __init__(self, pauses: dict[int, float]) -> None:
        self._pauses = pauses
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        time.sleep(self._pauses[self._count]) if self._count in self._pauses else None


def test_a_pause_while_the_number_of_calls_is_sought_does_not_pass_for_a_long_call() -> None:
    with MicroSession(PARAMETERS, CONTEXT, CpuDevice()) as session:
        point = session.time(Call({2: 0.01}), TIME)  # the first call pays for what is lazy
    assert point.calls > 16


def test_repetitions_last_long_enough_although_the_machine_pauses() -> None:
    pauses = [5.0]

    def seconds(count: int) -> float:
        return pauses.pop() if pauses else 1e-6 * count

    assert repeats_for(2e-4, 1 << 20, seconds) == 256
    assert repeats_for(2e-4, 64, lambda count: 1e-6 * count) == 64
    assert repeats_for(2e-4, 64, lambda count: 1.0) == 1


def test_a_long_call_is_a_sample_by_itself() -> None:
    with MicroSession(PARAMETERS, CONTEXT, CpuDevice()) as session:
        point = session.time(lambda: time.sleep(0.001), TIME)
    assert point.calls == 1
    assert point.time.value >= 0.001


class Gpu(CpuDevice):
    """Waits for nothing, but is taken for a GPU."""

    def __init__(self, in_graph: float) -> None:
        super().__init__(kind_named("cuda"))
        self._in_graph = in_graph  # seconds that a recorded call takes

    def capture(self, step: Callable[[], object]) -> Callable[[], object]:
        before = Long.calls
        step()
        recorded = Long.calls - before
        return lambda: busy(recorded * self._in_graph)


class Long:
    """A call that takes Python long enough for a graph to be shorter."""

    calls = 0

    def __call__(self) -> None:
        Long.calls += 1
        busy(2e-5)


def busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.parametrize(("in_graph", "least", "most"), [(1e-6, micro.GRAPH_CALLS, micro.GRAPH_CALLS), (2e-5, 2, 128)])
def test_a_graph_holds_as_many_calls_as_last_for_a_sample_on_the_device(in_graph: float, least: int, most: int) -> None:
    """What Python issues in a millisecond may be over in microseconds, and then the gap between replays counts."""
    with MicroSession(PARAMETERS, CONTEXT, Gpu(in_graph)) as session:
        point = session.time(Long(), TIME, graph=True)
    assert least <= point.calls <= most
    assert point.time.value >= in_graph
    assert "CUDA graph" in point.timing
