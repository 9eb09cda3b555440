"""How well a case goes over more ranks: the part of its speed that each rank keeps, and what the lost time went to."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.analysis.configuration import layout_of
from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by

Rule = Literal["weak", "strong", "bandwidth"]

COMMUNICATION = "exposed communication"
BUBBLE = "pipeline bubble"
SLOWER = "slower ranks"
REDUCTION = "longer backward pass, with its reduction"
REST = "not attributed"
# What may differ between the cases of a series besides their ranks: how the ranks and the batch are laid out.
_LAID_OUT = ("batch_size", "case", "data", "tensor", "pipeline", "global_batch")


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
    losses: Mapping[str, float]  # seconds by what they went to, which add up to the time that a step lost

    @property
    def lost(self) -> float:
        """Seconds of a step beyond the ideal one."""
        return sum(self.losses.values())


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
        best: dict[int, Scaled] = {}
        for one in self.points:
            if one.ranks not in best or one.efficiency > best[one.ranks].efficiency:
                best[one.ranks] = one
        return tuple(best.values())


def scaling(rows: Iterable[CaseRow]) -> list[ScalingSeries]:
    """Every series of a run that has at least two numbers of ranks."""
    rows = list(rows)
    if len({row.case.ranks for row in rows}) < 2:
        return []
    groups = group_by(((key, row) for row in rows for key in _keys(row)), lambda pair: pair[0])
    series = [(key, [row for _, row in pairs]) for key, pairs in groups.items()]
    return [_series(rule, batch, same) for (rule, batch, *_), same in series if len({r.case.ranks for r in same}) > 1]


def _keys(row: CaseRow) -> list[tuple[Rule, float | None, str, str, str, str, str]]:
    """The series that a case may belong to: of one batch for each rank, and of one batch for all."""
    case, head = row.case, row.headline
    if not row.ok or head is None or not math.isfinite(head.value) or head.value <= 0:
        return []
    kind = case.target.partition(":")[0]
    rest = {name: value for name, value in case.parameters.items() if name not in _LAID_OUT}
    layout = layout_of(row.record)
    if layout is not None:
        rest |= layout.model_dump(include={"model", "layers", "precision", "micro_batch", "checkpointing"})
    work = (case.benchmark, kind, head.name, head.unit, json.dumps(rest, sort_keys=True, default=str))
    if head.name == "bus_bandwidth":
        return [("bandwidth", None, *work)]
    batch = row.record.subject.batch
    if head.name != "throughput" or not batch or batch <= 0:
        return []
    return [("weak", batch / case.ranks, *work), ("strong", float(batch), *work)]


def _series(rule: Rule, batch: float | None, rows: list[CaseRow]) -> ScalingSeries:
    repeated: dict[tuple[int, str], list[CaseRow]] = {}
    for row in rows:
        layout = layout_of(row.record)
        repeated.setdefault((row.case.ranks, layout.mesh if layout else ""), []).append(row)
    chosen = {key: sorted(same, key=_value)[len(same) // 2] for key, same in repeated.items()}
    keys = sorted(chosen, key=lambda key: (key[0], -_value(chosen[key])))
    base = chosen[keys[0]]
    points = tuple(_scaled(chosen[key], base, rule, mesh=key[1]) for key in keys)
    shares = base.case.target == "cpu" and all(point.devices <= points[0].devices for point in points)
    return ScalingSeries(rule, batch, points, shares and rule != "bandwidth")


def _scaled(row: CaseRow, base: CaseRow, rule: Rule, *, mesh: str) -> Scaled:
    devices = _devices(row) if rule != "bandwidth" else 1.0
    ideal = _value(base) / (_devices(base) if rule != "bandwidth" else 1.0)
    efficiency = _value(row) / devices / ideal
    low = high = 1.0
    if row is not base:
        # The parts by which both sides may be wrong add as independent errors do.
        relative = [figure.relative or 0.0 if figure else 0.0 for figure in (row.headline, base.headline)]
        low, high = efficiency * max(0.0, 1 - math.hypot(*relative)), efficiency * (1 + math.hypot(*relative))
    step = row.figure("step_time") if rule != "bandwidth" else None
    seconds = step.summary.mean if step else None
    losses = _losses(row, base, seconds, efficiency) if seconds else {}
    return Scaled(row, row.case.ranks, mesh, devices, _value(row), efficiency, low, high, seconds, losses)


def _devices(row: CaseRow) -> float:
    """GPUs, one for each rank; of a CPU the cores, which ranks share."""
    threads = row.record.subject.threads
    if row.case.target == "cpu" and isinstance(threads, int) and threads > 0:
        return float(row.case.ranks * threads)
    return float(row.case.ranks)


def _losses(row: CaseRow, base: CaseRow, seconds: float, efficiency: float) -> dict[str, float]:
    """What is known of the lost time, in parts that add up to it; none where nothing was lost."""
    lost = seconds * (1 - efficiency)
    if lost <= 0 or row is base:
        return {}
    base_step = base.figure("step_time")
    ideal_part = (seconds - lost) / base_step.summary.mean if base_step else 1.0
    now, before = _waits(row, seconds), _waits(base, base_step.summary.mean if base_step else 0.0)
    waits = {name: now[name] - ideal_part * before.get(name, 0.0) for name in now}
    backward, base_backward = row.figure("backward_time"), base.figure("backward_time")
    if COMMUNICATION not in now and backward and base_backward:
        waits[REDUCTION] = backward.summary.mean - ideal_part * base_backward.summary.mean
    losses, left = {}, lost
    for name, wait in waits.items():
        part = min(max(0.0, wait), left)
        if part > 0:
            losses[name] = part
            left -= part
    return losses | ({REST: left} if left > 1e-9 * seconds else {})


def _waits(row: CaseRow, seconds: float) -> dict[str, float]:
    """Seconds of a step in which a rank computes nothing, by what it waits for.

    The rank that waits least for the others' data is the slowest one, so that its time is the travelling alone, and
    what others wait beyond it is for that rank. In a pipeline the wait for a neighbour is the bubble.
    """
    of_ranks: dict[str, list[float]] = {"step_time": [], "exposed_communication": []}
    for figure in row.secondary:
        if figure.scope.startswith("rank ") and figure.name in of_ranks:
            of_ranks[figure.name].append(figure.summary.mean)
    waits: dict[str, float] = {}
    bubble, exposed = row.figure("pipeline_bubble"), row.figure("exposed_communication")
    steps, exposures = of_ranks["step_time"], of_ranks["exposed_communication"]
    slower = max(0.0, seconds - statistics.median(steps)) if len(steps) > 1 else 0.0
    if bubble is not None:
        waits[BUBBLE] = bubble.value / 100.0 * seconds
    if exposed is not None:
        waiting = max(0.0, exposed.value - waits.get(BUBBLE, 0.0))
        has_spread = len(exposures) > 1 and bubble is None
        for_others = min(waiting, max(exposures) - min(exposures)) if has_spread else 0.0
        waits[COMMUNICATION] = waiting - for_others
        slower += for_others
    return waits | ({SLOWER: slower} if slower else {})


def _value(row: CaseRow) -> float:
    return row.headline.value if row.headline else 0.0
