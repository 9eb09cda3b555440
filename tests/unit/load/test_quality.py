"""Traces whose load is not the one that was asked for, and what is said about each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.load.calibrate import GeneratorCeiling, Probe
from paceline.load.quality import LoadNotDelivered, busy, delivered, own_lateness, require_delivered, warnings
from paceline.load.trace import BROKEN, OUT_OF_SOCKETS, REFUSED, UNSENT, Trace


def trace(number: int = 1000, late: float = 1e-4, seconds: float = 10.0, cpu_seconds: float = 1.0) -> Trace:
    intended = np.linspace(0, seconds, number)
    sent = intended + late
    return Trace(
        intended=intended,
        sent=sent,
        first=sent + 0.005,
        done=sent + 0.005,
        status=np.full(number, 200, np.int32),
        kind=np.zeros(number, np.int32),
        worker=np.zeros(number, np.int32),
        samples=np.ones(number, np.int32),
        cpu_seconds=cpu_seconds,
        dispatched=sent,
    )


def marked(status: int, part: float, base: Trace | None = None) -> Trace:
    base = base or trace()
    changed = np.array(base.status)
    changed[: int(part * len(base))] = status
    return replace(base, status=changed)


def test_a_load_as_it_was_asked_for_raises_no_warning() -> None:
    assert delivered(trace()) == 1.0
    assert warnings(trace()) == []
    require_delivered(trace())


def test_a_client_that_falls_behind_is_refused_and_named() -> None:
    slow = replace(trace(cpu_seconds=11.0), dispatched=trace().intended * 1.2, sent=trace().intended * 1.2)
    assert delivered(slow) == pytest.approx(1 / 1.2, abs=0.01)
    with pytest.raises(LoadNotDelivered, match=r"83\.\d % of the 1000 .* used 9\d % of its cores"):
        require_delivered(slow)


def test_a_client_that_others_kept_from_the_core_is_told_apart() -> None:
    slow = replace(trace(), dispatched=trace().intended * 1.2, sent=trace().intended * 1.2)
    with pytest.raises(LoadNotDelivered, match="something else kept them busy"):
        require_delivered(slow)


def test_exhausted_sockets_are_the_cause_before_any_other() -> None:
    with pytest.raises(LoadNotDelivered, match=r"50 found no free socket.*ulimit"):
        require_delivered(marked(OUT_OF_SOCKETS, 0.05))


def test_a_lost_worker_is_the_cause() -> None:
    broken = marked(BROKEN, 0.5)
    lost = replace(broken, sent=np.where(broken.status == BROKEN, np.nan, broken.sent), dispatched=None)
    with pytest.raises(LoadNotDelivered, match=r"worker .* was lost"):
        require_delivered(lost)


def test_a_server_that_refuses_was_asked_all_the_same() -> None:
    refused = marked(REFUSED, 0.5)
    require_delivered(refused)
    assert [warning.kind for warning in warnings(refused)] == ["refused"]


def test_a_slow_connection_is_not_the_clients_lateness() -> None:
    base = trace()
    waited = replace(base, sent=base.sent + 0.2, first=base.first + 0.2, done=base.done + 0.2)
    assert np.allclose(own_lateness(waited), 1e-4)
    assert warnings(waited) == []


def test_lateness_counts_against_the_latency_that_was_seen() -> None:
    late = trace(late=3e-3)
    assert [warning.kind for warning in warnings(late)] == ["late"]
    slow_server = replace(late, done=late.sent + 1.0)
    assert warnings(slow_server) == []


def test_the_ceiling_is_named_beside_what_was_seen() -> None:
    ceiling = GeneratorCeiling(120.0, 1e4, (Probe(500.0, 1.0, 5e-5, 1e-3),))
    found = {warning.kind: warning.message for warning in warnings(trace(late=3e-3), ceiling=ceiling)}
    assert "alone it manages 50 µs at 500/s" in found["late"]
    assert "100 requests/s" in found["near-ceiling"] and "120/s" in found["near-ceiling"]


def test_a_closed_loop_has_no_schedule_to_miss_but_may_be_the_slower_part() -> None:
    late = trace(late=3e-3)
    require_delivered(marked(UNSENT, 0.5), "closed")
    assert warnings(late, "closed") == []
    assert [warning.kind for warning in warnings(trace(cpu_seconds=9.9), "closed")] == ["saturated"]


def test_busy_is_a_part_of_all_cores() -> None:
    two = replace(trace(cpu_seconds=10.0), worker=np.arange(1000, dtype=np.int32) % 2)
    assert busy(two) == pytest.approx(0.5, rel=0.01)
