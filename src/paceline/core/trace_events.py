"""A profiler's trace: the events of threads and of a device's streams, and arithmetic with the time they take.

At the end: what an operator of a trace has to compute and to move, by the sizes of its inputs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from paceline.core.files import shipped_rows
from paceline.core.grouping import group_by

STEP_MARK = "paceline step "  # the name of the annotation around a traced step, before its number

Span = tuple[int, int]  # nanoseconds

_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
_HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function", *_LAUNCH_CATEGORIES)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing in a trace."""

    name: str
    start: int
    end: int
    lane: int | str  # the thread, or the device's stream
    on_device: bool
    category: str = "cpu_op"
    correlation: int | None = None  # the same for a launch and for what it launched
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)  # sizes, types, ids: as the file has them

    @property
    def is_talking(self) -> bool:
        """Whether it moves data between ranks."""
        return any(word in self.name.lower() for word in ("gloo:", "nccl", "rccl"))

    @property
    def is_operator(self) -> bool:
        """Whether the host works in it; annotations only give a name to what others do, except those of gloo."""
        is_talking_note = self.category == "user_annotation" and self.is_talking
        return not self.on_device and (self.category == "cpu_op" or is_talking_note)

    @property
    def is_launch(self) -> bool:
        """Whether it is a call that gives work to the device."""
        return self.category in _LAUNCH_CATEGORIES

    @property
    def step(self) -> int | None:
        """Which traced step it marks, if it marks one."""
        is_mark = self.category == "user_annotation" and self.name.startswith(STEP_MARK)
        return int(self.name.removeprefix(STEP_MARK)) if is_mark else None


def read_events(trace: Mapping[str, Any]) -> list[TraceEvent]:
    """The events of a trace in Chrome's format that show where time went."""
    events = []
    for one in trace["traceEvents"]:
        category = one.get("cat")
        on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        if one.get("ph") != "X" or not (on_device or category in _HOST_CATEGORIES):
            continue
        start = round(one["ts"] * 1000)
        events.append(
            TraceEvent(
                name=one["name"],
                start=start,
                end=start + round(one.get("dur", 0) * 1000),
                lane=f"{one['pid']} {one['tid']}",
                on_device=on_device,
                category=category,
                correlation=one.get("args", {}).get("correlation"),
                arguments=one.get("args", {}),
            )
        )
    return events


def own_time(events: Iterable[TraceEvent]) -> Iterator[tuple[TraceEvent, Span]]:
    """Of events that lie within one another in their lanes, when each was the innermost; communication is one whole."""
    around: list[TraceEvent] = []
    now = 0  # until when time is given away

    def until(moment: int) -> Iterator[tuple[TraceEvent, Span]]:
        nonlocal now
        while around and now < moment:
            end = min(around[-1].end, moment)
            if end > now:
                yield around[-1], (now, end)
                now = end
            if around[-1].end <= moment:
                around.pop()

    for lane in lanes(events):
        around, now = [], 0
        for event in lane:
            yield from until(event.start)
            while around and around[-1].end <= event.start:
                around.pop()
            if around and around[-1].is_talking:
                continue  # what is done within it is a part of it
            now = max(now, event.start)
            around.append(event)
        yield from until(max(event.end for event in lane))


def innermost(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Those within which no other of their lane lies."""
    return [
        event
        for lane in lanes(events)
        for event, following in zip(lane, [*lane[1:], None], strict=True)
        if following is None or following.start >= event.end
    ]


def lanes(events: Iterable[TraceEvent]) -> list[list[TraceEvent]]:
    """The events of each lane in order, an outer one before those that begin with it."""
    in_order = sorted(events, key=lambda event: (event.start, -event.end))
    return list(group_by(in_order, lambda event: event.lane).values())


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time that is in both of two unions."""
    common = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(spans: Iterable[Span]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in spans)


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


Sizes = tuple[int, ...]
FORMATS = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::BFloat16": ("bf16", 2), "c10::Half": ("fp16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1), "int": ("int32", 4), "long int": ("int64", 8), "bool": ("bool", 1),
}  # fmt: skip
# Where the operands of a product stand among its inputs.
PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::_int_mm": 0, "aten::addmm": 1, "aten::baddbmm": 1,
    "aten::_grouped_mm": 0,
}  # fmt: skip
# What reads numbers at given places: where these stand among its inputs. It reads and writes no others.
_LOOKUPS = {"aten::embedding": 1, "aten::index_select": 2, "aten::gather": 2}
# Which read or write what is given to them and next to nothing else.
_AS_GIVEN = re.compile(
    r"^aten::(copy_|fill_|zero_|sum|mean|amax|amin|max|min|argmax|argmin|any|all|var|std|norm|linalg_vector_norm|logsumexp)$"
)
# Whose result is not as large as their inputs, in a way that these do not tell.
_UNTOLD = re.compile(
    r"^aten::(nll_loss|cross_entropy|embedding_(dense_)?backward|index$|cat$|_index_put|(new_)?empty|resize_)"
)
# Fused attention of [batch, length, heads, size], where others take [batch, heads, length, size].
_LENGTH_FIRST = ("aten::_flash_attention_", "aten::_efficient_attention_")
# Of a convolution's lists of numbers, which is the padding and which the stride.
_CONVOLUTIONS = {
    "aten::cudnn_convolution": (0, 1), "aten::mkldnn_convolution": (0, 1), "aten::miopen_convolution": (0, 1),
    "aten::convolution": (1, 0), "aten::_convolution": (1, 0), "aten::cudnn_convolution_relu": (1, 0),
    "aten::cudnn_convolution_add_relu": (1, 0), "aten::thnn_conv2d": (2, 1),
}  # fmt: skip
_COMPILED = "triton_"  # its inputs are all that the kernel reads and writes


@dataclass(frozen=True)
class Inputs:
    """The inputs of one operator as a trace has them."""

    event: TraceEvent

    @property
    def sizes(self) -> list[Sizes]:
        """Of the tensors that are not single numbers."""
        return self._whole("Input Dims")

    @property
    def strides(self) -> list[Sizes]:
        return self._whole("Input Strides")

    @property
    def formats(self) -> list[str]:
        return [FORMATS[one][0] for one in self.event.arguments.get("Input type", ()) if one in FORMATS]

    @property
    def product(self) -> tuple[int, int, int, int] | None:
        """How many products, of how many rows and columns, over which inner size."""
        first, sizes = PRODUCTS.get(self.event.name), self.sizes
        if first is None or len(sizes) < first + 2 or len(sizes[first]) < 2 or len(sizes[first + 1]) < 2:
            return None
        (*many, rows, inner), (*_, columns) = sizes[first], sizes[first + 1]
        if self._is_grouped and len(sizes[first]) != len(sizes[first + 1]):
            many = []  # rows or columns are divided among the groups
        return math.prod(many), rows, columns, inner

    @property
    def _is_grouped(self) -> bool:
        """Whether it is products of groups of rows, as mixtures of experts have them."""
        return self.event.name == "aten::_grouped_mm"

    @property
    def format(self) -> str:
        """Of its numbers; of a product, those that are multiplied, not what is added or scales them."""
        first = PRODUCTS[self.event.name] if self.product else 0
        return self.formats[first] if len(self.formats) > first else ""

    @property
    def flops(self) -> float | None:
        """None where the inputs do not tell."""
        if self.product:
            return 2.0 * math.prod(self.product)
        if (convolved := self._convolution) is not None:
            return convolved[0]
        return self._attention_flops

    @property
    def bytes(self) -> float | None:
        """Read and written at least: each input once, and a result as large as the largest of them."""
        width = next((width for one, width in FORMATS.values() if one == self.format), 4)
        name, sizes = self.event.name, self.sizes
        if self.product:
            count, rows, columns, inner = self.product
            result = count * rows * columns
            if self._is_grouped:
                result *= sizes[2][0] if len(sizes[0]) == len(sizes[1]) == 2 and len(sizes) > 2 else 1
                return float(width * (math.prod(sizes[0]) + math.prod(sizes[1]) + result))
            return float(width * (count * (rows * inner + inner * columns) + result))
        if (convolved := self._convolution) is not None:
            return convolved[1] * width
        if not sizes or _UNTOLD.match(name):
            return None
        if name.startswith(_COMPILED) or _AS_GIVEN.match(name):
            return sum(self.bytes_of(place) for place in range(len(self.event.arguments.get("Input Dims", ()))))
        if name in _LOOKUPS:
            return self._looked_up(width)
        return float(width * (sum(map(math.prod, sizes)) + max(map(math.prod, sizes))))

    def _looked_up(self, width: int) -> float | None:
        """Of a lookup: the numbers that are read and written, and their places."""
        given, place = self.event.arguments.get("Input Dims", ()), _LOOKUPS[self.event.name]
        if len(given) <= place or not given[0] or not given[place]:
            return None
        table, places = given[0], math.prod(given[place])
        numbers: int
        if self.event.name == "aten::embedding":
            numbers = places * math.prod(table[1:])
        elif self.event.name == "aten::gather":
            numbers = places
        else:
            axis = next((one for one in self._given[1:2] if isinstance(one, int)), None)
            if axis is None:
                return None
            numbers = places * math.prod(table) // max(1, table[axis])
        return 2.0 * width * numbers + self.bytes_of(place)

    def bytes_of(self, place: int) -> float:
        """Of one input; none of one without a size."""
        sizes, formats = (self.event.arguments.get(name, ()) for name in ("Input Dims", "Input type"))
        size = sizes[place]
        if not size or not all(isinstance(one, int) for one in size):
            return 0.0
        return float(math.prod(size) * (FORMATS.get(formats[place], ("", 4))[1] if place < len(formats) else 4))

    def _whole(self, name: str) -> list[Sizes]:
        given = self.event.arguments.get(name, ())
        return [tuple(one) for one in given if one and all(isinstance(size, int) for size in one)]

    @property
    def _convolution(self) -> tuple[float, float] | None:
        """FLOPs, and numbers read and written, of a convolution of images."""
        name, images = self.event.name, [one for one in self.sizes if len(one) == 4]
        if name == "aten::convolution_backward" and len(images) >= 3:
            result, image, weight = images[:3]
            passes = 2.0  # by the images and by the weights
        elif name in _CONVOLUTIONS and len(images) >= 2:
            image, weight = images[:2]
            lists = [one for one in self._given if isinstance(one, list) and len(one) == 2]
            places = _CONVOLUTIONS[name]
            if len(lists) <= max(places) or "True" in self._given[2:7] or any(one != [1, 1] for one in lists[2:3]):
                return None  # a transposed one, or one with holes
            padding, stride = (lists[place] for place in places)
            across = (
                (size + 2 * pad - kernel) // step + 1
                for size, pad, kernel, step in zip(image[2:], padding, weight[2:], stride, strict=True)
            )
            result, passes = (image[0], weight[0], *across), 1.0
        else:
            return None
        added = math.prod(result) if "_add_" in name else 0
        moved = math.prod(image) + math.prod(weight) + math.prod(result) + added
        return 2.0 * passes * math.prod(result) * math.prod(weight[1:]), passes * moved

    @property
    def _given(self) -> list[object]:
        """Inputs that are not tensors, as far as they can be read."""
        found: list[object] = []
        for one in self.event.arguments.get("Concrete Inputs", ()):
            try:
                found.append(json.loads(str(one)))
            except ValueError:
                found.append(str(one))
        return found

    @property
    def _attention_flops(self) -> float | None:
        """Of fused attention: two products forward and five backward, of half the pairs where it is causal."""
        name, large = self.event.name, [one for one in self.sizes if len(one) == 4]
        is_backward = name.endswith("_backward")
        if group_of(name, on_device=False) != "attention" or len(large) < 3 + is_backward:
            return None
        query, key, value = large[is_backward : 3 + is_backward]  # behind the gradient of the result
        given = [str(one) for one in self.event.arguments.get("Concrete Inputs", ())]
        behind = given[given.index("0.") :] if "0." in given else []  # the part that is dropped, then whether causal
        is_causal = next((one == "True" for one in behind if one in ("True", "False")), False)
        products = 2.5 if is_backward else 1.0
        length = key[1 if name.startswith(_LENGTH_FIRST) else 2]
        pairs = math.prod(query[:-1]) * length * (0.5 if is_causal else 1.0)
        return 2.0 * products * pairs * (query[-1] + value[-1])
