"""The parts of a machine's page that stand beside published figures, with what each case tells of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hardware_marks import marks

from paceline.analysis.published import published_tables
from paceline.benchmarks._model.measuring import PHASES
from paceline.core.quantity import show_size
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.report.render.markdown import escape

AMP = ("bf16", "fp16")
RATES = ("throughput", "sample_throughput")
NO_FIGURE = "not measured"


def is_beside(run: RunRecords) -> bool:
    """Whether a run has a part of its own on the page: published figures belong to it, or it trained in parallel."""
    return bool(published_tables(run)) or any(record.case.benchmark == "parallel" for record in run.records)


def beside_sections(runs: Iterable[RunRecords]) -> list[str]:
    """A part for each of these runs, with the published figures."""
    parts = []
    for run in runs:
        if is_beside(run):
            parts += [f"## The suite {run.run.name}", _figures(run.records), *_gains(run.records)]
            for table in published_tables(run):
                parts += [f"### {table.title}", _table(table.headers, table.named, map(_escaped, table.lines))]
                parts += [escape(table.source)] if table.source else []
    return parts


def _figures(records: Sequence[Record]) -> str:
    """Each case with its interval, memory, utilisation, where its step went, and warnings."""
    done = [record for record in records if record.outcome is Outcome.OK]
    phases = [phase for phase in PHASES if any(record.measurement(f"{phase}_time") for record in done)]
    headers = ["case", "rate", "memory", "MFU", *phases, "warnings"]
    lines = []
    for record in done:
        memory, mfu = record.measurement("peak_device_memory"), record.measurement("mfu")
        cells = [
            escape(f"{record.case.benchmark} {record.case.title}"),
            _rate(record),
            show_size(memory.value) if memory else "",
            f"{mfu.value:.1f} %" if mfu else "",
            *(_share(record, phase) for phase in phases),
            marks(record),
        ]
        lines.append(cells)
    used = [at for at in range(len(headers)) if at < 2 or any(line[at] for line in lines)]
    return _table([headers[at] for at in used], 1, ([line[at] for at in used] for line in lines))


def _rate(record: Record) -> str:
    rate = next((found for name in RATES if (found := record.measurement(name))), None)
    if rate is None:
        return NO_FIGURE
    value = f"{rate.value:,.0f}" if rate.value >= 1000 else f"{rate.value:.4g}"
    width = f" ± {rate.interval.relative(rate.value):.1%}" if rate.interval else " *single*"
    return f"{value} {rate.metric.unit}{width}"


def _share(record: Record, phase: str) -> str:
    """Part of the step; the phases of a step add up to it."""
    took = {name: found.value for name in PHASES if (found := record.measurement(f"{name}_time"))}
    return f"{took[phase] / sum(took.values()):.1%}" if phase in took else ""


def _gains(records: Sequence[Record]) -> list[str]:
    """How much faster 16 bits train than fp32, of each model that did both."""
    rates: dict[str, dict[str, float]] = {}
    for record in records:
        rate = record.measurement("throughput")
        if record.case.benchmark == "train" and record.outcome is Outcome.OK and rate and record.case.ranks == 1:
            rates.setdefault(record.case.parameters["model"], {})[record.case.parameters["precision"]] = rate.value
    both = {model: found for model, found in rates.items() if "fp32" in found and len(found) > 1}
    told = [
        f"{model} " + ", ".join(f"{found[one] / found['fp32']:.2f} ({one})" for one in AMP if one in found)
        for model, found in both.items()
    ]
    over_fp32 = [f"Over fp32: {'; '.join(told)}."] if told else []
    return [*over_fp32, *_fp8_over_bf16(records)]


def _fp8_over_bf16(records: Sequence[Record]) -> list[str]:
    """How much faster fp8 trains than bf16 in the same run and otherwise the same layout."""
    rates: dict[tuple[int, str], dict[str, float]] = {}
    for record in records:
        rate = record.measurement("throughput")
        parameters = record.case.parameters
        precision = record.facts.get("precision")
        if record.case.benchmark != "parallel" or rate is None or precision not in ("bf16", "fp8"):
            continue
        layers = "" if parameters["fp8_least"] == 16 else f", layers from {parameters['fp8_least']}"
        name = "bf16" if precision == "bf16" else f"{parameters['fp8_recipe']}{layers}"
        same = record.facts["layout"].replace(f"_{precision}_", "_")
        rates.setdefault((parameters["hidden"], same), {})[name] = rate.value
    lines = [
        [str(hidden), same, f"fp8 {name}", f"{value:.4g}", f"{found['bf16']:.4g}", f"{value / found['bf16']:.3f}"]
        for (hidden, same), found in rates.items()
        for name, value in found.items()
        if name != "bf16" and "bf16" in found
    ]
    headers = ["hidden", "layout", "recipe", "fp8, sequences/s", "bf16, sequences/s", "fp8 / bf16"]
    return [_table(headers, 3, lines)] if lines else []


def _escaped(line: Iterable[str]) -> list[str]:
    return [escape(cell) for cell in line]


def _table(headers: Sequence[str], named: int, lines: Iterable[Sequence[str]]) -> str:
    ruler = "|" + "|".join("---" if place < named else "---:" for place in range(len(headers))) + "|"
    rows = [headers, *lines]
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, ruler, *body])
