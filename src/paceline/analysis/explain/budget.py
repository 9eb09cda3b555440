"""A step as a budget that adds up: at its ceilings, beyond them, waiting, and what nothing explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.analysis.roofline import KnownCeilings, Roof, RoofKey, device_of, known_roofs
from paceline.core.errors import InputError
from paceline.core.quantity import show_duration
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import DEVICE_MEMORY, MAIN_MEMORY, StepTrace, Work, number_format
from paceline.core.trace_breakdown import IDLE, KINDS, TimeSpent
from paceline.core.trace_signs import Operation, StepDetails

STEP_TIME = "step_time"
DATASHEET = "datasheet"


@dataclass(frozen=True)
class BudgetPart:
    """Some of the time of a step."""

    name: str
    seconds: float  # below zero only of what is unexplained: then the traced steps were longer than the measured ones
    why: str


@dataclass(frozen=True)
class BoundOperation:
    """An operation or a kernel, and how far it stays from what its machine can do."""

    name: str
    does: str
    where: str
    calls: float
    seconds: float
    bound: str = ""  # compute or memory; empty where its work is not known
    best: float | None = None  # seconds at the ceiling


@dataclass(frozen=True)
class Traced:
    """One traced case with all that an explanation rests on."""

    record: Record
    step: float  # seconds, measured
    trace: StepTrace
    spent: TimeSpent
    roofs: Mapping[RoofKey, Roof]

    @property
    def details(self) -> StepDetails:
        return self.trace.details or StepDetails()

    @property
    def format(self) -> str:
        """What its units compute in."""
        work, precision = self.record.work, self.record.subject.precision
        return work.number_format if work else number_format(precision or "fp32")

    def compute(self, number: str | None = None) -> Roof | None:
        """The ceiling of products in a number format, that of the case unless another is named."""
        return self.roofs.get((device_of(self.record), "compute", number or self.format))

    @property
    def memory(self) -> Roof | None:
        device = device_of(self.record)
        return self.roofs.get((device, "memory", MAIN_MEMORY if device == "cpu" else DEVICE_MEMORY))

    def of(self, kind: str) -> float:
        """Seconds of a step that went to one kind of work."""
        return self.spent.shares.get(kind, 0.0) * self.spent.step_seconds

    @property
    def gaps(self) -> float:
        """Seconds without work, less what tracing itself adds before each kernel of a graph."""
        return max(0.0, self.of(IDLE) - self.traced_gaps)

    @property
    def traced_gaps(self) -> float:
        """Seconds of a traced step that tracing adds between kernels, where that was measured."""
        return min(self.of(IDLE), self.spent.launches * (self.trace.launch_cost or 0.0))

    @property
    def idle(self) -> float:
        """Seconds without work that a measured step can have had: tracing makes a step longer by more of them."""
        busy = self.spent.step_seconds - self.of(IDLE)
        return min(self.gaps, max(0.0, self.step - busy))

    @property
    def host_bound(self) -> float:
        """Seconds that the host needs to issue a step; none where it also waits for the device in it."""
        waits = any(sign.kind == "synchronisation" for sign in self.details.signs)
        return 0.0 if waits else min(self.step, self.trace.issue_seconds or 0.0)

    def best(self, one: Operation) -> tuple[str, float] | None:
        """What bounds an operation, and its seconds at that ceiling; None where its work or a ceiling is not known."""
        times = {}
        if one.flops and (compute := self.compute(one.format or None)):
            times["compute"] = one.flops / compute.value
        if one.bytes and self.memory:
            times["memory"] = one.bytes / self.memory.value
        if not times or (one.is_product and len(times) < 2):
            return None
        bound = max(times, key=times.__getitem__)
        return bound, times[bound]


def traced_case(source: RunRecords, known: KnownCeilings, record: Record) -> Traced:
    """A case to explain; one without a trace is refused with how to take one."""
    step, trace = record.measurement(STEP_TIME), record.trace
    if record.outcome is not Outcome.OK or step is None or trace is None or trace.spent is None:
        why = trace.missing if trace is not None and trace.missing else "it has no trace"
        name = f"{record.case.benchmark} {record.case.title}".strip()
        remedy = f"paceline run {record.case.benchmark} ... --explain"
        message = f"'{name}' cannot be explained: {why}; take one with: {remedy}"
        raise InputError("no-trace", message, value=name, suggestion=remedy)
    return Traced(record, step.value, trace, trace.spent, known_roofs(source, known))


def budget(case: Traced, clock: float | None = None) -> list[BudgetPart]:
    """The parts of the measured step; `clock` is the device's as a part of its maximum, where that is known."""
    work = case.record.work
    compute = _split("products", case.of("compute"), *_best_products(case, work))
    if clock is not None and (roof := case.compute()) is not None and roof.source == DATASHEET and len(compute) > 1:
        at, beyond = compute
        slower = min(beyond.seconds, case.of("compute") * (1.0 - min(1.0, clock)))
        lower = BudgetPart("power: the clock below its maximum", slower, f"{clock:.0%} of the maximum clock")
        compute = [at, lower, BudgetPart(beyond.name, beyond.seconds - slower, beyond.why)]
    parts = [
        *compute,
        *_split("memory", case.of("memory"), *_best_memory(case, work)),
        BudgetPart("exposed communication", case.of("communication"), "data travels and nothing hides it"),
        BudgetPart("other work", case.of("other"), "compiled code, dispatch, kernels that no pattern knows"),
        BudgetPart("launch and host gaps", case.gaps, _why_gaps(case)),
    ]
    explained = [part for part in parts if part.seconds > 0]
    rest = case.step - sum(part.seconds for part in explained)
    why = "the measured step less all of the above"
    if rest < 0:
        why = "traced steps were longer than the measured ones: short operators and gaps are shown too large"
    return [*explained, BudgetPart("unexplained", rest, why)]


def _why_gaps(case: Traced) -> str:
    why = "measured in the trace: nothing runs"
    if case.traced_gaps <= 0:
        return why
    cost, each = show_duration(case.traced_gaps), show_duration(case.trace.launch_cost or 0.0)
    return f"{why}; less {cost} of tracing, {each} before each kernel as in a graph of small ones"


def _split(name: str, seconds: float, best: float | None, why: str) -> list[BudgetPart]:
    if best is None:
        return [BudgetPart(name, seconds, why)]
    at = min(best, seconds)
    beyond = {"products": "tiles, shapes, work beyond the formula", "memory": "more passes than one, partial lines"}
    return [
        BudgetPart(f"{name} at the ceiling", at, why),
        BudgetPart(f"{name} beyond the ceiling", seconds - at, beyond[name]),
    ]


def _best_products(case: Traced, work: Work | None) -> tuple[float | None, str]:
    roof = case.compute()
    if work is None:
        return None, "the record does not count its FLOPs"
    if roof is None:
        return None, f"no ceiling for {case.format} is known: paceline machine --measure"
    return work.flops / roof.value, f"{work.flops / 1e9:,.1f} GFLOP at {roof.value / 1e12:,.3g} TFLOP/s, {roof.source}"


def _best_memory(case: Traced, work: Work | None) -> tuple[float | None, str]:
    roof = case.memory
    if roof is None:
        return None, "no ceiling of the memory is known: paceline machine --measure"
    counted = [one for one in case.details.operations if KINDS[one.group] == "memory" and one.bytes]
    seen = sum(one.seconds for one in counted)
    rate = f"at {roof.value / 1e9:,.4g} GB/s, {roof.source}"
    if seen > 0:
        best = sum(min(one.seconds, (one.bytes or 0.0) / roof.value) for one in counted)
        return case.of("memory") * best / seen, f"what its operators read and write {rate}"
    if work is None:
        return None, "the record does not count its bytes"
    return work.bytes / roof.value, f"{work.bytes / 1e6:,.1f} MB by formula {rate}"


def operations(case: Traced, most: int = 8) -> list[BoundOperation]:
    """What took longest: operators with their place and bound, or kernels where a trace shows too few operators."""
    found: Sequence[Operation] = case.details.operations
    busy = case.spent.step_seconds - case.of(IDLE)
    if sum(one.seconds for one in found) < busy / 2:
        return [BoundOperation(one.name, one.group, "", one.calls, one.seconds) for one in case.spent.kernels[:most]]
    bounds = [(one, case.best(one) or ("", None)) for one in found[:most]]
    return [
        BoundOperation(_named(one), one.group, one.where, one.calls, one.seconds, bound, best)
        for one, (bound, best) in bounds
    ]


def _named(one: Operation) -> str:
    name, kind = one.name.removeprefix("aten::"), f" {one.format}" if one.format else ""
    if one.is_product:
        count, rows, columns, inner = one.sizes[0]
        many = f"{count} of " if count > 1 else ""
        return f"{name} {many}{rows} x {columns} x {inner}{kind}"
    return f"{name} {' x '.join(map(str, one.sizes[0]))}{kind}" if one.sizes else name
