"""Flashlight's training benchmark: its table of six models on V100 GPUs, with ours next to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.analysis.published import PublishedTable, published_rows, shown_number, shown_rate
from paceline.core.case import Category
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords

TITLE = "Compared with Flashlight's published figures"
SOURCE = (
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
    return (PublishedTable(title=TITLE, source=SOURCE, headers=headers, named=3, lines=tuple(lines)),)


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
