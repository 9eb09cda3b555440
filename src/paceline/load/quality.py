"""Whether the load was the intended one, and if not, what the cause is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.core.errors import CaseError
from paceline.core.quantity import show_duration
from paceline.core.record import RecordWarning
from paceline.load.parameters import Loop
from paceline.load.trace import BROKEN, OUT_OF_SOCKETS, REFUSED, UNSENT, Times, Trace

if TYPE_CHECKING:
    from paceline.load.calibrate import GeneratorCeiling

LEAST_DELIVERED = 0.99
SATURATED = 0.9  # of its core's time: a worker this busy is late for what comes next
SAFE_PART = 0.7  # of the ceiling
_SLACK = 0.05  # s after the last intended time within which a request still belongs to the schedule
# How late requests may go: an absolute figure, or if that is more, parts of the latency and of the mean gap between
# arrivals, whichever is less: of slow answers, a part is long enough to make another schedule of the intended one.
_LATE = {50: (0.5e-3, 0.05, 0.5), 99: (2e-3, 0.1, 1.0)}


class LoadNotDelivered(CaseError):
    """The load generator did not send the intended load, so that the answers say nothing about that load."""


def own_lateness(trace: Trace) -> Times:
    """How late the generator took up each request; opening a connection is the network's and the server's time."""
    return (trace.dispatched if trace.dispatched is not None else trace.sent) - trace.intended


def delivered(trace: Trace) -> float:
    """The part of a schedule's requests that were sent, or refused a connection, before the schedule was over."""
    if not len(trace):
        return 0.0
    late = own_lateness(trace) + trace.intended
    is_in_time = late <= trace.intended[-1] + _SLACK
    return float(np.mean(is_in_time & ~np.isin(trace.status, (OUT_OF_SOCKETS, UNSENT))))


def busy(trace: Trace) -> float:
    """The part of its cores' time that the load generator used."""
    finite = [times[np.isfinite(times)] for times in (trace.sent, trace.done)]
    seconds = max((float(times.max()) for times in finite if len(times)), default=0.0)
    workers = len(np.unique(trace.worker))
    return trace.cpu_seconds / (workers * seconds) if seconds > 0 else 0.0


def require_delivered(trace: Trace, loop: Loop = "open", least: float = LEAST_DELIVERED) -> None:
    """Refuse a trace whose load is not the intended one; a closed loop has none."""
    if loop != "open" or (part := delivered(trace)) >= least:
        return
    why, remedy = cause(trace)
    raise LoadNotDelivered(f"only {100 * part:.1f} % of the {len(trace)} requests were sent in time: {why}; {remedy}")


def warnings(trace: Trace, loop: Loop = "open", ceiling: GeneratorCeiling | None = None) -> list[RecordWarning]:
    """What makes these latencies less trustworthy."""
    warnings = []
    for status, kind, words, remedy in (
        (OUT_OF_SOCKETS, "sockets", "found no free socket", "raise ulimit -n or the range of local ports"),
        (REFUSED, "refused", "were refused a connection", "look into the server's log; it may have ended or be full"),
        (UNSENT, "unsent", "were never sent", "look for what ended the load generator's workers"),
    ):
        if number := int(np.count_nonzero(trace.status == status)):
            message = f"{number} of {len(trace)} requests {words}"
            warnings.append(RecordWarning(kind=kind, message=message, remedy=remedy))
    if loop != "open":
        if (used := busy(trace)) >= SATURATED:
            message = f"the load generator used {100 * used:.0f} % of its cores' time: it may be the slower part"
            remedy = "use more workers on free cores, or fewer users"
            warnings.append(RecordWarning(kind="saturated", message=message, remedy=remedy))
    else:
        warnings += _late(trace, ceiling)
    return warnings + _near_ceiling(trace.intended if loop == "open" else trace.done, trace, ceiling)


def _near_ceiling(times: Times, trace: Trace, ceiling: GeneratorCeiling | None) -> list[RecordWarning]:
    """Users who wait for their answers may be held up by the load generator as well as a schedule."""
    seconds = float(times[np.isfinite(times)].max(initial=0.0))
    if ceiling is None or not ceiling.is_undisturbed or seconds <= 0:  # a disturbed worker can do more
        return []
    rate = len(trace) / seconds / len(np.unique(trace.worker))
    if rate <= SAFE_PART * ceiling.rate:
        return []
    message = f"{rate:.0f} requests/s for each worker; {ceiling.rate:.0f}/s is the most that one was measured to send"
    return [RecordWarning(kind="near-ceiling", message=message, remedy="use more workers on free cores")]


def _late(trace: Trace, ceiling: GeneratorCeiling | None) -> list[RecordWarning]:
    late, latency = own_lateness(trace), trace.latency
    late, latency = late[np.isfinite(late)], latency[np.isfinite(latency)]
    gap = float(trace.intended[-1] - trace.intended[0]) / max(1, len(trace) - 1) if len(trace) else 0.0
    for percent, (absolute, part, part_of_gap) in _LATE.items() if len(late) else ():
        lateness = float(np.percentile(late, percent))
        usual = part * float(np.percentile(latency, percent)) if len(latency) else 0.0
        bound = max(absolute, min(usual, part_of_gap * gap))
        if lateness > bound:
            why, remedy = cause(trace)
            alone = ""
            if ceiling and ceiling.probes:
                probe = ceiling.probes[0]
                least = probe.lateness_p50 if percent == 50 else probe.lateness_p99
                alone = f" (alone it manages {show_duration(least)} at {probe.rate:g}/s)"
            message = f"requests went late by {show_duration(lateness)} at the {percent}th percentile{alone}: {why}"
            return [RecordWarning(kind="late", message=message, remedy=remedy)]
    return []


def cause(trace: Trace) -> tuple[str, str]:
    """Why requests went late, and what to do about it."""
    if number := int(np.count_nonzero(trace.status == OUT_OF_SOCKETS)):
        return f"{number} found no free socket", "raise ulimit -n or the range of local ports, or lower the rate"
    if np.any((trace.status == UNSENT) | ((trace.status == BROKEN) & np.isnan(trace.sent))):
        return "a worker of the load generator was lost", "look for what ended it: memory, or somebody's kill"
    percent = f"{100 * busy(trace):.0f} % of its cores' time"
    if busy(trace) >= SATURATED:
        return f"the load generator used {percent}", "use more workers on free cores, or lower the rate"
    why = f"the load generator used only {percent}, so something else kept them busy"
    return why, "keep the server and everything else off the load generator's cores"
