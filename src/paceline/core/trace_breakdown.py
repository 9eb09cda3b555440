"""Where the time of traced steps went: the shares of compute, memory, communication and idling, and the top kernels.

Every moment of a step is counted once. While several things run at a time, it belongs to the first of computing,
moving memory, communicating and other work, so that communication counts only where nothing hides it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict

from paceline.core.files import shipped_rows
from paceline.core.trace_events import Span, TraceEvent, length, overlap, own_time, union

Kind = Literal["compute", "memory", "communication", "other"]

# What bounds each group on usual hardware: arithmetic for products, the memory for everything that touches each number
# once.
KINDS: dict[str, Kind] = {
    "convolutions": "compute",
    "attention": "compute",
    "matrix products": "compute",
    "recurrent layers": "compute",
    "normalisation": "memory",
    "the optimizer": "memory",
    "copies": "memory",
    "indexing": "memory",
    "reductions": "memory",
    "elementwise work": "memory",
    "communication": "communication",
    "compiled code": "other",
    "dispatch": "other",
    "other work": "other",
}

_GROUPS = [
    (row["of"] == "kernel", row["group"], re.compile(row["words"]))
    for row in shipped_rows("paceline.core", "trace_groups.csv")
]


@lru_cache(maxsize=4096)
def group_of(name: str, *, on_device: bool) -> str:
    """What the kernel or the operator of this name does; a key of KINDS."""
    plain = name.lower()
    if not on_device:
        plain = re.sub(r"^(aten|prims|torchvision|quantized|mkldnn|onednn|profiler)::", "", plain)
    fitting = (group for of_device, group, words in _GROUPS if of_device is on_device and words.search(plain))
    return next(fitting, "other work")


ORDER: tuple[Kind, ...] = ("compute", "memory", "communication", "other")
IDLE = "idle"
TOP = 15  # kernels that are kept
NAME_LENGTH = 200  # of a kernel: templates make names of thousands of characters
# A rank in one of these waits for others: neither work nor data on its way.
_WAITING = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "record_param_comms")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class KernelTime(_Part):
    """One kernel, or one operator without those within it, in a step."""

    name: str
    group: str
    kind: Kind
    calls: float  # in a step
    seconds: float  # in a step, of all calls together
    share: float  # of the step's time during which at least one of them ran


class TimeSpent(_Part):
    """Where the time of a step went, on average over those that were traced."""

    on_device: bool  # whether by a device's kernels, or by the host's operators
    steps: int
    step_seconds: float
    shares: dict[str, float]  # of compute, memory, communication that nothing hides, other and idle; together 1
    hidden_communication: float  # share of the step in which data travels while something else is computed
    groups: dict[str, float]  # share of the step during which each group ran, the largest first
    kernels: list[KernelTime]  # those that took longest
    kernel_names: int  # how many different ones there were
    launches: float = 0.0  # of all kernels in a step, or calls of operators


def time_spent(events: Sequence[TraceEvent], *, on_device: bool, steps_queue: bool) -> TimeSpent | None:
    """Where the time went by a trace; None if it has no steps, or no work of the kind that is looked at.

    The steps lie between their marks, the first of which is left out. If steps queue on a device, its work tells where
    they lie: each from the completion of the one before it, as they are timed.
    """
    windows = _completions(events) if steps_queue else [span for _, span in _marks(events)[1:]]
    # What ran when: kernels as they are, operators without those that lie within them.
    workers = [event for event in events if (event.on_device if on_device else event.is_operator)]
    lasting = [event for event in workers if event.end > event.start]
    if on_device:
        parts = [(event, (event.start, event.end)) for event in lasting]
    else:
        parts = [(event, span) for event, span in own_time(lasting) if not event.name.startswith(_WAITING)]
    if not windows or not parts:
        return None
    inside = union(windows)
    total, steps = length(inside), len(windows)
    by_name: dict[str, list[Span]] = {}
    by_group: dict[str, list[Span]] = {}
    for event, span in parts:
        by_name.setdefault(event.name, []).append(span)
        by_group.setdefault(group_of(event.name, on_device=on_device), []).append(span)
    within = {group: overlap(union(spans), inside) for group, spans in by_group.items()}
    groups = {group: length(spans) / total for group, spans in within.items() if spans}
    shares, hidden = _shares(within, total)
    calls = Counter(event.name for event in workers if any(start <= event.start < end for start, end in inside))
    kernels = []
    for name, spans in by_name.items():
        seconds = sum(length(overlap([span], inside)) for span in spans) / steps / 1e9
        if seconds > 0:
            group = group_of(name, on_device=on_device)
            share = length(overlap(union(spans), inside)) / total
            kernel = KernelTime(
                name=name[:NAME_LENGTH],
                group=group,
                kind=KINDS[group],
                calls=calls[name] / steps,
                seconds=seconds,
                share=share,
            )
            kernels.append(kernel)
    kernels.sort(key=lambda kernel: (-kernel.seconds, kernel.name))
    return TimeSpent(
        on_device=on_device,
        steps=steps,
        step_seconds=total / steps / 1e9,
        shares=shares,
        hidden_communication=hidden,
        groups=dict(sorted(groups.items(), key=lambda group: (-group[1], group[0]))),
        kernels=kernels[:TOP],
        kernel_names=len(kernels),
        launches=calls.total() / steps,
    )


def _shares(within: dict[str, list[Span]], total: int) -> tuple[dict[str, float], float]:
    """The share of each kind, every moment counted once; and that of communication which others hide."""
    taken: list[Span] = []
    shares: dict[str, float] = {}
    hidden = 0.0
    for kind in ORDER:
        mine = union(span for group, spans in within.items() if KINDS[group] == kind for span in spans)
        both = union([*taken, *mine])
        shares[kind] = (length(both) - length(taken)) / total
        if kind == "communication":
            hidden = length(mine) / total - shares[kind]
        taken = both
    return shares | {IDLE: 1.0 - length(taken) / total}, hidden


def _marks(events: Iterable[TraceEvent]) -> list[tuple[int, Span]]:
    return sorted((event.step, (event.start, event.end)) for event in events if event.step is not None)


def _completions(events: Sequence[TraceEvent]) -> list[Span]:
    """From the end of each step's last work on the device to that of the next step."""
    marks = _marks(events)
    launches = (event for event in events if event.is_launch)
    launched = {one.correlation: step for one in launches for step, (start, end) in marks if start <= one.start < end}
    ends: dict[int, int] = {}
    for event in events:
        step = launched.get(event.correlation) if event.on_device else None
        if step is not None:
            ends[step] = max(ends.get(step, 0), event.end)
    in_order = [ends[step] for step, _ in marks if step in ends]
    return [(before, after) for before, after in pairwise(in_order) if after > before]
