"""Replaying a step as one CUDA graph: where it is asked for, and where that makes a model of the zoo faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.benchmarks._model.session import ModelSession
from paceline.measure.memory import exhausted
from paceline.models.base import Traits

Step = Callable[[], object]

COMPARED = 10  # steps of each kind, or as many as fit into some time, which are a few at least
COMPARED_SECONDS, FEWEST = 0.2, 3
LONGEST = 0.5  # seconds: a host issues tens of thousands of kernels in that time
GAIN = 1.01  # what a graph has to gain, as it hides what memory a step takes


def as_graph(session: ModelSession[Any], step: Step, capture: Callable[[], Step]) -> Step:
    """The step that is measured from now on; the facts say whether it is a graph, and what that gained."""
    choice = session.parameters.graph
    if choice == "off":
        return step
    device, facts = session.device, session.facts
    why_not = _obstacle(session) if choice == "auto" else ""
    if not why_not:
        device.reset_peak_memory()
        seconds = _seconds(session, step)
        peak = device.peak_memory()
        if choice == "auto" and seconds > LONGEST:
            why_not = f"a step takes {seconds:.2g} s, so that the host is not what bounds it"
        elif choice == "auto" and peak is not None and device.free_memory() < peak[0]:
            why_not = "a graph holds the memory of a step once more, and so much is not free"
    if not why_not:
        try:
            replay = capture()
        except Exception as error:
            if choice == "on":
                raise
            memory = "the device's memory is full" if exhausted(error) else ""
            why_not = memory or f"{type(error).__name__}: {error}".splitlines()[0][:200]
            device.release_memory()
        else:
            gain = seconds / _seconds(session, replay)
            if choice == "on" or gain >= GAIN:
                session.is_graph, session.step_memory = True, peak[0] if peak is not None else None
                session.recorded = step
                facts |= {"graph": True, "graph_gain": gain}
                facts["memory_of"] = "the same step without the graph, which cannot tell"
                return replay
            why_not = f"it would be {gain:.3f} times as fast"
            del replay
            device.release_memory()
    facts |= {"graph": False, "no_graph_because": why_not}
    return step


def _obstacle(session: ModelSession[Any]) -> str:
    """Why `auto` does not even try."""
    if not session.device.kind.supports_graphs:
        return f"a {session.device.kind.noun} has none"
    if session.spec.traits.engine != "torch":
        return f"{session.spec.traits.engine} computes it, not torch"
    if session.spec.traits != Traits():
        return "what a model of your own does on the host would be left out: --graph on if it does nothing there"
    if session.ranks.world_size > 1:
        return "ranks talk with each other"
    if session.parameters.batch_size == "auto":
        return "the batch fills the memory"
    return ""


def _seconds(session: ModelSession[Any], step: Step) -> float:
    """Of a step, each waited for where the measured ones are: only then does the host's part of a step show."""
    device, waits = session.device, session.in_flight == 1
    each = device.seconds_of(step)
    if each > 2.0 * LONGEST:  # no doubt is left, and more of them would take many seconds
        return each
    count = max(FEWEST, min(COMPARED, round(COMPARED_SECONDS / max(each, 1e-6))))

    def several() -> None:
        for _ in range(count):
            step()
            if waits:
                device.synchronize()

    return device.seconds_of(several) / count
