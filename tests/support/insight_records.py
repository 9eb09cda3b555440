"""Records whose place under a roof, whose scaling and whose maps can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paceline.analysis.roofline import KnownCeilings
from paceline.core.case import Case
from paceline.core.metric import Better, Merge, Metric
from paceline.core.profile import Ceiling, CeilingKind
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from support.records import FLOPS, MEMORY, STEP_TIME, case, described_here, record, run_of, throughput

GPU = "NVIDIA H200"
SOURCE = "paceline machine --measure, 2026-03-14, run 20260314-080000-abcd"
EXPOSED = Metric(name="exposed_communication", unit="s", better=Better.LOWER, merge=Merge.MAXIMUM)
BUBBLE = Metric(name="pipeline_bubble", unit="%", better=Better.LOWER, merge=Merge.MEAN)
BACKWARD = Metric(name="backward_time", unit="s", better=Better.LOWER, merge=Merge.MEAN)
TIME = Metric(name="time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST)


def ceiling(kind: CeilingKind, name: str, value: float, *, device: str = "cuda:0", device_name: str = GPU) -> Ceiling:
    """The most of something."""
    unit = "B/s" if kind == "memory" else "FLOP/s"
    return Ceiling(device=device, device_name=device_name, kind=kind, name=name, value=value, unit=unit)


def gpu_ceilings() -> KnownCeilings:
    """4 TB/s and 800 TFLOP/s in bf16: the ridge is at 200 FLOP/byte."""
    found = (
        ceiling("compute", "bf16", 800e12),
        ceiling("compute", "fp32", 50e12),
        ceiling("compute", "fp64", 60e12),
        ceiling("memory", "device memory", 4e12),
    )
    return KnownCeilings(measured=found, source=SOURCE)


def of_category(what: Case, category: str) -> Case:
    """The same case, of this kind."""
    return what.model_copy(update={"category": category})


def product(index: int, m: int, n: int, k: int, seconds: float, *, precision: str = "bf16", **more: Any) -> Record:
    """A matrix product that took so long."""
    times = Measurement.of_samples(TIME, [seconds] * 20)
    metric = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER, merge=Merge.SUM)
    found = [Measurement.of_rate(metric, 2.0 * m * n * k, times), times]
    where = case(index, "gemm", f"{precision} {m}x{n}x{k}", precision=precision, m=m, n=n, k=k, **more)
    facts = {"device": GPU, "shape": {"m": m, "n": n, "k": k, "batch": 1}}
    return record(of_category(where, "compute"), found, facts=facts)


def inference(
    index: int, weights: float, flops: float, seconds: float, *, precision: str = "bf16", **more: Any
) -> Record:
    """A model of so many weights whose step computes so much in this time."""
    times = Measurement.of_samples(STEP_TIME, [seconds] * 20)
    found = [Measurement.of_rate(throughput("sequences/s"), 1, times), times, Measurement.of_rate(FLOPS, flops, times)]
    facts = {"device": GPU, "precision": precision, "parameter_count": weights, "flops_per_step": flops}
    where = case(index, "inference", f"model-{index} {precision}", model=f"model-{index}", precision=precision)
    return record(of_category(where, "inference"), found, facts=facts | more.pop("facts", {}), **more)


def training(index: int, weights: float, flops: float, seconds: float, *, peak: float | None, **more: Any) -> Record:
    """A training step in fp32 with AdamW; `peak` bytes of device memory."""
    own = inference(index, weights, flops, seconds, precision="fp32", **more)
    where = case(index, "train", f"model-{index} fp32", category="training", model=f"model-{index}", precision="fp32")
    memory = [Measurement.of_value(MEMORY, peak)] if peak is not None else []
    facts = own.facts | {"optimizer": "adamw, fused"}
    found = {"case": where, "measurements": [*own.measurements, *memory], "facts": facts}
    return described_here(own.model_copy(update=found))


def roofline_run() -> RunRecords:
    """Eight cases on one GPU: bound by compute, by memory, by the host and by nothing."""
    waits = RecordWarning(kind="host-bound", message="the device waited", remedy="use --compile on")
    return run_of([
        product(0, 8192, 8192, 8192, 2 * 8192**3 / 720e12),
        product(1, 16, 8192, 8192, 42e-6),
        product(2, 64, 64, 64, 5e-6),
        product(3, 4096, 4096, 4096, 2 * 4096**3 / 46e12, precision="fp32"),
        inference(4, 7e9, 14e9, 4.4e-3),
        inference(5, 3.3e8, 21e12, 61e-3),
        inference(6, 2.5e7, 33e9, 1.1e-3, warnings=[waits]),
        training(7, 1.24e8, 27.4e12, 0.9, peak=60e9),
    ])  # fmt: skip


def data_parallel(index: int, ranks: int, seconds: float, *, batch: int = 32, **more: Any) -> Record:
    """Data-parallel training of so many samples a rank, which took so long for a step."""
    parameters = {"model": "resnet50", "precision": "bf16", "batch_size": batch}
    times = Measurement.of_samples(STEP_TIME, [seconds] * 20)
    found = [Measurement.of_rate(throughput("images/s"), batch * ranks, times), times, *more.pop("found", [])]
    facts = {"device": GPU, "batch_size": batch, "global_batch_size": batch * ranks} | more.pop("facts", {})
    target = more.pop("target", "cuda:*" if ranks > 1 else "cuda:0")
    title = f"resnet50 bf16 b{batch}" + (f" x{ranks}" if ranks > 1 else "")
    where = case(index, "train", title, target=target, ranks=ranks, **parameters)
    return record(of_category(where, "training"), found, facts=facts, **more)


def of_ranks(metric: Metric, values: Iterable[float]) -> list[Measurement]:
    """A figure of each rank, and the largest for the case."""
    told = list(values)
    each = [Measurement.of_value(metric, value, scope=f"rank {rank}") for rank, value in enumerate(told)]
    return [Measurement.of_value(metric, max(told)), *each]


def mesh(
    index: int, layout: tuple[int, int, int], seconds: float, *, batch: int = 64, exposed: Sequence[float] = (),
    bubble: float | None = None,
) -> Record:  # fmt: skip
    """Training over data x tensor x pipeline ranks with one global batch."""
    data, tensor, pipeline = layout
    ranks = data * tensor * pipeline
    word = f"gpt2/nl24_bf16_{data}x{tensor}x{pipeline}_mb4_gb{batch}_1n{ranks}g"
    times = Measurement.of_samples(STEP_TIME, [seconds] * 20)
    found = [Measurement.of_rate(throughput("sequences/s"), batch, times), times]
    found += of_ranks(EXPOSED, exposed) if exposed else []
    found += [Measurement.of_value(BUBBLE, bubble)] if bubble is not None else []
    facts = {"layout": word, "global_batch_size": batch, "batch_size": 4, "device": GPU}
    where = case(index, "parallel", word, target="cuda:*", ranks=ranks, case=word, hidden=1024)
    return record(of_category(where, "training"), found, facts=facts)


def scaling_run() -> RunRecords:
    """Data-parallel training that keeps 80 % over 8 ranks, and meshes of which one waits in its pipeline."""
    waits = {2: 0.004, 4: 0.010, 8: 0.018}
    return run_of([
        data_parallel(0, 1, 0.100),
        *(data_parallel(place, ranks, 0.100 + 0.025 * (ranks > 4) + wait,
                        found=of_ranks(EXPOSED, [wait] * (ranks - 1) + [wait / 2]))
          for place, (ranks, wait) in enumerate(waits.items(), start=1)),
        mesh(4, (1, 1, 1), 0.8),
        mesh(5, (2, 1, 1), 0.42, exposed=[0.02, 0.015]),
        mesh(6, (4, 1, 1), 0.24, exposed=[0.03, 0.03, 0.028, 0.03]),
        mesh(7, (1, 2, 2), 0.25, exposed=[0.05] * 4, bubble=16.0),
    ])  # fmt: skip


def cell(index: int, batch: int, sequence: int, value: float | None, *, outcome: Outcome = Outcome.OK) -> Record:
    """A case of a grid; without a value it did not succeed."""
    where = case(
        index, "train", f"gpt2 b{batch} s{sequence}", model="gpt2", batch_size=batch, sequence=sequence, seed=1
    )
    if value is None:
        message = f"the device has 139.8 GiB; a batch of {batch} with {sequence} tokens asks for more"
        cause = Cause(kind=CauseKind.DEVICE_MEMORY, message=message)
        return record(of_category(where, "training"), outcome=outcome, cause=cause)
    times = Measurement.of_samples(STEP_TIME, [batch / value] * 20)
    found = [Measurement.of_rate(throughput("sequences/s"), batch, times), times]
    return record(of_category(where, "training"), found)


def grid_run() -> RunRecords:
    """Four batches by three sequences; the largest of both does not fit, and one was never run."""
    batches, sequences = (8, 16, 32, 64), (256, 512, 1024)
    places = [(batch, sequence) for sequence in sequences for batch in batches]
    records = [
        cell(index, batch, sequence, 40_000 * batch / (batch + 12) / sequence)
        for index, (batch, sequence) in enumerate(places[:-2])
    ]
    lost = cell(11, 64, 1024, None, outcome=Outcome.OUT_OF_MEMORY)
    return run_of([*records, lost], not_run=[cell(10, 32, 1024, 1.0).case])
