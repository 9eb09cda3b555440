"""Traces whose load is not the one that was asked for, and what is said about each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.load.quality import (
    GeneratorCeiling,
    LoadNotDelivered,
    Probe,
    busy,
    cause,
    delivered,
    own_lateness,
    require_delivered,
    warnings,
)
from paceline.load.trace import BROKEN, OUT_OF_SOCKETS, REFUSED, UNSENT, Trace

PUNCTUAL = Probe(50.0, 1.0, 1e-4, 1e-3)


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
    sent = np.where(broken.status == BROKEN, np.nan, broken.sent)
    lost = replace(broken, sent=sent, dispatched=None, losses=("worker 1 was lost: killed by SIGKILL",))
    with pytest.raises(LoadNotDelivered, match="worker 1 was lost: killed by SIGKILL; look for what ended it"):
        require_delivered(lost)


def test_failures_of_a_lost_worker_are_not_laid_at_the_servers_door() -> None:
    broken = marked(BROKEN, 0.01)
    sent = np.where(broken.status == BROKEN, np.nan, broken.sent)
    assert [one.kind for one in warnings(replace(broken, sent=sent))] == []  # the server cut them off
    lost = replace(broken, sent=sent, losses=("worker 1 was lost: exit code 3",))
    [warning] = warnings(lost)
    assert warning.kind == "unsent"
    assert warning.message == "10 of 1000 requests were lost and count as failures: worker 1 was lost: exit code 3"


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


def test_a_ceiling_that_was_later_still_is_not_what_it_manages_alone() -> None:
    ceiling = GeneratorCeiling(1e6, 1e4, (Probe(500.0, 1.0, 4e-3, 6e-3),))
    (told,) = warnings(trace(late=3e-3), ceiling=ceiling)
    assert told.kind == "late" and "alone" not in told.message


def test_a_closed_loop_has_no_schedule_to_miss_but_may_be_the_slower_part() -> None:
    late = trace(late=3e-3)
    require_delivered(marked(UNSENT, 0.5), "closed")
    assert warnings(late, "closed") == []
    assert [warning.kind for warning in warnings(trace(cpu_seconds=9.9), "closed")] == ["saturated"]


def test_busy_is_a_part_of_all_cores() -> None:
    two = replace(trace(cpu_seconds=10.0), worker=np.arange(1000, dtype=np.int32) % 2)
    assert busy(two) == pytest.approx(0.5, rel=0.01)


def at_once(number: int, late: float) -> Trace:
    """All due at the begin, taken up so much later, and never answered."""
    base = trace(number, late=late, seconds=0.0)
    nothing = np.full(number, np.nan)
    return replace(base, first=nothing, done=nothing)


@pytest.mark.parametrize(("late", "part"), [(0.05, 1.0), (0.051, 0.0)])
def test_a_request_may_go_some_milliseconds_after_the_end_of_the_schedule(late: float, part: float) -> None:
    assert delivered(at_once(10, late)) == part


def test_no_requests_are_no_load() -> None:
    assert delivered(trace(0)) == 0.0
    assert warnings(trace(0), ceiling=GeneratorCeiling(1.0, 1.0, ())) == []
    assert busy(trace(0)) == 0.0


def test_all_but_one_in_a_hundred_must_be_sent() -> None:
    require_delivered(marked(UNSENT, 0.01))
    with pytest.raises(LoadNotDelivered, match=r"only 98\.9 % of the 1000"):
        require_delivered(marked(UNSENT, 0.011))
    require_delivered(marked(UNSENT, 0.5), least=0.5)


def test_requests_that_broke_off_after_they_were_sent_are_no_sign_of_a_lost_worker() -> None:
    slow = replace(marked(BROKEN, 0.5), dispatched=trace().intended * 1.2)
    with pytest.raises(LoadNotDelivered, match="something else kept them busy"):
        require_delivered(slow)


def test_requests_that_were_never_sent_make_no_load() -> None:
    with pytest.raises(LoadNotDelivered, match=r"only 50.0 %"):
        require_delivered(marked(UNSENT, 0.5))
    assert [warning.kind for warning in warnings(marked(UNSENT, 0.5))] == ["unsent"]
    assert warnings(marked(OUT_OF_SOCKETS, 0.5))[0].message.startswith("500 of 1000 requests found no free socket")


def test_time_is_counted_until_the_last_sign_of_any_request() -> None:
    base = trace(2, late=0.0, seconds=4.0, cpu_seconds=2.0)
    nothing = np.full(2, np.nan)
    assert busy(replace(base, done=np.array([8.0, np.nan]))) == 0.25
    assert busy(replace(base, done=nothing)) == 0.5
    assert busy(replace(base, done=nothing, sent=nothing)) == 0.0
    assert busy(replace(base, done=nothing, sent=np.zeros(2))) == 0.0


def test_nine_tenths_of_the_cores_are_saturation() -> None:
    at_the_bound = replace(trace(cpu_seconds=9.0), done=np.linspace(1.0, 10.0, 1000), sent=np.linspace(0, 9.0, 1000))
    assert [warning.kind for warning in warnings(at_the_bound, "closed")] == ["saturated"]
    assert cause(at_the_bound)[0] == "the load generator used 90 % of its cores' time"
    below = replace(at_the_bound, cpu_seconds=8.9)
    assert warnings(below, "closed") == []
    assert cause(below)[0].startswith("the load generator used only 89 %")


@pytest.mark.parametrize(
    ("number", "workers", "kinds"),
    [(700, 1, []), (701, 1, ["near-ceiling"]), (1400, 2, []), (1402, 2, ["near-ceiling"])],
)
def test_each_worker_may_send_seven_tenths_of_what_one_can(number: int, workers: int, kinds: list[str]) -> None:
    base = trace(number)
    shared = replace(base, worker=np.arange(number, dtype=np.int32) % workers)
    told = warnings(shared, ceiling=GeneratorCeiling(100.0, 1e4, (PUNCTUAL,)))
    assert [warning.kind for warning in told] == kinds


def test_what_is_due_at_once_has_no_rate_that_could_be_near_the_ceiling() -> None:
    assert warnings(at_once(1000, 0.0), ceiling=GeneratorCeiling(100.0, 1e4, (PUNCTUAL,))) == []


@pytest.mark.parametrize(("late", "kinds"), [(0.5e-3, []), (0.6e-3, ["late"])])
def test_half_a_millisecond_is_not_late(late: float, kinds: list[str]) -> None:
    assert [warning.kind for warning in warnings(at_once(100, late))] == kinds


def test_the_latest_requests_alone_may_be_late() -> None:
    ceiling = GeneratorCeiling(1e6, 1e4, (Probe(500.0, 1.0, 5e-5, 1e-3), Probe(600.0, 1.0, 6e-5, 2e-3)))
    base = trace()
    late = np.where(np.arange(1000) % 33 == 0, 5e-3, 1e-4)
    some = replace(base, dispatched=base.intended + late, sent=base.intended + late)
    (told,) = warnings(some, ceiling=ceiling)
    assert "by 5 ms at the 99th percentile (alone it manages 1 ms at 500/s)" in told.message
    slow = replace(some, done=base.intended + 0.06)
    assert warnings(slow, ceiling=ceiling) == []


def test_a_ceiling_without_probes_has_nothing_to_name() -> None:
    (told,) = warnings(trace(late=3e-3), ceiling=GeneratorCeiling(1e6, 1e4, ()))
    assert "by 3 ms at the 50th percentile: " in told.message


def test_requests_that_never_went_are_not_late() -> None:
    nothing = np.full(1000, np.nan)
    never = replace(marked(REFUSED, 1.0), sent=nothing, dispatched=nothing, done=nothing)
    assert [warning.kind for warning in warnings(never)] == ["refused"]


def test_lateness_counts_against_the_gaps_between_arrivals() -> None:
    """Slow answers leave room for much lateness, but requests 10 ms apart that go 50 ms late are another schedule."""
    slow = replace(trace(late=0.05), done=trace().intended + 20.0)
    assert [warning.kind for warning in warnings(slow)] == ["late"]
    rare = replace(trace(number=5, late=0.005), done=trace(number=5).intended + 20.0)  # 2.5 s apart
    assert warnings(rare) == []


def test_users_who_wait_may_be_held_up_by_the_client() -> None:
    ceiling = GeneratorCeiling(100.0, 1000.0, (PUNCTUAL,))
    assert [warning.kind for warning in warnings(trace(number=800), "closed", ceiling)] == ["near-ceiling"]
    assert warnings(trace(number=600), "closed", ceiling) == []
    disturbed = replace(ceiling, probes=(replace(PUNCTUAL, lateness_p99=1.0),))  # it can do more than it did
    assert warnings(trace(number=800), "closed", disturbed) == []
