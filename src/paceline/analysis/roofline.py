"""Where each case lies under its machine's ceilings: what bounds it, and how far below that it stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from paceline.analysis.summary import CaseRow
from paceline.core.case import Case, Category
from paceline.core.environment import Environment
from paceline.core.grouping import group_by
from paceline.core.profile import Absent, Ceiling
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import COPY_WITHIN_DEVICE, DEVICE_MEMORY, MAIN_MEMORY, Work

PRECISE = 0.05  # half of an interval, as a part of its figure


def ceilings_of(records: RunRecords) -> tuple[list[Ceiling], list[Absent]]:
    """Every ceiling that the run measured, in its order, and what it did not with the reason."""
    ceilings: list[Ceiling] = []
    absent: list[Absent] = []
    for record in records.records:
        if record.outcome is Outcome.OK:
            ceilings += shown_by(record, records.run.environment)
        else:
            reason = record.cause.message if record.cause else f"it ended as {record.outcome.value}"
            absent.append(_absent(record.case, reason))
    with_record = {record.case.index for record in records.records}
    absent += [_absent(case, "it was not run") for case in records.missing if case.index not in with_record]
    # Of the repetitions of one case the best: a ceiling is the most that was reached.
    repeated = group_by(ceilings, lambda one: (one.device, one.kind, one.name)).values()
    best = [max(same, key=lambda one: -one.value if one.unit == "s" else one.value) for same in repeated]
    return best, absent


def _absent(case: Case, reason: str) -> Absent:
    return Absent(what=f"{case.benchmark} {case.title}".strip(), device=case.target, reason=reason)


def shown_by(record: Record, environment: Environment) -> Iterator[Ceiling]:
    """What one record shows that its device can do at most."""
    target = record.case.target
    name = record.subject.device or target
    name = environment.cpu.model or name if target == "cpu" else name
    for shown in record.ceilings:
        measurement = record.measurement(shown.metric, at=shown.at)
        if measurement is None or not measurement.value > 0:
            continue
        interval = measurement.interval
        # Warnings about other points of the case: this one is precise, or meant to be a cache's.
        elsewhere = {"imprecise"} if interval and interval.relative(measurement.value) <= PRECISE else set()
        elsewhere |= {"cached"} if shown.name.startswith("L") else set()
        yield Ceiling(
            device=target,
            device_name=name,
            kind=shown.kind,
            name=shown.name,
            value=measurement.value,
            unit=measurement.metric.unit,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            warnings=tuple(warning for warning in record.warnings if warning.kind not in elsewhere),
        )


NEAR = 0.6  # of a ceiling: a case that reaches this is bound by it and by little more
FAR = 0.2  # below this part of the lowest ceiling, something other than a ceiling takes the time
BEYOND = 1.05  # nothing is faster than its ceiling: then the ceiling is not this one
MEASURE = "paceline machine --measure"
OWN_RUN = "measured in this run"


class Bound(StrEnum):
    """What takes a case's time."""

    COMPUTE = "compute"
    MEMORY = "memory"
    HOST = "host"  # the device waits for what launches its work
    NEITHER = "neither"  # far below both ceilings


@dataclass(frozen=True)
class KnownCeilings:
    """What is known of a machine besides a run: its profile's ceilings, and those of its devices' datasheets."""

    measured: tuple[Ceiling, ...] = ()
    source: str = ""  # of the measured ones
    datasheet: tuple[Ceiling, ...] = ()


@dataclass(frozen=True)
class Roof:
    """One ceiling, and where it is from."""

    name: str  # a precision, or a memory
    value: float
    unit: str
    source: str
    warnings: tuple[str, ...] = ()  # kinds
    defined_by: int | None = None  # the case of this run that reached it


@dataclass(frozen=True)
class Placed:
    """A case under its roof."""

    row: CaseRow
    work: Work
    compute: Roof
    memory: Roof
    bound: Bound
    nearest: Roof  # the lower of the two where it computes; what the share is a part of
    share: float

    @property
    def is_cached(self) -> bool:
        """Whether it moves its bytes faster than the memory can, so that a cache must hold them."""
        return self.work.traffic > BEYOND * self.memory.value

    @property
    def is_beyond(self) -> bool:
        """Whether it is faster than its ceiling, which is then too low."""
        return self.share > BEYOND

    @property
    def is_open(self) -> bool:
        """Whether bytes that were not counted could make memory the bound after all."""
        if not self.work.left_out or self.bound is Bound.MEMORY or self.share >= NEAR:
            return False
        most = self.work.most_traffic
        return most is None or most / self.memory.value >= max(self.share, FAR)


@dataclass(frozen=True)
class Roofline:
    """The cases of one device under its ceilings."""

    device: str
    memory: Roof
    compute: tuple[Roof, ...]  # of the precisions that its cases compute in, highest first
    placed: tuple[Placed, ...]


@dataclass(frozen=True)
class Rooflines:
    """The roofline of each device, and what has none."""

    rooflines: tuple[Roofline, ...]
    unknown: tuple[str, ...] = ()  # devices whose ceilings are not known, though cases could be placed
    uncounted: tuple[CaseRow, ...] = ()  # cases that compute, but whose records do not say what they move


def rooflines(source: RunRecords, rows: Iterable[CaseRow], known: KnownCeilings | None = None) -> Rooflines:
    """Every case whose record has its operations and bytes, under the ceilings of its device."""
    roofs = known_roofs(source, known or KnownCeilings())
    works: dict[str, list[tuple[CaseRow, Work]]] = {}
    uncounted = []
    for row in rows:
        if not row.ok:
            continue
        if row.record.work is not None:
            works.setdefault(device_of(row.record), []).append((row, row.record.work))
        elif row.record.counts_work:
            uncounted.append(row)
    drawn, unknown = [], []
    for device, cases in works.items():
        memory = roofs.get((device, "memory", MAIN_MEMORY if device == "cpu" else DEVICE_MEMORY))
        placed = [
            _placed(row, work, compute, memory)
            for row, work in cases
            if memory and (compute := roofs.get((device, "compute", work.number_format)))
        ]
        # What a ceiling was taken from lies on it by definition.
        shown = [one for one in placed if one.row.case.index not in (one.compute.defined_by, one.memory.defined_by)]
        if memory is None or not placed:
            measure_ceilings = (Category.COMPUTE, Category.MEMORY)
            unknown += [device] if any(row.case.category not in measure_ceilings for row, _ in cases) else []
        elif shown:
            used = {one.compute.name: one.compute for one in shown}
            highest_first = sorted(used.values(), key=lambda roof: -roof.value)
            drawn.append(Roofline(device, memory, tuple(highest_first), tuple(shown)))
    return Rooflines(tuple(drawn), tuple(unknown), tuple(uncounted))


def device_of(record: Record) -> str:
    """The device's name as ceilings have it; the host's processor is the cpu."""
    return "cpu" if record.case.target == "cpu" else record.subject.device or record.case.target


def _placed(row: CaseRow, work: Work, compute: Roof, memory: Roof) -> Placed:
    of_compute, of_memory = work.rate / compute.value, work.traffic / memory.value
    is_memory = of_compute <= of_memory <= BEYOND
    share, nearest = (of_memory, memory) if is_memory else (of_compute, compute)
    bound = Bound.MEMORY if is_memory else Bound.COMPUTE
    if share < NEAR and any(warning.kind == "host-bound" for warning in row.warnings):
        bound = Bound.HOST
    elif share < FAR:
        bound = Bound.NEITHER
    return Placed(row, work, compute, memory, bound, nearest, share)


RoofKey = tuple[str, str, str]  # device, kind, name


def known_roofs(source: RunRecords, known: KnownCeilings) -> dict[RoofKey, Roof]:
    """The most that was measured, here or for the profile; a datasheet where nothing was."""
    roofs = {_key(ceiling): _roof(ceiling, "datasheet") for ceiling in known.datasheet}
    measured = {_key(one): _roof(one, known.source) for one in known.measured}
    for record in source.records:
        if record.outcome is Outcome.OK:
            for ceiling in shown_by(record, source.run.environment):
                key = _key(ceiling)
                if key not in measured or ceiling.value > measured[key].value:
                    measured[key] = _roof(ceiling, OWN_RUN, record.case.index)
    # What memory carries while it is copied, where no better is known: it reads and writes each byte.
    for (device, kind, name), roof in measured.items():
        if (kind, name) == ("memory", COPY_WITHIN_DEVICE):
            roofs[device, "memory", DEVICE_MEMORY] = replace(roof, name=DEVICE_MEMORY, value=2 * roof.value)
    return roofs | measured


def _roof(ceiling: Ceiling, source: str, defined_by: int | None = None) -> Roof:
    warnings = tuple(dict.fromkeys(warning.kind for warning in ceiling.warnings))
    return Roof(ceiling.name, ceiling.value, ceiling.unit, source, warnings, defined_by)


def _key(ceiling: Ceiling) -> RoofKey:
    return "cpu" if ceiling.device == "cpu" else ceiling.device_name, ceiling.kind, ceiling.name


def advice(placed: Placed) -> str:
    """What to do about the bound."""
    if placed.is_beyond:
        return f"nothing is faster than its ceiling: measure that again on a quiet machine ({MEASURE})"
    if placed.bound in (Bound.HOST, Bound.NEITHER):
        return (
            "launching work, waiting or small operators take the time: a larger batch, --compile on or, on a GPU, "
            "--graph on; --profile shows where it goes"
        )
    if placed.bound is Bound.MEMORY:
        return (
            "move fewer bytes: a larger batch for each read of the weights, a narrower precision, or operators that "
            "are fused (--compile on)"
        )
    if placed.share >= NEAR:
        return "the units are busy: only a narrower precision, fewer operations or a faster device help"
    return "the units idle in part: a larger batch or size fills them; --profile shows which operators do not compute"
