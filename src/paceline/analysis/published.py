"""Figures that others published: tables that put a run next to them, and records to compare it with.

The records have no samples, hence no intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from typing import Any

from paceline.core.case import Case, Category
from paceline.core.errors import InputError, unknown
from paceline.core.files import shipped_rows
from paceline.core.layout import Layout
from paceline.core.metric import Better, Merge, Metric
from paceline.core.quantity import show_interval, with_interval
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.subject import ServedLoad, Subject


@dataclass(frozen=True)
class PublishedTable:
    """Ours and theirs, line by line; the first `named` columns say what a line is about."""

    title: str
    source: str  # of the published figures, and what to know when comparing; empty where another table has it
    headers: tuple[str, ...]
    named: int
    lines: tuple[tuple[str, ...], ...]

    def filled(self) -> PublishedTable:
        """The table without the columns that say nothing, which are those of what the run did not measure."""
        columns = list(enumerate(zip(self.headers, *self.lines, strict=True)))
        filled = [cells for index, cells in columns if index < self.named or any(cells[1:])]
        headers, *lines = zip(*filled, strict=True)
        return replace(self, headers=headers, lines=tuple(lines))


@lru_cache
def published_rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file of published figures."""
    return tuple(shipped_rows("paceline.analysis", f"tables/{name}.csv"))


def shown_rate(rate: Measurement) -> str:
    """The figure with its interval."""
    return with_interval(shown_number(rate.value), show_interval(rate.value, rate.interval, shown_number))


def shown_number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


FLASHLIGHT_TITLE = "Compared with Flashlight's published figures"
FLASHLIGHT_SOURCE = (
    "Flashlight, app/benchmark: NVIDIA V100, mean of 100 steps. A ratio is our throughput over theirs at the same "
    "number of GPUs, where the work is the same; empty is not measured. AMP there is fp16. Of linear: the throughput "
    "of N ranks over N times that of one."
)
GPUS = (1, 8, 16, 32)
NAMES = {
    "vit-base": "ViT-Base",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "detr": "DETR",
    "lm-transformer": "LM Transformer",
    "asr-transformer": "ASR Transformer",
}
# What their unit is called here; where a model has several rates, this one is theirs.
METRICS = {"images/s": "throughput", "tokens/s": "token_throughput", "s/s": "audio_throughput"}


def flashlight_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The published table with our lines above theirs; none where nothing of it was measured."""
    ours = [
        record
        for record in records.records
        if record.case.category == Category.TRAINING
        and record.subject.layout is None
        and record.outcome is Outcome.OK
        and record.subject.model in NAMES
    ]
    if not ours:
        return ()
    ranks = sorted({*GPUS, *(record.case.ranks for record in ours)})
    lines: list[tuple[str, ...]] = []
    for model, name in NAMES.items():
        published = [row for row in published_rows("flashlight_v100") if row["model"] == name]
        mine = [record for record in ours if record.subject.model == model]
        if mine:
            lines += _our_lines(name, mine, published, ranks)
            for row in published:
                cells = [shown_number(float(row[f"gpus_{count}"])) if f"gpus_{count}" in row else "" for count in ranks]
                what = (f"{row['model']}, V100", row["input"], row["precision"], row["gpu_mem_gb"])
                lines.append((*what, *cells, row["unit"]))
    noun = "GPU" if any(record.case.target != "cpu" for record in ours) else "rank"
    counts = tuple(f"{count} {noun}{'s' if count > 1 else ''}" for count in ranks)
    headers = ("Model", "Input", "Precision", "Memory, GB", *counts, "Unit")
    return (
        PublishedTable(title=FLASHLIGHT_TITLE, source=FLASHLIGHT_SOURCE, headers=headers, named=3, lines=tuple(lines)),
    )


def _our_lines(
    name: str, records: Sequence[Record], published: Sequence[dict[str, str]], ranks: Iterable[int]
) -> list[tuple[str, ...]]:
    """A line for each way in which the model was computed."""
    ways: dict[tuple[str, str, str], dict[int, Record]] = {}
    for record in records:
        precision = record.subject.precision or ""
        is_amp = precision in ("fp16", "bf16")
        ours = f"AMP {precision}" if is_amp else precision.upper()
        ours += ", compiled" if record.subject.compiled else ""
        way = (ours, "AMP" if is_amp else "FP32", _input(record, published[0]))
        ways.setdefault(way, {})[record.case.ranks] = record
    lines = []
    for (label, theirs, shape), by_ranks in ways.items():
        row = next(row for row in published if row["precision"] == theirs)
        alone = by_ranks.get(1)
        memory = (alone or next(iter(by_ranks.values()))).measurement("peak_device_memory")
        cells = [_cell(by_ranks.get(count), alone, row, count) for count in ranks]
        memory_text = f"{memory.value / 1e9:.2f}" if memory else ""
        device = (next(iter(by_ranks.values())).subject.device or "").removeprefix("NVIDIA ") or "ours"
        lines.append((f"{name}, {device}", shape, label, memory_text, *cells, row["unit"]))
    return lines


def _input(record: Record, row: dict[str, str]) -> str:
    batch = record.subject.batch // record.case.ranks if record.subject.batch else "?"
    if record.subject.scale != "full":
        return f"tiny, batch {batch}"
    return f"{row['input'].rpartition('x')[0]}x{batch}"


def _cell(record: Record | None, alone: Record | None, row: dict[str, str], count: int) -> str:
    """Throughput with its interval, the ratio to theirs, and how well it scaled."""
    rate = record.measurement(METRICS[row["unit"]]) if record else None
    if record is None or rate is None:
        return ""
    notes = []
    # The same work on a GPU; another batch is another work.
    if record.case.target != "cpu" and _input(record, row) == row["input"] and f"gpus_{count}" in row:
        notes.append(f"{rate.value / float(row[f'gpus_{count}']):.3g}x")
    base = alone.measurement(METRICS[row["unit"]]) if alone else None
    if count > 1 and base is not None:
        notes.append(f"{rate.value / (count * base.value):.0%} of linear")
    return shown_rate(rate) + (f" ({', '.join(notes)})" if notes else "")


INFERBENCH_TITLE = "Compared with InferBench's published figures"
INFERBENCH_SOURCE = (
    "InferBench's public result table: ResNet-50 in TensorFlow Serving; throughput in samples/s with the 95th "
    "percentile of latency where it is published. A ratio is our throughput over theirs at the same batch; the server, "
    "the number format and how requests arrive are not the same. Energy is that of the GPU."
)
SHARED = " Shared memory: the tensors of the requests do not travel, but lie where the server sees them."
COMPARED = "resnet50"
THEIRS = ("Tesla T4", "Tesla V100")
PLATFORMS = "The published platforms"


def inferbench_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """A table of each model on a GPU, by batch, then the platforms; none where nothing was measured on one."""
    is_ok = [record for record in records.records if record.outcome is Outcome.OK]
    ours = [(record, record.load) for record in is_ok if record.load is not None and record.case.target != "cpu"]
    if not ours:
        return ()
    headers = ("Model", "Batch", "Samples/s", "p50", "p95", "p99", "GPU busy", "J per request", "J per sample", *THEIRS)
    ours.sort(key=lambda pair: (pair[0].subject.model or "", pair[1].is_shared_memory, pair[1].samples))
    lines = [_served_line(record, load) for record, load in ours]
    source = INFERBENCH_SOURCE + (SHARED if any(load.is_shared_memory for _, load in ours) else "")
    served = PublishedTable(INFERBENCH_TITLE, source, headers, named=2, lines=tuple(lines))
    facts = ("Platform", "Architecture", "Memory, GB", "fp32, TFLOP/s", "fp16, TFLOP/s", "Memory, GB/s")
    platforms = tuple(tuple(row.values()) for row in published_rows("inferbench_platforms"))
    return served, PublishedTable(PLATFORMS, "", facts, named=2, lines=platforms)


def _served_line(record: Record, load: ServedLoad) -> tuple[str, ...]:
    model, batch = record.subject.model or "", load.samples
    precision = record.subject.precision or ""
    rate = record.measurement("sample_throughput" if batch > 1 else "throughput")
    latencies = [record.measurement(f"latency_{name}") for name in ("p50", "p95", "p99")]
    energy = record.measurement("energy_per_request")
    busy = record.measurement("gpu_utilisation")
    cells = [
        f"{model} {precision}".strip() + (", shared memory" if load.is_shared_memory else ""),
        str(batch),
        shown_rate(rate) if rate else "",
        *(f"{latency.value * 1e3:.3g} ms" if latency else "" for latency in latencies),
        f"{busy.value:.0f} %" if busy else "",
        f"{energy.value:.3g}" if energy else "",
        f"{energy.value / batch:.3g}" if energy else "",
    ]
    return (*cells, *(_theirs(model, batch, platform, rate.value if rate else None) for platform in THEIRS))


def _theirs(model: str, batch: int, platform: str, rate: float | None) -> str:
    """What they published of this model at this batch, and how often ours is theirs."""
    rows = [row for row in published_rows("inferbench_resnet50") if row["platform"] == platform]
    row = next((row for row in rows if model == COMPARED and int(row["batch"]) == batch), None)
    if row is None:
        return ""
    value = float(row["throughput"])
    notes = [f"p95 {row['p95_ms']} ms"] if row["p95_ms"] else []
    notes += [f"{rate / value:.3g}x"] if rate else []
    return shown_number(value) + (f" ({', '.join(notes)})" if notes else "")


LIBAI_TITLE = "Compared with LiBai's published figures"
LIBAI_SOURCE = (
    "LiBai's Benchmark.md: samples/s of LiBai and of Megatron-LM (e156d2f) in fp16, on GPUs that it does not name. "
    "Ours are sequences/s with the half-width of the 95 % interval. A ratio is that of the two columns before it, with "
    "? where one of them has warnings; empty is not measured."
)
CONTRADICTION = (
    "* contradicts itself as published: 8x1x1 is 8 ranks, 1n4g is 4 GPUs. Its batch and its log are those of 4x1x1, "
    "which is what is measured here."
)
FAMILIES = {"BERT": "bert", "GPT-2": "gpt2"}
AXES = {"data": "Data Parallel", "tensor": "Tensor Model Parallel", "pipeline": "Pipeline Model Parallel"}


@dataclass(frozen=True)
class Training:
    """What a benchmark and its peer do alike: a layout, and whatever else is not as published."""

    layout: Layout
    more: str = ""

    @classmethod
    def of(cls, record: Record) -> Training | None:
        """As its title says; None for what trains no layout."""
        word, _, more = record.case.title.removesuffix(f" x{record.case.ranks}").partition(" ")
        try:
            return cls(Layout.parse(word), more)
        except InputError:
            return None

    @property
    def label(self) -> str:
        """Without the model, as the published tables have it."""
        return f"{str(self.layout).partition('/')[2]} {self.more}".rstrip()

    def is_like(self, published: Layout) -> bool:
        """Whether it differs from the published one in precision or settings alone, not in the work laid out."""
        return self.layout.model_copy(update={"precision": published.precision}) == published

    @property
    def section(self) -> str:
        """The section of the published page that it would be in."""
        if self.layout.tensor > 1 and self.layout.pipeline > 1:
            return "3-D Parallel"
        return " + ".join(title for axis, title in AXES.items() if getattr(self.layout, axis) > 1) or AXES["data"]


@dataclass(frozen=True)
class PublishedRow:
    """A row of a published table."""

    benchmark: str  # that does the same here
    section: str
    model: str
    word: str  # as published
    libai: str  # samples/s, as published
    megatron: str

    @property
    def is_contradictory(self) -> bool:
        """Whether the mesh has another number of ranks than there are GPUs."""
        layout = self._published
        return layout.world_size != layout.nodes * layout.gpus

    @property
    def layout(self) -> Layout:
        """What was run: where the row contradicts itself, as many data-parallel ranks as there are GPUs."""
        layout = self._published
        if not self.is_contradictory:
            return layout
        ranks = layout.nodes * layout.gpus // (layout.tensor * layout.pipeline)
        return layout.model_copy(update={"data": ranks}).check()

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures and their ratio."""
        return self.libai, self.megatron, _ratio(float(self.libai), float(self.megatron))

    @property
    def _published(self) -> Layout:
        return Layout.parse(f"{FAMILIES[self.model]}/{self.word}")


def libai_rows() -> tuple[PublishedRow, ...]:
    """All 44 rows, in the order of the page; a few are in two tables."""
    columns = ("benchmark", "section", "model", "case", "libai_samples_per_s", "megatron_samples_per_s")
    return tuple(PublishedRow(*(row[name] for name in columns)) for row in published_rows("libai_vs_megatron"))


def libai_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The published tables with our columns in them; none where nothing was measured."""
    measured = _Measured(records.records)
    if not measured.any_ok:
        return ()
    headers = ("Model", "Case", "Paceline", *measured.headers, "LiBai", "Megatron-LM", "LiBai / Megatron-LM")
    sections = tuple(dict.fromkeys(row.section for row in libai_rows()))
    return tuple(
        PublishedTable(
            title=f"{LIBAI_TITLE}: {section}",
            source=f"{LIBAI_SOURCE} {CONTRADICTION}{measured.notes}" if section == sections[-1] else "",
            headers=headers,
            named=2,
            lines=tuple(_lines(section, measured)),
        )
        for section in sections
    )


class _Measured:
    """Records by training and benchmark, and how they are shown."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records: dict[Training, dict[str, list[Record]]] = {}
        for record in records:
            training = Training.of(record)
            if training is not None:
                self._records.setdefault(training, {}).setdefault(record.case.benchmark, []).append(record)
        everything = [one for by_name in self._records.values() for same in by_name.values() for one in same]
        self.any_ok = any(record.outcome is Outcome.OK for record in everything)
        self.trainings = tuple(self._records)
        self._ours = libai_rows()[0].benchmark  # that trains the same layouts here
        self._peers = list(dict.fromkeys(one.case.benchmark for one in everything if one.case.benchmark != self._ours))
        self.headers = tuple(header for peer in self._peers for header in (peer, f"Paceline / {peer}"))
        notes = [f" Measured on {one.subject.device}." for one in everything if one.subject.device]
        notes += [f" {one.subject.engine}." for one in everything if one.subject.engine]
        self.notes = "".join(dict.fromkeys(notes))

    def cells(self, training: Training) -> tuple[str, ...]:
        """Ours, then each peer's with the ratio."""
        by_name = self._records.get(training, {})
        ours, cell = _typical(by_name.get(self._ours, []))
        cells = [cell]
        for peer in self._peers:
            theirs, cell = _typical(by_name.get(peer, []))
            ratio = ""
            if ours and theirs:
                (our_rate, our_record), (their_rate, their_record) = ours, theirs
                mark = " ?" if our_record.warnings or their_record.warnings else ""
                ratio = _ratio(our_rate.value, their_rate.value) + mark
            cells += [cell, ratio]
        return tuple(cells)


def _lines(section: str, measured: _Measured) -> Iterator[tuple[str, ...]]:
    """Each published row, below it what differs from it in little; after a model's rows what is like none of them."""
    rows = libai_rows()
    for model, family in FAMILIES.items():
        for row in (row for row in rows if (row.section, row.model) == (section, model)):
            same = Training(row.layout)
            yield model, row.word + (" *" if row.is_contradictory else ""), *measured.cells(same), *row.cells
            for training in measured.trainings:
                if training != same and training.is_like(row.layout):
                    yield model, training.label, *measured.cells(training), "", "", ""
        for training in measured.trainings:
            is_new = not any(training.is_like(row.layout) for row in rows)
            if is_new and (training.layout.model, training.section) == (family, section):
                yield model, training.label, *measured.cells(training), "", "", ""


def _typical(records: Sequence[Record]) -> tuple[tuple[Measurement, Record] | None, str]:
    """The middle throughput of the repetitions that succeeded with its record, and as a cell; or how they ended."""
    rates = [
        (rate, record)
        for record in records
        if record.outcome is Outcome.OK and (rate := record.measurement("throughput")) is not None
    ]
    if not rates:
        ends = [record.outcome.value for record in records if record.outcome not in (Outcome.OK, Outcome.UNSUPPORTED)]
        return None, ends[-1] if ends else ""
    middle = sorted(rates, key=lambda pair: pair[0].value)[(len(rates) - 1) // 2]
    return middle, shown_rate(middle[0])


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}"


_PUBLISHED_AT = datetime(2022, 1, 1, tzinfo=UTC)  # the tables do not say when they were measured
_PRECISIONS = {"FP32": "fp32", "AMP": "fp16"}
_OF_SUITE = {"flashlight": flashlight_tables, "libai": libai_tables, "serving-batches": inferbench_tables}
_TABLES = ("libai", "megatron", "flashlight")
_RUN = "published-"  # how the names of runs begin that nobody here made


def published_tables(records: RunRecords) -> tuple[PublishedTable, ...]:
    """The tables that belong to the suite that was run; a run that measured nothing has none."""
    make = _OF_SUITE.get(records.run.name)
    return make(records) if make else ()


def published_records(name: str) -> RunRecords:
    """The figures of one published table; those of `megatron` are in LiBai's."""
    if name not in _TABLES:
        raise unknown("published figures", name, _TABLES)
    records = list(_flashlight() if name == "flashlight" else _layouts(name))
    run = Run(
        id=f"{_RUN}{name}",
        name=name,
        status="finished",
        started_at=_PUBLISHED_AT,
        ended_at=_PUBLISHED_AT,
        version="",
        cases=[record.case for record in records],
    )
    return RunRecords(run=run, records=records)


def is_published(record: Record) -> bool:
    """Whether it is a figure that others published, which cannot be measured again."""
    return record.run_id.startswith(_RUN)


def _layouts(name: str) -> Iterator[Record]:
    """Each layout once: a few rows are in two tables."""
    rows: dict[str, PublishedRow] = {}
    for row in libai_rows():
        rows.setdefault(str(row.layout), row)
    for index, (word, row) in enumerate(rows.items()):
        value = float(row.libai if name == "libai" else row.megatron)
        case = {"index": index, "benchmark": row.benchmark, "title": word, "parameters": {"case": word}}
        yield _record(name, Subject(layout=word), "throughput", "sequences/s", value, row.layout.world_size, case)


def _flashlight() -> Iterator[Record]:
    models = {name: model for model, name in NAMES.items()}
    for index, (row, ranks) in enumerate(product(published_rows("flashlight_v100"), GPUS)):
        model, precision = models[row["model"]], _PRECISIONS[row["precision"]]
        what = {"model": model, "precision": precision, "scale": "full"}
        case = {
            "index": index,
            "benchmark": row["benchmark"],
            "title": f"{model} {precision}" + (f" x{ranks}" if ranks > 1 else ""),
            "parameters": what | {"batch_size": int(row["input"].rpartition("x")[2])},
        }
        subject, value = Subject.model_validate(what), float(row[f"gpus_{ranks}"])
        yield _record("flashlight", subject, METRICS[row["unit"]], row["unit"], value, ranks, case)


def _record(
    name: str, subject: Subject, metric: str, unit: str, value: float, ranks: int, case: dict[str, Any]
) -> Record:
    rate = Metric(name=metric, unit=unit, better=Better.HIGHER, merge=Merge.SUM)
    target = "cuda:*" if ranks > 1 else "cuda:0"
    return Record(
        run_id=f"{_RUN}{name}",
        case=Case(**case, target=target, ranks=ranks, category=Category.TRAINING),
        outcome=Outcome.OK,
        started_at=_PUBLISHED_AT,
        seconds=0.0,
        measurements=[Measurement.of_value(rate, value)],
        primary=metric,
        subject=subject,
    )
