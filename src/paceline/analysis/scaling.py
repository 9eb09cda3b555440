"""How well a case goes over more ranks: the part of its speed that each rank keeps, and what the lost time went to."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.analysis.figures import Figure
from paceline.analysis.summary import CaseRow
from paceline.core.errors import InputError
from paceline.core.layout import Layout

Rule = Literal["weak", "strong", "bandwidth"]

COMMUNICATION = "exposed communication"
BUBBLE = "pipeline bubble"
SLOWER = "slower ranks"
REDUCTION = "longer backward pass, with its reduction"
REST = "not told apart"
# What may differ between the cases of a series beside their ranks: how the ranks and the batch are laid out.
_LAID_OUT = ("batch_size", "case", "data", "tensor", "pipeline", "global_batch")


@dataclass(frozen=True)
class Loss:
    """A part of the time that a step lost."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Scaled:
    """One case of a series."""

    row: CaseRow
    ranks: int
    mesh: str  # data x tensor x pipeline, where there is one
    devices: float  # that its ranks have together: GPUs, or cores
    value: float  # of all ranks together
    efficiency: float  # of the base's speed per device
    low: float  # of its interval
    high: float
    seconds: float | None  # of a step
    losses: tuple[Loss, ...]  # which add up to the time that a step lost

    @property
    def lost(self) -> float:
        """Seconds of a step beyond the ideal one."""
        return sum(loss.seconds for loss in self.losses)


@dataclass(frozen=True)
class ScalingSeries:
    """Cases that differ in their ranks alone, fewest first."""

    rule: Rule
    batch: float | None  # of each rank where it is weak, of all where it is strong
    points: tuple[Scaled, ...]
    shares_cores: bool  # whether more ranks have no more cores

    @property
    def base(self) -> Scaled:
        """What the others are compared with."""
        return self.points[0]

    @property
    def largest(self) -> Scaled:
        """The best of those with the most ranks."""
        most = self.points[-1].ranks
        return max((one for one in self.points if one.ranks == most), key=lambda one: one.efficiency)

    @property
    def best(self) -> tuple[Scaled, ...]:
        """The best case at each number of ranks."""
        found: dict[int, Scaled] = {}
        for one in self.points:
            other = found.get(one.ranks)
            if other is None or one.efficiency > other.efficiency:
                found[one.ranks] = one
        return tuple(found.values())


def scaling(rows: Iterable[CaseRow]) -> list[ScalingSeries]:
    """Every series of a run that has at least two numbers of ranks."""
    told = list(rows)
    if len({row.case.ranks for row in told}) < 2:
        return []
    groups: dict[tuple[object, ...], list[CaseRow]] = {}
    for row in told:
        for key in _keys(row):
            groups.setdefault(key, []).append(row)
    found = [_series(key[0], key[1], members) for key, members in groups.items()]  # type: ignore[arg-type]
    return [series for series in found if series is not None]


def _keys(row: CaseRow) -> list[tuple[object, ...]]:
    """The series that a case may belong to: of one batch for each rank, and of one batch for all."""
    case, head = row.case, row.headline
    if not row.ok or head is None or not math.isfinite(head.value) or head.value <= 0:
        return []
    kind = case.target.partition(":")[0]
    rest = {name: value for name, value in case.parameters.items() if name not in _LAID_OUT}
    layout = layout_of(row)
    if layout is not None:
        rest |= {"model": layout.model, "layers": layout.layers, "precision": layout.precision,
                 "micro_batch": layout.micro_batch, "checkpointing": layout.checkpointing}  # fmt: skip
    work = (case.benchmark, kind, head.name, head.unit, json.dumps(rest, sort_keys=True, default=str))
    if head.name == "bus_bandwidth":
        return [("bandwidth", None, *work)]
    batch = row.record.subject.batch
    if head.name != "throughput" or not batch or batch <= 0:
        return []
    return [("weak", batch / case.ranks, *work), ("strong", float(batch), *work)]


def layout_of(row: CaseRow) -> Layout | None:
    """How the ranks of a case are laid out, where its record tells."""
    word = row.record.subject.layout
    try:
        return Layout.parse(word) if word and "/" in word else None
    except InputError:
        return None


def _series(rule: Rule, batch: float | None, rows: list[CaseRow]) -> ScalingSeries | None:
    if len({row.case.ranks for row in rows}) < 2:
        return None
    layouts = {row.case.index: layout_of(row) for row in rows}
    repeated: dict[tuple[int, str], list[CaseRow]] = {}
    for row in rows:
        layout = layouts[row.case.index]
        repeated.setdefault((row.case.ranks, layout.mesh if layout else ""), []).append(row)
    chosen = {place: sorted(same, key=_value)[len(same) // 2] for place, same in repeated.items()}
    places = sorted(chosen, key=lambda place: (place[0], -_value(chosen[place])))
    base = chosen[places[0]]
    points = tuple(_scaled(chosen[place], base, rule, mesh=place[1]) for place in places)
    shares = base.case.target == "cpu" and all(point.devices <= points[0].devices for point in points)
    return ScalingSeries(rule, batch, points, shares and rule != "bandwidth")


def _scaled(row: CaseRow, base: CaseRow, rule: Rule, *, mesh: str) -> Scaled:
    devices = _devices(row) if rule != "bandwidth" else 1.0
    ideal = _value(base) / (_devices(base) if rule != "bandwidth" else 1.0)
    efficiency = _value(row) / devices / ideal
    low, high = _ends(row, base, efficiency) if row is not base else (1.0, 1.0)
    step = row.figure("step_time") if rule != "bandwidth" else None
    seconds = step.summary.mean if step else None
    losses = _losses(row, base, seconds, efficiency) if seconds else ()
    return Scaled(row, row.case.ranks, mesh, devices, _value(row), efficiency, low, high, seconds, losses)


def _devices(row: CaseRow) -> float:
    """GPUs, one for each rank; of a CPU the cores, which ranks share."""
    threads = row.record.subject.threads
    if row.case.target == "cpu" and isinstance(threads, int) and threads > 0:
        return float(row.case.ranks * threads)
    return float(row.case.ranks)


def _ends(row: CaseRow, base: CaseRow, efficiency: float) -> tuple[float, float]:
    """The interval of the ratio: the parts by which both sides may be wrong, as independent errors add."""
    spread = math.hypot(_relative(row.headline), _relative(base.headline))
    return efficiency * max(0.0, 1 - spread), efficiency * (1 + spread)


def _losses(row: CaseRow, base: CaseRow, seconds: float, efficiency: float) -> tuple[Loss, ...]:
    """What is known of the lost time, in parts that add up to it; none where nothing was lost."""
    lost = seconds * (1 - efficiency)
    if lost <= 0 or row is base:
        return ()
    base_step = base.figure("step_time")
    ideal_part = (seconds - lost) / base_step.summary.mean if base_step else 1.0
    own, before = _waits(row, seconds), _waits(base, base_step.summary.mean if base_step else 0.0)
    waits = {name: own[name] - ideal_part * before.get(name, 0.0) for name in own}
    if COMMUNICATION not in own:
        longer = _longer_backward(row, base, ideal_part)
        waits |= {REDUCTION: longer} if longer is not None else {}
    found, left = [], lost
    for name, wait in waits.items():
        part = min(max(0.0, wait), left)
        if part > 0:
            found.append(Loss(name, part))
            left -= part
    return (*found, Loss(REST, left)) if left > 1e-9 * seconds else tuple(found)


def _waits(row: CaseRow, seconds: float) -> dict[str, float]:
    """Seconds of a step in which a rank computes nothing, by what it waits for.

    The rank that waits least for the others' data is the slowest one, so that its time is the travelling alone, and
    what others wait beyond it is for that rank. In a pipeline the wait for a neighbour is the bubble.
    """
    each = _of_ranks(row)
    found: dict[str, float] = {}
    bubble, exposed = row.figure("pipeline_bubble"), row.figure("exposed_communication")
    steps = each.get("step_time", [])
    slower = max(0.0, seconds - statistics.median(steps)) if len(steps) > 1 else 0.0
    if bubble is not None:
        found[BUBBLE] = bubble.value / 100.0 * seconds
    if exposed is not None:
        told = each.get("exposed_communication", [])
        waiting = max(0.0, exposed.value - found.get(BUBBLE, 0.0))
        for_others = min(waiting, max(told) - min(told)) if len(told) > 1 and bubble is None else 0.0
        found[COMMUNICATION] = waiting - for_others
        slower += for_others
    return found | ({SLOWER: slower} if slower else {})


def _of_ranks(row: CaseRow) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for figure in row.secondary:
        if figure.scope.startswith("rank ") and figure.name in ("step_time", "exposed_communication"):
            found.setdefault(figure.name, []).append(figure.summary.mean)
    return found


def _longer_backward(row: CaseRow, base: CaseRow, ideal_part: float) -> float | None:
    own, before = row.figure("backward_time"), base.figure("backward_time")
    return own.summary.mean - ideal_part * before.summary.mean if own and before else None


def _value(row: CaseRow) -> float:
    return row.headline.value if row.headline else 0.0


def _relative(figure: Figure | None) -> float:
    return figure.relative or 0.0 if figure else 0.0
