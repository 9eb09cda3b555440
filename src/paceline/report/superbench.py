"""The results under SuperBench's names (`results-summary.jsonl`), for tools and baselines that were made for it.

Keys are `model-benchmarks[:note]/pytorch-MODEL/PRECISION_ACTION_METRIC[:rank]`; step times are in milliseconds.
Training metrics come once, for the slowest rank; inference metrics once per rank. Throughput is per rank, as there,
but it is work over time where SuperBench averages the rates of single steps, which noise inflates; percentiles of it
follow SuperBench (p99 is a fast step). `PRECISION_ACTION_global_throughput` of several ranks is Paceline's own.

Micro benchmarks that SuperBench also has carry its names and units (see superbench_micro); the keys of others are
Paceline's own: `BENCHMARK[:note]/METRIC[_point][:rank]` in the metric's unit.

A note tells cases apart that would share a key (`batch_size=32`), marks a model that is not full size (`scale=tiny`),
and what SuperBench measures on a GPU alone where it was measured on a CPU (`target=cpu`). Results that came from
SuperBench go back under the keys and in the units that they had. As there, one `return_code`
covers all cases of one benchmark or model; the first that is not 0 stands:

  0    ok
  3    invalid result: the same work gave two different answers
  4    runtime failure: raised, crashed, interrupted or out of memory
  10   the model does not support this precision or device (34 for other benchmarks)
  31   a library or program is missing
  124  timeout
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from paceline.analysis.diagnose.superbench import RETURN_CODE
from paceline.analysis.diagnose.table import SUPERBENCH
from paceline.core.case import Case
from paceline.core.record import CauseKind, Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.stats import PERCENTILES
from paceline.report.superbench_micro import Values, names_of, word
from paceline.report.text import host_name

FILE_NAME = "results-summary.jsonl"
ACTIONS = ("train", "inference")
_RANK = re.compile(r"rank (\d+)")
_OUTER = ("ranks", "target", "repeat")  # of the case, not of its benchmark


def render(records: RunRecords) -> str:
    """One line for the node that measured."""
    line: dict[str, Any] = {"node": host_name(records.run.environment)}
    return json.dumps(line | results(records.records), allow_nan=False) + "\n"


def results(records: Sequence[Record]) -> Values:
    """Every key with its number; no two cases share one, but for the return code of their model."""
    ordered = sorted(records, key=lambda record: record.case.index)
    measured_here = [record for record in ordered if SUPERBENCH not in record.facts]
    found: Values = {}
    for record in ordered:
        if SUPERBENCH in record.facts:
            found |= _as_it_came(record)
    for record, note in zip(measured_here, notes([record.case for record in measured_here]), strict=True):
        group, prefix = _place(record.case)
        name, _, rest = group.partition("/")
        place = f"{name}:{note}/{rest}" if note else f"{name}/{rest}"
        code = f"{place}return_code"
        found[code] = found.get(code) or return_code(record)
        if record.outcome is Outcome.OK:
            names = names_of(record.case)
            own = names.figures(record) if names else _other_figures(record)
            figures = _model_figures(record) if prefix else own
            found |= {f"{place}{prefix}{key}": value for key, value in figures.items() if math.isfinite(value)}
    return found


def _as_it_came(record: Record) -> Values:
    """What was read from SuperBench's results, whatever its names mean to us."""
    group = str(record.facts[SUPERBENCH])
    found: Values = {}
    for measured in record.measurements:
        name, rank = measured.metric.name, _RANK.fullmatch(measured.scope)
        key = (f"{group}/" if group else "") + name + (f":{rank.group(1)}" if rank else "")
        value = measured.value
        found[key] = int(value) if name == RETURN_CODE and value.is_integer() else value
    return found


def return_code(record: Record) -> int:
    """SuperBench's number for how a case ended."""
    kind = record.cause.kind if record.cause else None
    if record.outcome is Outcome.OK:
        return 0
    if record.outcome is Outcome.TIMEOUT:
        return 124
    if kind is CauseKind.MISSING_DEPENDENCY:
        return 31
    if record.outcome is Outcome.UNSUPPORTED:
        return 10 if _is_model(record.case) else 34
    return 3 if kind is CauseKind.CORRUPTION else 4


def notes(cases: Sequence[Case]) -> list[str]:
    """What tells each case from those that would have the same keys; empty where nothing must."""
    found = []
    keys = [_keys(case) for case in cases]
    for case, own in zip(cases, keys, strict=True):
        mine = _traits(case)
        differ = _telling([_traits(other) for other, key in zip(cases, keys, strict=True) if key == own])
        mark = _mark(case)
        told = [f"{key}={word(mine.get(key))}" for key in differ if f"{key}=" not in mark]
        found.append(",".join([mark, *told] if mark else told))
    return _all_different(cases, found)


def _telling(twins: Sequence[dict[str, Any]]) -> list[str]:
    """What tells the twins apart: every parameter that differs; ranks, target and repetition only if need be."""
    values = [{key: json.dumps(value, default=str) for key, value in twin.items()} for twin in twins]
    chosen: list[str] = []
    keys = dict.fromkeys(key for twin in twins for key in twin if key not in _OUTER)
    for key in (*keys, *_OUTER):
        apart = len({tuple(twin.get(k) for k in chosen) for twin in values}) == len(values)
        if len({twin.get(key) for twin in values}) > 1 and not (key in _OUTER and apart):
            chosen.append(key)
    return chosen


def _all_different(cases: Sequence[Case], found: list[str]) -> list[str]:
    keys = [(_keys(case), note) for case, note in zip(cases, found, strict=True)]
    return [
        ",".join(part for part in (note, f"index={case.index}") if part) if keys.count(key) > 1 else note
        for case, note, key in zip(cases, found, keys, strict=True)
    ]


def _is_model(case: Case) -> bool:
    return case.benchmark in ACTIONS and {"model", "precision"} <= case.parameters.keys()


def _place(case: Case) -> tuple[str, str]:
    """The part of the keys that a note is put into, and how the names of the metrics begin."""
    if not _is_model(case):
        names = names_of(case)
        return f"{names.benchmark if names else word(case.benchmark)}/", ""
    model, precision = word(case.parameters["model"]), word(case.parameters["precision"])
    return f"model-benchmarks/pytorch-{model}/", f"{precision}_{case.benchmark}_"


def _keys(case: Case) -> tuple[object, ...]:
    """The same for cases that would share keys."""
    names = None if _is_model(case) else names_of(case)
    return _place(case), names.part if names else "", _mark(case)


def _mark(case: Case) -> str:
    """What no key may hide: that a model is not full size, or that a GPU's benchmark ran on a CPU."""
    if _is_model(case):
        scale = word(case.parameters.get("scale", "full"))
        return f"scale={scale}" if scale != "full" else ""
    names = names_of(case)
    return names.note if names else ""


def _traits(case: Case) -> dict[str, Any]:
    return {**case.parameters, "ranks": case.ranks, "target": case.target.replace("*", "all"), "repeat": case.repeat}


def _model_figures(record: Record) -> Values:
    ranks = record.case.ranks
    scopes = [f"rank {rank}" for rank in range(ranks)]
    if record.case.benchmark == "inference" and ranks > 1 and all(record.measurement("step_time", s) for s in scopes):
        figures: Values = {}
        for rank, scope in enumerate(scopes):
            own = _inference_figures(record.measurement("step_time", scope), record.measurement("throughput", scope), 1)
            figures |= {f"{key}:{rank}": value for key, value in own.items()}
    elif record.case.benchmark == "inference":
        figures = _inference_figures(record.measurement("step_time"), record.measurement("throughput"), ranks)
    else:
        figures = _mean_figures(record.measurement("step_time"), record.measurement("throughput"), ranks)
    rate = record.measurement("throughput")
    return figures | ({"global_throughput": rate.value} if rate and ranks > 1 else {})


def _mean_figures(times: Measurement | None, rate: Measurement | None, ranks: int) -> Values:
    figures: Values = {}
    if times:
        figures["step_time"] = times.summary.mean * 1000
    if rate:
        figures["throughput"] = rate.value / ranks
    return figures


def _inference_figures(times: Measurement | None, rate: Measurement | None, ranks: int) -> Values:
    figures = _mean_figures(times, rate, ranks)
    if times:
        figures |= {f"step_time_{name}": value * 1000 for name, value in times.summary.percentiles.items()}
    if times and rate and rate.work and times.samples and min(times.samples) > 0:
        rates = rate.work / ranks / np.asarray(times.samples)
        figures |= {f"throughput_{p:g}": float(np.percentile(rates, p)) for p in PERCENTILES}
    return figures


def _other_figures(record: Record) -> Values:
    return {_other_name(m): m.value for m in _once(record.measurements)}


def _other_name(measurement: Measurement) -> str:
    rank = _RANK.fullmatch(measurement.scope)
    scope = f":{rank.group(1)}" if rank else f"_{word(measurement.scope)}" if measurement.scope else ""
    point = "".join(f"_{word(f'{axis}-{value}')}" for axis, value in measurement.at.items())
    return word(measurement.metric.name) + point + scope


def _once(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The first measurement of each name."""
    return list({_other_name(m): m for m in reversed(list(measurements))}.values())[::-1]
