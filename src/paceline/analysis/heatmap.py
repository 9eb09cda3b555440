"""Maps over two parameters, found where the cases of a run form a grid: batch and sequence, width and depth."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from paceline.analysis.configuration import flattened
from paceline.analysis.summary import CaseRow, Sweep, leading_metric
from paceline.core.case import Case
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement
from paceline.core.subject import BYTES

MOSTLY = 0.75  # of a grid's cells have a case
LEAST_CELLS = 6  # fewer are read in the table of cases as well
LEAST_VALUES = 4
MOST_VARIED = 8  # parameters; with more the run is a search, not a grid
PRECISIONS = tuple(BYTES)  # narrowest first
ENDS = {("one", "other"): False, ("to", "from"): True}  # coordinates of a figure between two ends, and if one way
_NO_AXIS = ("timeout", *MeasuringParameters.model_fields)
_GENERATED = re.compile(r"(generated/\w+):(.+)")

NO_CASE = "no case"
NOT_RUN = "not run"

Coordinate = int | float | str
_Flat = Mapping[str, Hashable]


@dataclass(frozen=True)
class HeatmapCell:
    """One cell of a map."""

    x: Coordinate
    y: Coordinate
    figure: Measurement | None = None
    row: CaseRow | None = None
    missing: str = ""  # why there is no figure: the outcome, "not run", or "no case"
    cause: str = ""  # in full


@dataclass(frozen=True)
class HeatMap:
    """One metric over two parameters, with everything else equal."""

    benchmark: str
    x: str  # names of the parameters
    y: str
    xs: tuple[Coordinate, ...]  # in order
    ys: tuple[Coordinate, ...]
    metric: Metric
    same: tuple[tuple[str, str], ...]  # what distinguishes this map from its neighbours
    cells: tuple[HeatmapCell, ...]  # by y, then by x; all of them

    @property
    def measured(self) -> list[HeatmapCell]:
        """The cells that have a figure, the best first."""
        lower = self.metric.better is Better.LOWER
        measured = [(cell.figure.value, cell) for cell in self.cells if cell.figure is not None]
        return [cell for _, cell in sorted(measured, key=lambda pair: pair[0], reverse=not lower)]

    @property
    def missing(self) -> list[HeatmapCell]:
        """Those that have none."""
        return [cell for cell in self.cells if cell.figure is None]


def heat_maps(rows: Sequence[CaseRow], not_run: Iterable[Case] = ()) -> list[HeatMap]:
    """The maps of a run, each over the two parameters that leave the fewest maps."""
    cases: list[tuple[Case, CaseRow | None]] = [*((row.case, row) for row in rows), *((case, None) for case in not_run)]
    groups = group_by(cases, lambda pair: (pair[0].benchmark, pair[0].target, pair[0].ranks)).values()
    return [made for members in groups if len(members) >= LEAST_CELLS for made in _maps(members)]


def pair_maps(rows: Sequence[CaseRow]) -> list[HeatMap]:
    """A map of each case that measured pairs of ends, of what leads it; nobody is a pair with itself."""
    every = ((row, sweep, ends) for row in rows if row.ok for sweep in row.sweeps for ends in ENDS)
    return [made for row, sweep, ends in every if (made := _pair_map(row, sweep, *ends)) is not None]


def _pair_map(row: CaseRow, sweep: Sweep, x: str, y: str) -> HeatMap | None:
    metric = leading_metric(row, sweep)
    if metric is None or not {x, y} <= {*sweep.axes}:
        return None
    known = [(point.at, figure) for point in sweep.points if (figure := point.figure(metric.name)) is not None]
    pairs = {(at[x], at[y]): figure for at, figure in known if math.isfinite(figure.value)}
    if len(pairs) < LEAST_VALUES:
        return None
    ends = tuple(sorted({end for pair in pairs for end in pair}, key=_natural))
    if not ENDS[x, y]:  # both ways are one figure
        pairs |= {(end, begin): figure for (begin, end), figure in pairs.items()}
    figures = [(across, down, pairs.get((across, down))) for down in ends for across in ends]
    cells = tuple(HeatmapCell(across, down, one, row, "" if one else NO_CASE) for across, down, one in figures)
    return HeatMap(row.case.benchmark, x, y, ends, ends, metric, (), cells)


def _natural(end: Coordinate) -> tuple[bool, float, str]:
    """Numbers in their order, then names in theirs."""
    name = str(end)
    return (False, float(name), "") if name.replace(".", "", 1).isdigit() else (True, 0.0, name)


def _maps(members: list[tuple[Case, CaseRow | None]]) -> list[HeatMap]:
    flat = [_flat(case.parameters) for case, _ in members]
    kinds: dict[str, set[Hashable]] = {}
    for parameters in flat:
        for name, value in parameters.items():
            kinds.setdefault(name, set()).add(value)
    # A parameter that only some have is of another kind of case; those are never in one map.
    varied = [name for name, values in kinds.items() if len(values) > 1 or not all(name in one for one in flat)]
    # Of parameters that change together, such as the sides of square matrices, the first.
    distinct: dict[tuple[int, ...], str] = {}
    for name in varied:
        numbers: dict[Hashable, int] = {}
        distinct.setdefault(tuple(numbers.setdefault(one.get(name), len(numbers)) for one in flat), name)
    varied = list(distinct.values())
    if len(varied) > MOST_VARIED:
        return []
    axes = [name for name in varied if name not in _NO_AXIS and _is_ordinal(kinds[name])]
    candidates = [slices for pair in combinations(axes, 2) if (slices := _slices(pair, varied, flat))]

    def size(slices: Sequence[_Slice]) -> tuple[float, bool]:
        """How much a map shows on average; numbers before names where that is the same."""
        cells = sum(len(one.cases) for one in slices) / len(slices)
        return cells, not any(isinstance(value, str) for one in slices for value in (*one.xs, *one.ys))

    best = max(candidates, key=size, default=[])
    return [made for one in best if (made := _map(one, members)) is not None]


@dataclass(frozen=True)
class _Slice:
    """The cases that differ in two parameters alone."""

    x: str
    y: str
    xs: tuple[Coordinate, ...]
    ys: tuple[Coordinate, ...]
    same: tuple[tuple[str, str], ...]
    cases: Mapping[tuple[Hashable, Hashable], list[int]]  # by x and y, as indices of the members


def _slices(pair: tuple[str, str], varied: Sequence[str], flat: Sequence[_Flat]) -> list[_Slice]:
    others = [name for name in varied if name not in pair]
    groups: dict[tuple[Hashable, ...], dict[tuple[Hashable, Hashable], list[int]]] = {}
    first, second = pair
    for index, parameters in enumerate(flat):
        if first in parameters and second in parameters:
            key = tuple(parameters.get(name) for name in others)
            groups.setdefault(key, {}).setdefault((parameters[first], parameters[second]), []).append(index)
    slices = []
    for key, cases in groups.items():
        ones, twos = ({cell[side] for cell in cases} for side in (0, 1))
        grid = len(ones) * len(twos)
        if min(len(ones), len(twos)) < 2 or grid < LEAST_CELLS or len(cases) < MOSTLY * grid:
            continue
        same = tuple((name, str(value)) for name, value in zip(others, key, strict=True) if value is not None)
        if len(ones) >= len(twos):  # the longer axis lies
            slices.append(_Slice(first, second, _ordered(ones), _ordered(twos), same, cases))
        else:
            turned = {(b, a): at for (a, b), at in cases.items()}
            slices.append(_Slice(second, first, _ordered(twos), _ordered(ones), same, turned))
    return slices


def _map(one: _Slice, members: Sequence[tuple[Case, CaseRow | None]]) -> HeatMap | None:
    rows = [row for indices in one.cases.values() for index in indices if (row := members[index][1])]
    heads = [row.headline for row in rows if row.ok and row.headline and math.isfinite(row.headline.value)]
    if len(heads) < LEAST_VALUES:
        return None
    ((name, unit), _), *_ = Counter((head.name, head.unit) for head in heads).most_common(1)
    metric = next(head.metric for head in heads if (head.name, head.unit) == (name, unit))
    cells = tuple(
        _cell(x, y, [members[index] for index in one.cases.get((x, y), [])], name, unit) for y in one.ys for x in one.xs
    )
    if sum(cell.figure is not None for cell in cells) < LEAST_VALUES:
        return None
    benchmark = members[0][0].benchmark
    return HeatMap(benchmark, one.x, one.y, one.xs, one.ys, metric, one.same, cells)


def _cell(x: Coordinate, y: Coordinate, cases: list[tuple[Case, CaseRow | None]], name: str, unit: str) -> HeatmapCell:
    if not cases:
        return HeatmapCell(x, y, missing=NO_CASE)
    rows = [row for _, row in cases if row is not None]
    heads = [(row.headline, row) for row in rows if row.ok and row.headline and math.isfinite(row.headline.value)]
    good = [(head.value, row.case.index, head, row) for head, row in heads if (head.name, head.unit) == (name, unit)]
    if good:  # of repetitions the middle one
        _, _, figure, row = sorted(good, key=lambda one: one[:2])[len(good) // 2]
        return HeatmapCell(x, y, figure, row)
    bad = next((row for row in rows if not row.ok), None)
    if bad is not None:
        cause = bad.record.cause.message if bad.record.cause else ""
        return HeatmapCell(x, y, row=bad, missing=bad.record.outcome.value, cause=cause)
    return HeatmapCell(x, y, row=rows[0], missing=f"no {name}") if rows else HeatmapCell(x, y, missing=NOT_RUN)


def _flat(parameters: Mapping[str, Any]) -> dict[str, Hashable]:
    """Every parameter on the top level; the knobs of a generated model are parameters, too."""
    flat: dict[str, Hashable] = {}
    for name, value in flattened(parameters).items():
        flat[name] = json.dumps(value, default=str) if isinstance(value, list | set) else value
        is_model = isinstance(value, str) and name.endswith("model")
        if is_model and (knobs := _GENERATED.fullmatch(value)):
            flat[name] = knobs[1]
            settings = (setting.partition("=") for setting in knobs[2].split(","))
            flat |= {knob.strip(): int(text) for knob, _, text in settings if text.strip().isdigit()}
    return flat


def _is_ordinal(values: set[Hashable]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers or values <= set(PRECISIONS)


def _ordered(values: set[Hashable]) -> tuple[Coordinate, ...]:
    if any(isinstance(value, str) for value in values):
        return tuple(sorted((str(value) for value in values), key=PRECISIONS.index))
    return tuple(sorted(value for value in values if isinstance(value, int | float)))
