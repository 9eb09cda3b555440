"""InferBench's table of ResNet-50 behind a server on V100 and T4 GPUs, with ours next to it."""

from __future__ import annotations

from paceline.analysis.published import PublishedTable, published_rows, shown_number, shown_rate
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import ServedLoad

TITLE = "Compared with InferBench's published figures"
SOURCE = (
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
    lines = [_line(record, load) for record, load in ours]
    source = SOURCE + (SHARED if any(load.is_shared_memory for _, load in ours) else "")
    served = PublishedTable(TITLE, source, headers, named=2, lines=tuple(lines))
    facts = ("Platform", "Architecture", "Memory, GB", "fp32, TFLOP/s", "fp16, TFLOP/s", "Memory, GB/s")
    platforms = tuple(tuple(row.values()) for row in published_rows("inferbench_platforms"))
    return served, PublishedTable(PLATFORMS, "", facts, named=2, lines=platforms)


def _line(record: Record, load: ServedLoad) -> tuple[str, ...]:
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
