"""What a trace with the sizes of operators and the Python calls around them shows of work that could be less.

Times are those of the kernels that an operator launched, or, without a device, of the operator itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from paceline.core.grouping import group_by
from paceline.core.trace_events import (
    KINDS,
    PRODUCTS,
    Inputs,
    Sizes,
    Span,
    TraceEvent,
    group_of,
    innermost,
    lanes,
    length,
    overlap,
    own_time,
    union,
)

SignKind = Literal[
    "synchronisation", "host-copy", "layout", "cast", "math-attention", "data-wait", "recompilation"
]  # fmt: skip
TOP = 40  # operations that are kept
FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8")
_FUSIBLE = ("elementwise work", "reductions", "normalisation", "copies")
_FRAME = re.compile(r"^(?P<file>[^<(][^(]*\.py)\((?P<line>\d+)\): (?P<function>.*)$")
# Files that are named by a hash of 51 characters hold compiled code.
_NOT_THE_USERS = re.compile(
    r"(^|/)(torch/|paceline/(?!models)|contextlib\.py|threading\.py|runpy\.py|c[a-z2-7]{50,}\.py$)"
)
_LOADING = "torch/utils/data/"
_WAITING = re.compile(
    r"^enumerate\(DataLoader\)|^<built-in (function sleep|method (acquire|poll|recv|read|readinto|select)\b)"
)
_CONVERSION = re.compile(r"nchwtonhwc|nhwctonchw", re.IGNORECASE)
_ASKING = ("aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose")
_SYNCHRONISATION = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Operation(_Part):
    """One operator with inputs of one kind, from one place of the code."""

    name: str
    group: str
    sizes: tuple[Sizes, ...]  # of its inputs; of a product rows, columns and inner size
    format: str  # of its numbers
    where: str
    calls: float  # in a step
    seconds: float  # in a step, of all calls together
    flops: float | None = None  # of all calls in a step; None where the inputs do not tell
    bytes: float | None = None  # read and written at least

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices, with sizes that are known."""
        return self.name in PRODUCTS and self.flops is not None


class Sign(_Part):
    """Something of which a step without it would be faster."""

    kind: SignKind
    calls: float  # in a step
    seconds: float = 0.0  # in a step
    bytes: float = 0.0  # in a step
    detail: str = ""
    where: str = ""  # the places in the code, the longest first


class StepDetails(_Part):
    """The operations of a step and what could be less, on average over the steps that were looked at."""

    operations: tuple[Operation, ...] = ()  # those that took longest
    signs: tuple[Sign, ...] = ()
    fusible_seconds: float = 0.0  # in chains of operators that touch each number once, all but the longest
    fusible_calls: float = 0.0  # as a part of all operators that compute or move something
    step_seconds: float = 0.0  # of a step in this trace; zero where it was not kept

    def scaled(self, factor: float) -> StepDetails:
        """With all times by a factor."""
        return self.model_copy(
            update={
                "operations": tuple(_with_seconds(one, factor) for one in self.operations),
                "signs": tuple(_with_seconds(one, factor) for one in self.signs),
                "fusible_seconds": factor * self.fusible_seconds,
                "step_seconds": factor * self.step_seconds,
            }
        )


Part = TypeVar("Part", Operation, Sign)


def _with_seconds(one: Part, factor: float) -> Part:
    return one.model_copy(update={"seconds": factor * one.seconds})


@dataclass(frozen=True)
class _Op(Inputs):
    seconds: float
    where: str
    is_loading: bool
    is_outer: bool  # called from Python, not by another operator
    kernels: tuple[TraceEvent, ...]  # that it launched

    @property
    def group(self) -> str:
        return group_of(self.event.name, on_device=False)


def step_details(events: Sequence[TraceEvent], *, on_device: bool) -> StepDetails:
    """What the steps between their marks show, the first of which is left out."""
    marks = sorted((event.step, (event.start, event.end)) for event in events if event.step is not None)
    windows = union(span for _, span in marks[1:])
    steps = len(marks) - 1
    if steps < 1:
        return StepDetails()

    def is_inside(event: TraceEvent) -> bool:
        return any(start <= event.start < end for start, end in windows)

    kernels = [event for event in events if event.on_device]
    ops = list(_operators([event for event in events if not event.on_device], kernels, is_inside, on_device=on_device))
    busy = union((event.start, event.end) for event in kernels)
    work = [op for op in ops if op.seconds > 0 and not op.is_loading and KINDS[op.group] != "other"]
    if not on_device:  # there each operator has the time of its own kernels alone
        outer = set().union(*map(_handing_on, group_by(work, lambda op: op.group).values()))
        work = [op for op in work if id(op.event) not in outer]
    found = [
        _synchronisations(ops, on_device=on_device),
        _copies(ops),
        _casts(work),
        _layout(work),
        _attention(work),
        _waiting([op for op in ops if _WAITING.search(op.event.name)], busy),
    ]
    saved, fewer = _fusible(work)
    return StepDetails(
        operations=tuple(_operations(work, steps)),
        signs=tuple(_per_step(sign, steps) for sign in found if sign is not None),
        fusible_seconds=saved / steps,
        fusible_calls=fewer / len(work) if work else 0.0,
        step_seconds=length(windows) / steps / 1e9,
    )


def _handing_on(ops: Sequence[_Op]) -> set[int]:
    """Those that only call another one of their group whose work is known, which takes some time of a host."""
    known = {id(event) for event in innermost(op.event for op in ops if op.flops or op.bytes)}
    found: set[int] = set()
    for lane in lanes(op.event for op in ops):
        around: list[TraceEvent] = []
        for event in lane:
            while around and around[-1].end <= event.start:
                around.pop()
            if id(event) in known:
                found.update(map(id, around))
            around.append(event)
    return found


def _per_step(sign: Sign, steps: int) -> Sign:
    each = {name: getattr(sign, name) / steps for name in ("calls", "seconds", "bytes")}
    return sign.model_copy(update=each)


def _operators(
    events: list[TraceEvent], kernels: list[TraceEvent], is_inside: Callable[[TraceEvent], bool], *, on_device: bool
) -> Iterator[_Op]:
    """Operators and calls of the runtime within the steps, in order, each with its time and place in the code."""
    placed = sorted(_placed(events), key=lambda one: one[0].start)
    spent: dict[int, float] = defaultdict(float)
    launched: dict[int, list[TraceEvent]] = defaultdict(list)
    if on_device:
        by = {one.correlation: parent for one, _, _, parent in placed if one.is_launch and parent is not None}
        for kernel in kernels:
            if (parent := by.get(kernel.correlation)) is not None:
                launched[id(parent)].append(kernel)
                spent[id(parent)] += (kernel.end - kernel.start) / 1e9
    else:
        for event, (start, end) in own_time(event for event in events if event.is_operator):
            spent[id(event)] += (end - start) / 1e9
    for event, where, is_loading, parent in placed:
        if is_inside(event) and event.step is None:
            key = id(event)
            yield _Op(event, spent.get(key, 0.0), where, is_loading, parent is None, tuple(launched.get(key, ())))


def _placed(events: Iterable[TraceEvent]) -> Iterator[tuple[TraceEvent, str, bool, TraceEvent | None]]:
    """Each event with the innermost call of the user's code around it, or of a backward pass that of the forward one;
    whether data is loaded; and the innermost operator around it.
    """
    forward: dict[Any, str] = {}
    around: list[tuple[TraceEvent, str, bool]] = []
    for event in chain.from_iterable(lanes(events)):  # the lane that began first is that of the forward pass
        while around and (around[-1][0].end <= event.start or around[-1][0].lane != event.lane):
            around.pop()
        where, is_loading = around[-1][1:] if around else ("", False)
        frame = _FRAME.match(event.name) if event.category == "python_function" else None
        number = event.arguments.get("Sequence number")
        if frame and _LOADING in frame["file"]:
            is_loading = True
        elif frame and not _NOT_THE_USERS.search(frame["file"]):
            where = f"{frame['file']}:{frame['line']} ({frame['function']})"
        elif event.name.startswith("enumerate(DataLoader)"):
            is_loading = True
        elif event.name.startswith("autograd::engine"):
            where = forward.get(number, where)
        elif where and number is not None:
            forward[number] = where
        if event.category != "python_function" or _WAITING.search(event.name):
            yield event, where, is_loading, next((one for one, *_ in reversed(around) if one.is_operator), None)
        around.append((event, where, is_loading))


def _places(ops: Iterable[_Op]) -> str:
    """Where they are, those that take longest first."""
    times: dict[str, float] = defaultdict(float)
    for op in ops:
        if op.where:
            times[op.where] += op.seconds
    return ", ".join(sorted(times, key=lambda where: -times[where])[:3])


def _synchronisations(ops: Sequence[_Op], *, on_device: bool) -> Sign | None:
    """The host asks for a number that the device has to compute first."""
    if on_device:
        waits = [op for op in ops if op.event.is_launch and _SYNCHRONISATION.match(op.event.name)]
    else:
        waits = [op for op in ops if op.event.name in _ASKING and op.is_outer and not op.is_loading]
    seconds = sum(op.event.end - op.event.start for op in waits) / 1e9
    return Sign(kind="synchronisation", calls=len(waits), seconds=seconds, where=_places(waits)) if waits else None


def _copies(ops: Sequence[_Op]) -> Sign | None:
    copies = [(one, op) for op in ops for one in op.kernels if "HtoD" in one.name]
    if not copies:
        return None
    kinds = sorted({match[1] for one, _ in copies if (match := re.search(r"\((\w+) ->", one.name))})
    return Sign(
        kind="host-copy",
        calls=len(copies),
        seconds=sum(one.end - one.start for one, _ in copies) / 1e9,
        bytes=sum(float(one.arguments.get("bytes", 0)) for one, _ in copies),
        detail=f"from {' and '.join(kinds).lower()} memory" if kinds else "",
        where=_places(op for _, op in copies),
    )


def _casts(work: Sequence[_Op]) -> Sign | None:
    casts = [
        op for op in work
        if op.event.name == "aten::copy_" and len(set(op.formats[:2])) == 2 and set(op.formats[:2]) <= set(FLOATS)
    ]  # fmt: skip
    if not casts:
        return None
    kinds = sorted({f"{op.formats[1]} to {op.formats[0]}" for op in casts})
    seconds = sum(op.seconds for op in casts)
    return Sign(kind="cast", calls=len(casts), seconds=seconds, detail=", ".join(kinds), where=_places(casts))


def _is_nchw(sizes: Sizes, strides: Sizes) -> bool | None:
    """Whether the numbers of a channel lie together; None where both layouts are the same."""
    if len(sizes) != 4 or len(strides) != 4 or sizes[1] == 1 or sizes[2] * sizes[3] == 1:
        return None
    return strides[1] != 1


def _layout(work: Sequence[_Op]) -> Sign | None:
    """Convolutions of images whose channels do not lie together, and what converts for them."""
    convolutions = [
        op for op in work
        if op.group == "convolutions" and op.sizes and op.strides and _is_nchw(op.sizes[0], op.strides[0])
    ]  # fmt: skip
    if not convolutions:
        return None
    converted = sum((one.end - one.start) / 1e9 for op in work for one in op.kernels if _CONVERSION.search(one.name))
    converted += sum(
        op.seconds for op in work
        if op.event.name == "aten::copy_" and len(op.sizes) > 1 and len(op.strides) > 1
        and {_is_nchw(*one) for one in zip(op.sizes[:2], op.strides[:2], strict=True)} == {True, False}
    )  # fmt: skip
    return Sign(
        kind="layout",
        calls=len(convolutions),
        seconds=converted,
        bytes=4 * sum(op.bytes_of(0) for op in convolutions),  # input and result, each read and written once more
        where=_places(convolutions),
    )


def _attention(work: Sequence[_Op]) -> Sign | None:
    """A softmax between two batched products: passes over a matrix of all pairs, which a fused kernel never stores."""
    products = [(one, op.event.name) for op in work if (one := op.product) is not None]
    results = {(rows, columns) for (count, rows, columns, _), _ in products if count > 1}
    consumed = {(rows, inner) for (count, rows, _, inner), _ in products if count > 1}
    pairs = {
        op.sizes[0][-2:] for op in work
        if op.event.name == "aten::_softmax" and op.sizes and len(op.sizes[0]) > 2
    } & results & consumed  # fmt: skip
    passes = [
        op for op in work
        if KINDS[op.group] == "memory" and any(len(size) > 2 and size[-2:] in pairs for size in op.sizes)
    ]  # fmt: skip
    if not passes:
        return None
    softmax = [op for op in passes if "softmax" in op.event.name]
    detail = ", ".join(sorted(f"{rows} x {columns}" for rows, columns in pairs))
    seconds = sum(op.seconds for op in passes)
    return Sign(kind="math-attention", calls=len(softmax), seconds=seconds, detail=detail, where=_places(softmax))


def _waiting(waits: Sequence[_Op], busy: list[Span]) -> Sign | None:
    """Waiting for data, files or other threads while the device has nothing to do."""
    spans = union((op.event.start, op.event.end) for op in waits)
    seconds = (length(spans) - length(overlap(spans, busy))) / 1e9
    if not seconds > 0:
        return None
    names = ", ".join(sorted({op.event.name.partition("#")[0].strip("<>") for op in waits}))
    return Sign(kind="data-wait", calls=len(waits), seconds=seconds, detail=names, where=_places(waits))


def _fusible(work: Sequence[_Op]) -> tuple[float, int]:
    saved, fewer = 0.0, 0
    together: list[float] = []
    for op in [*work, None]:
        if op is not None and op.group in _FUSIBLE:
            together.append(op.seconds)
        elif together:
            saved, fewer = saved + sum(together) - max(together), fewer + len(together) - 1
            together = []
    return saved, fewer


def _operations(work: Sequence[_Op], steps: int) -> list[Operation]:
    alike: dict[tuple[Any, ...], list[_Op]] = defaultdict(list)
    for op in work:
        sizes = (one,) if (one := op.product) else tuple(op.sizes)
        alike[op.event.name, sizes, op.format, op.where].append(op)
    found = []
    for (name, sizes, kind, where), ops in alike.items():
        first, calls = ops[0], len(ops) / steps
        found.append(
            Operation(
                name=name,
                group=first.group,
                sizes=sizes,
                format=kind,
                where=where,
                calls=calls,
                seconds=sum(op.seconds for op in ops) / steps,
                flops=None if (flops := first.flops) is None else calls * flops,
                bytes=None if (moved := first.bytes) is None else calls * moved,
            )
        )
    return sorted(found, key=lambda one: -one.seconds)[:TOP]
