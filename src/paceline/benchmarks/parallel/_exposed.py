"""Communication that nothing hides: the time in which a rank's data travels while it computes nothing.

Taken from a trace of a few steps after the measured ones. On a GPU the kernels tell: those of NCCL communicate, all
others compute. On a CPU gloo's work tells, and of the operators those that no other is within: the outer ones of a
tensor-parallel layer wait for its communication.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.trace_events import Event, innermost, length, overlap, union

STEPS = 2
_WAITING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms", "##")


def exposed(events: Sequence[Event], *, on_device: bool) -> tuple[int, int]:
    """Nanoseconds of communication, and of those that no computation hides."""
    working = [event for event in events if (event.on_device if on_device else event.is_operator)]
    mine = [event for event in working if event.end > event.start]
    talking = union((event.start, event.end) for event in mine if event.is_talking)
    others = [event for event in mine if not event.is_talking and not event.name.startswith(_WAITING)]
    computing = union((event.start, event.end) for event in (others if on_device else innermost(others)))
    total = length(talking)
    return total, total - length(overlap(talking, computing))
