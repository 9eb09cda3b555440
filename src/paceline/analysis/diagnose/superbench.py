"""SuperBench's results (`results-summary.jsonl`, `nodes/*/results-summary.json`), read as they are.

A key is `BENCHMARK[:note]/[model/]METRIC[:rank]`. Values keep SuperBench's units, since thresholds in its rules are
written in them; which unit and which direction a metric has, a table of its names says. A metric that the table does
not know has no unit and no better direction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.analysis.diagnose.table import Failure, MetricColumn, NodeResults
from paceline.core.case import Case, Category
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.files import read_text, shipped_rows
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Summary
from paceline.core.subject import SUPERBENCH, Alias
from paceline.core.text import parse_json

RETURN_CODE = "return_code"
_RANKED = re.compile(r"(.*?)(?::(0|[1-9]\d*))?", re.DOTALL)

# What of a node a benchmark is about; one that is not listed stands for itself.
_COMPONENTS = tuple(
    (re.compile(pattern), component)
    for pattern, component in (
        (r"kernel-launch|gemm-flops|.*blaslt-gemm|(cublas|cudnn)-function|.*matmul|cpu-hpl|gpu-burn", Category.COMPUTE),
        (r"mem-bw|gpu-(sm-)?copy-bw|nvbandwidth|(gpu|cpu)-stream|cpu-memory-bw-latency", Category.MEMORY),
        (r"(nccl|rccl|gloo|mpi)-bw|ib-(loopback|traffic)|tcp-connectivity|.*overlap", Category.COMMUNICATION),
        (r"disk-benchmark", Category.STORAGE),
        (r".*inference", Category.INFERENCE),
        (r"megatron-.*|.*models?(-benchmarks)?", Category.TRAINING),
    )
)
_UNITS = tuple(
    (re.compile(row["benchmark"]), re.compile(row["metric"]), row["unit"], Better(row["better"]))
    for row in shipped_rows("paceline.analysis.diagnose", "superbench_units.csv")
)


def read_results(path: Path) -> list[RunRecords]:
    """The nodes of a file, each as a run with a record for each of its benchmarks."""
    return [run_of(node, values, str(path)) for node, values in _lines(path)]


def read_nodes(path: Path) -> list[NodeResults]:
    """The same without the records: what a diagnosis of thousands of nodes takes."""
    return [nodes_results(node, values) for node, values in _lines(path)]


def nodes_results(node: str, values: Mapping[str, object]) -> NodeResults:
    """One line of results."""
    numbers = {key: _number(value) for key, value in values.items()}
    failures = [
        Failure(split(key)[0] or key, "failed", f"return code {value:g}")
        for key, value in numbers.items()
        if split(key)[1] == RETURN_CODE and value and not math.isnan(value)
    ]
    columns = {key: column_of(key) for key in numbers}
    return NodeResults(node, numbers, columns, failures, environment=Environment(host=node))


@lru_cache(maxsize=100_000)
def column_of(key: str) -> MetricColumn:
    """Unit and direction of a key, as the table of names has them."""
    group, metric, _ = split(key)
    benchmark = group.partition("/")[0].partition(":")[0]
    component = next(
        (name.value for pattern, name in _COMPONENTS if pattern.fullmatch(benchmark)), benchmark or "other"
    )
    for of_benchmark, of_metric, unit, better in _UNITS:
        if of_benchmark.fullmatch(benchmark) and of_metric.fullmatch(metric):
            return MetricColumn(key, unit, better, leads=better is not Better.NEITHER, component=component)
    return MetricColumn(key, leads=False, component=component)


@lru_cache(maxsize=100_000)
def split(key: str) -> tuple[str, str, int | None]:
    """The part before the metric, the metric, and the rank."""
    group, _, last = key.rpartition("/")
    match = _RANKED.fullmatch(last)
    metric, rank = match.groups() if match else (last, None)
    return group, metric, int(rank) if rank is not None else None


def run_of(node: str, values: Mapping[str, object], where: str = "") -> RunRecords:
    """One line of results as a run; `where` is the file it is from."""
    groups: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        groups.setdefault(split(key)[0], {})[key] = _number(value)
    run_id = f"superbench-{node}"
    records = [_record(run_id, index, group, numbers) for index, (group, numbers) in enumerate(groups.items())]
    run = Run(
        id=run_id,
        name="superbench",
        status="finished",
        started_at=_UNKNOWN_TIME,
        version="unknown",
        environment=Environment(host=node, **({"source": where} if where else {})),
        cases=[record.case for record in records],
    )
    return RunRecords.model_construct(run=run, records=records)


# How a benchmark ended, by its return code; other codes but 0 are errors.
_ENDS = {
    124.0: (Outcome.TIMEOUT, CauseKind.TIMEOUT),
    31.0: (Outcome.UNSUPPORTED, CauseKind.MISSING_DEPENDENCY),
    10.0: (Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED),
    34.0: (Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED),
}
_UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # the files do not say


def _record(run_id: str, index: int, group: str, values: Mapping[str, float]) -> Record:
    codes = [value for key, value in values.items() if split(key)[1] == RETURN_CODE and value and not math.isnan(value)]
    outcome, cause = Outcome.OK, None
    if codes:
        outcome, kind = _ENDS.get(codes[0], (Outcome.FAILED, CauseKind.ERROR))
        cause = Cause(kind=kind, message=f"SuperBench ended it with return code {codes[0]:g}")
    # Built without validation, as are its measurements: a fleet has a million of them, each one number.
    return Record.model_construct(
        run_id=run_id,
        case=_case(index, group),
        outcome=outcome,
        cause=cause,
        started_at=_UNKNOWN_TIME,
        seconds=0.0,
        measurements=[_measurement(key, value) for key, value in values.items() if math.isfinite(value)],
        aliases={SUPERBENCH: Alias(group=group, is_original=True)},
    )


@lru_cache(maxsize=100_000)
def _case(index: int, group: str) -> Case:
    start, _, rest = group.partition("/")
    name, _, note = start.partition(":")
    benchmark = name or "monitor"
    return Case(
        index=index,
        benchmark=benchmark,
        parameters={key: value for key, value in {"note": note, "model": rest}.items() if value},
        title=" ".join([benchmark, *(value for value in (rest, note) if value)]),
        target="unknown",
        require=True,  # what SuperBench was asked to do and could not is a failure there
    )


def _measurement(key: str, value: float) -> Measurement:
    _, metric, rank = split(key)
    column = column_of(key)
    summary = Summary.model_construct(
        count=1,
        effective_count=1.0,
        mean=value,
        median=value,
        minimum=value,
        maximum=value,
        deviation=0.0,
        mean_interval=None,
        median_interval=None,
        percentiles={},
        outliers=0,
    )
    return Measurement(
        metric=_metric(metric, column.unit, column.better),
        scope="" if rank is None else f"rank {rank}",
        summary=summary,
        samples=[value],
    )


@lru_cache(maxsize=100_000)
def _metric(name: str, unit: str, better: Better) -> Metric:
    return Metric(name=name, unit=unit, better=better)


def _lines(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every node of a file with its keys; of a folder, those of SuperBench's output folder."""
    if path.is_dir():
        whole = path / "results-summary.jsonl"
        parts = [whole] if whole.is_file() else sorted(path.glob("nodes/*/results-summary.json"))
        if not parts:
            message = f"'{path}' holds no results-summary.jsonl of SuperBench"
            raise InputError("missing-file", message, value=str(path))
        for part in parts:
            yield from _lines(part)
        return
    text = read_text(path, "the results")
    whole_text = _parsed(text)
    if isinstance(whole_text, dict):
        yield _node(whole_text, path, 1)
        return
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError("no-results", f"'{path}' has no results", value=str(path))
    yield from [_node(_parsed(line), path, number) for number, line in lines]


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _node(document: Any, path: Path, number: int) -> tuple[str, Mapping[str, object]]:
    """A line's node and keys; the file of a single node lies in a folder of its name."""
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        message = "it is not an object of SuperBench's results-summary.jsonl"
        raise InputError("not-a-result", message, where=f"line {number} of '{path}'")
    node = document.get("node", path.absolute().parent.name)
    rest = {key: value for key, value in document.items() if key != "node"}
    if not isinstance(node, str) or not node:
        raise InputError("not-a-node", f"'node' = {node!r} is not a name", where=f"line {number} of '{path}'")
    if not any("/" in key for key in rest):
        message = "it has no keys like 'benchmark/metric', as SuperBench's results have"
        raise InputError("no-metrics", message, where=f"line {number} of '{path}'")
    return node, rest


def _number(value: object) -> float:
    """A result; null and text such as N/A mean that it was not measured."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan
