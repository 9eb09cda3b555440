"""Whether a step is replayed as a graph: where it is asked for, and with auto where it gains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from paceline.benchmarks._model.session import LONGEST, ModelSession, as_graph, open_session
from paceline.benchmarks.inference.inference import InferenceParameters
from paceline.benchmarks.ranks import Ranks
from paceline.core.errors import Unsupported
from paceline.devices.cpu import CpuDevice, CpuKind
from paceline.models.base import Traits
from paceline.models.sources import find_model
from support.scripted import ScriptedClock, ScriptedDevice


class GraphKind(CpuKind):
    noun = "scripted device"
    supports_graphs = True


class GraphDevice(ScriptedDevice):
    """Has 1,000 bytes free, and a step takes 100 of them."""

    free = 1000

    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__(clock)
        self.kind = GraphKind()

    def peak_memory(self) -> tuple[int, int]:
        return 100, 200

    def free_memory(self) -> int:
        return self.free


def session_of(device: CpuDevice, **parameters: Any) -> ModelSession[InferenceParameters]:
    values = InferenceParameters(model="generated/fc", scale="tiny", **parameters)
    session = open_session(
        find_model("generated/fc", allow_import=False), values, CpuDevice(), Ranks(0, 1), "inference"
    )
    return replace(session, device=device)


def asked_for(graph: str, device: CpuDevice) -> ModelSession[InferenceParameters]:
    session = session_of(device)
    return replace(session, parameters=session.parameters.model_copy(update={"graph": graph}))


def steps(clock: ScriptedClock, eager: float, graph: float) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: clock.advance(eager), lambda: clock.advance(graph)


@pytest.mark.parametrize(("eager", "graph", "is_graph"), [(2e-3, 1e-3, True), (2e-3, 2e-3, False), (1e-3, 2e-3, False)])
def test_auto_takes_a_graph_where_it_gains(eager: float, graph: float, is_graph: bool) -> None:
    clock = ScriptedClock()
    session = session_of(GraphDevice(clock))
    step, replay = steps(clock, eager, graph)
    assert as_graph(session, step, lambda: replay) is (replay if is_graph else step)
    assert (session.is_graph, session.facts["graph"]) == (is_graph, is_graph)
    assert session.step_memory == (100 if is_graph else None)
    assert session.facts.get("graph_gain") == (pytest.approx(2.0) if is_graph else None)


@pytest.mark.parametrize(("in_flight", "is_graph"), [(1, True), (2, False)])
def test_the_time_to_issue_a_step_counts_where_each_is_waited_for(in_flight: int, is_graph: bool) -> None:
    clock = ScriptedClock()
    device = GraphDevice(clock)
    session = replace(session_of(device), in_flight=in_flight)

    def step(host: float) -> None:
        clock.advance(host)
        device.issue(5e-2)

    as_graph(session, partial(step, 1e-3), lambda: partial(step, 1e-5))
    assert session.is_graph is is_graph


def test_long_steps_are_compared_in_little_time() -> None:
    clock = ScriptedClock()
    step, replay = steps(clock, 0.4, 0.3)
    assert as_graph(session_of(GraphDevice(clock)), step, lambda: replay) is replay
    assert clock() == pytest.approx(4 * 0.4 + 4 * 0.3)
    begun = clock()
    step, replay = steps(clock, 5.0, 1.0)
    assert as_graph(session_of(GraphDevice(clock)), step, lambda: replay) is step
    assert clock() - begun == pytest.approx(5.0)


def test_what_is_asked_for_is_done_however_slow() -> None:
    clock = ScriptedClock()
    step, replay = steps(clock, 1e-3, 2e-3)
    asked = asked_for("on", GraphDevice(clock))
    assert as_graph(asked, step, lambda: replay) is replay
    off = asked_for("off", GraphDevice(clock))
    assert as_graph(off, step, lambda: replay) is step
    assert (asked.facts["graph"], "graph" in off.facts) == (True, False)


def test_what_cannot_be_captured_is_measured_without_a_graph_unless_it_was_asked_for() -> None:
    clock = ScriptedClock()
    step, _ = steps(clock, 1e-3, 1e-3)

    def fails() -> Any:
        raise RuntimeError("it waits for the host\nand more")

    session = session_of(GraphDevice(clock))
    assert as_graph(session, step, fails) is step
    assert session.facts["no_graph_because"] == "RuntimeError: it waits for the host"
    with pytest.raises(RuntimeError, match="waits for the host"):
        as_graph(asked_for("on", GraphDevice(clock)), step, fails)


def test_auto_does_not_try_where_it_could_be_wrong_or_gains_nothing() -> None:
    def never() -> Any:
        raise AssertionError("it was captured")

    def why(session: ModelSession[InferenceParameters], seconds: float = 1e-3) -> str:
        step, _ = steps(clock, seconds, seconds)
        assert as_graph(session, step, never) is step
        return str(session.facts["no_graph_because"])

    clock = ScriptedClock()
    usual = session_of(GraphDevice(clock))
    own = replace(usual, spec=replace(usual.spec, traits=Traits(noun="file")))
    full = GraphDevice(clock)
    full.free = 99
    assert why(session_of(CpuDevice())) == "a CPU has none"
    assert why(own).startswith("what a model of your own does on the host would be left out")
    assert why(replace(usual, ranks=Ranks(0, 2))) == "ranks talk with each other"
    assert why(session_of(GraphDevice(clock), batch_size="auto")) == "the batch fills the memory"
    assert why(replace(usual, device=full)).endswith("so much is not free")
    assert why(usual, 2 * LONGEST).startswith("a step takes 1 s")


def test_graphs_that_a_device_does_not_have_are_refused() -> None:
    with pytest.raises(Unsupported, match="graph = on replays CUDA graphs, which a CPU does not have"):
        session_of(CpuDevice(), graph="on")
