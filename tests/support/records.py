"""Records that look like a real run: training and inference, with failures, warnings and several ranks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from paceline.core.benchmark import described
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import Run, RunRecords
from paceline.core.subject import Description, Subject

STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER, merge=Merge.SLOWEST, description="One step")
MEMORY = Metric(name="peak_device_memory", unit="B", better=Better.LOWER, merge=Merge.MAXIMUM)
HOST_MEMORY = Metric(name="peak_host_memory", unit="B", better=Better.LOWER, merge=Merge.MAXIMUM)
MFU = Metric(name="mfu", unit="%", better=Better.HIGHER, merge=Merge.MEAN)
FLOPS = Metric(name="achieved_flops", unit="FLOP/s", better=Better.HIGHER, merge=Merge.SUM)
ENERGY = Metric(name="energy_per_sample", unit="J", better=Better.LOWER, merge=Merge.MEAN)
FIRST_STEP = Metric(name="first_step_time", unit="s", better=Better.LOWER)
LOSS = Metric(name="loss", unit="")
STARTED = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
RUN_ID = "20260314-092653-k7qd"


def throughput(unit: str) -> Metric:
    """Work over time, in this unit."""
    return Metric(name="throughput", unit=unit, better=Better.HIGHER, merge=Merge.SUM)


def case(index: int, benchmark: str, title: str, **parameters: Any) -> Case:
    """A case; keys that a case has itself are taken out of the parameters."""
    own = {key: parameters.pop(key) for key in ("target", "ranks", "repeat", "category") if key in parameters}
    return Case(index=index, benchmark=benchmark, title=title, parameters=parameters, **({"target": "cuda:0"} | own))


def record(case: Case, measurements: list[Measurement] | None = None, **more: Any) -> Record:
    """One attempt at a case, ok unless told otherwise; its benchmark describes it, but for what the test says of it."""
    values: dict[str, Any] = {"outcome": Outcome.OK, "seconds": 21.4} | more
    started = STARTED + timedelta(seconds=30 * case.index)
    found = Record(run_id=RUN_ID, case=case, started_at=started, measurements=measurements or [], **values)
    said = described_here(found)
    return said.model_copy(update={name: getattr(found, name) for name in Description.model_fields if name in more})


def described_here(found: Record) -> Record:
    """The record with what its benchmark says of it, measured in the environment of these runs."""
    return described(found, Environment.model_validate(ENVIRONMENT))


def run_of(records: list[Record], *, not_run: list[Case] | None = None, **more: Any) -> RunRecords:
    """A finished run of these records."""
    values: dict[str, Any] = {
        "name": "node-check",
        "status": "finished",
        "started_at": STARTED,
        "ended_at": STARTED + timedelta(seconds=312),
        "version": "0.1.0",
        "command": ["paceline", "run", "node-check.yaml", "--set", "budget=10s"],
        "environment": ENVIRONMENT,
    } | more
    cases = [item.case for item in records] + (not_run or [])
    return RunRecords(run=Run(id=RUN_ID, cases=cases, **values), records=records)


def literal_run() -> RunRecords:
    """Two cases whose numbers can be checked by eye: 0.1 s and 0.2 s a step, 32 images each."""
    records = []
    for index, (precision, seconds) in enumerate((("fp16", 0.1), ("fp32", 0.2))):
        times = Measurement.of_samples(STEP_TIME, [seconds] * 20)
        parameters = {"model": "resnet50", "precision": precision, "batch_size": 32, "scale": "full", "compile": "auto"}
        measurements = [Measurement.of_rate(throughput("images/s"), 32, times), times]
        records.append(record(case(index, "train", f"resnet50 {precision}", **parameters), measurements))
    return run_of(records)


def sample_run() -> RunRecords:
    """Nine cases: training and inference, one on two ranks, two with warnings, one failed, one out of memory."""
    rng = np.random.default_rng(7)
    records = [
        _train(
            rng, 0, "gpt2-small", "bf16", 32, 0.1183, "sequences/s", tokens=1024, flops=281.4e12, memory=26.1, mfu=28.4
        ),
        _train(
            rng, 1, "bert-large", "bf16", 64, 0.0921, "sequences/s", tokens=128, flops=327.9e12, memory=14.8, mfu=33.1
        ),
        _train(rng, 2, "resnet50", "fp32", 192, 0.2417, "images/s", flops=19.8e12, memory=18.2, mfu=29.6),
        _train(rng, 3, "resnet50", "bf16", 192, 0.0743, "images/s", flops=64.3e12, memory=9.7, mfu=6.5, wave=0.05),
        _inference(rng, 4, "resnet50", "fp16", 1, 0.00231, "images/s", count=3200),
        _inference(rng, 5, "bert-large", "fp16", 8, 0.0117, "sequences/s", count=800),
        _train(
            rng,
            6,
            "gpt2-small",
            "bf16",
            32,
            0.1291,
            "sequences/s",
            tokens=1024,
            flops=515e12,
            memory=27.4,
            mfu=26.0,
            ranks=2,
        ),
    ]
    failed = case(7, "train", "mixtral-8x7b bf16", **_parameters("mixtral-8x7b", "bf16", 8))
    records.append(
        record(
            failed,
            outcome=Outcome.OUT_OF_MEMORY,
            cause=Cause(
                kind=CauseKind.DEVICE_MEMORY,
                message="the device has 139.8 GiB, of which 138.9 GiB were in use; 2.0 GiB more were asked for",
                detail="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            ),
            seconds=48.2,
        )
    )
    broken = case(8, "inference", "lstm fp8_e4m3", category="inference", **_parameters("lstm", "fp8_e4m3", 32))
    message = '"lstm" is not implemented for Float8_e4m3fn'
    trace = f'Traceback (most recent call last):\n  File "lstm.py", line 41, in forward\nRuntimeError: {message}'
    records.append(
        record(
            broken,
            outcome=Outcome.FAILED,
            cause=Cause(kind=CauseKind.ERROR, message=message, detail=trace),
            seconds=6.1,
        )
    )
    return run_of(records)


def _parameters(model: str, precision: str, batch: int) -> dict[str, Any]:
    return {
        "model": model,
        "precision": precision,
        "batch_size": batch,
        "scale": "full",
        "compile": "auto",
        "budget": 10.0,
        "interval": 0.01,
        "seed": 1234,
    }


def _noise(rng: np.random.Generator, middle: float, count: int, wave: float = 0.0) -> list[float]:
    steady = middle * (1 + rng.gamma(2.0, 0.004, count) - 0.006)
    steady *= 1 + wave * np.linspace(0, 1, count) ** 2
    slow = rng.random(count) < 0.012
    return [float(value) for value in np.where(slow, steady * rng.uniform(1.05, 1.22, count), steady)]


def _train(
    rng: np.random.Generator, index: int, model: str, precision: str, batch: int, step: float, unit: str, *,
    flops: float, memory: float, mfu: float, tokens: int = 0, wave: float = 0.0, ranks: int = 1,
) -> Record:  # fmt: skip
    per_rank = [_noise(rng, step, 160, wave) for _ in range(ranks)]
    times = Measurement.of_samples(STEP_TIME, np.max(np.array(per_rank), axis=0))
    found = [Measurement.of_rate(throughput(unit), batch * ranks, times), times]
    if tokens:
        metric = Metric(name="token_throughput", unit="tokens/s", better=Better.HIGHER, merge=Merge.SUM)
        found.append(Measurement.of_rate(metric, batch * ranks * tokens, times))
    for rank, samples in enumerate(per_rank if ranks > 1 else []):
        own = Measurement.of_samples(STEP_TIME, samples, scope=f"rank {rank}")
        found += [own, Measurement.of_rate(throughput(unit), batch, own, scope=f"rank {rank}")]
    found += [
        Measurement.of_value(MEMORY, memory * 1024**3),
        Measurement.of_value(MFU, mfu),
        Measurement.of_value(FLOPS, flops),
        Measurement.of_value(ENERGY, 0.31 * step / batch * 700),
        Measurement.of_value(FIRST_STEP, step * 31),
        Measurement.of_value(LOSS, 6.93),
    ]
    warnings = []
    if wave:
        warnings = [
            RecordWarning(
                kind="drifting",
                message="the second half of the steps took 3.4 % longer than the first",
                remedy="let the device reach its working temperature first: raise 'warm_up'",
            ),
            RecordWarning(
                kind="throttled",
                message="the device lowered its clock from 1980 to 1755 MHz for heat during 31 % of the time",
                remedy="improve the cooling, or lock the clocks below the throttling point with nvidia-smi -lgc",
            ),
        ]
    facts = _facts(model, precision, batch, ranks)
    title = f"{model} {precision}" + (f" x{ranks}" if ranks > 1 else "")
    target = "cuda:*" if ranks > 1 else "cuda:0"
    where = case(index, "train", title, target=target, ranks=ranks, **_parameters(model, precision, batch))
    return record(where, found, facts=facts, warnings=warnings, conditions=CONDITIONS)


def _inference(
    rng: np.random.Generator, index: int, model: str, precision: str, batch: int, step: float, unit: str, count: int
) -> Record:
    times = Measurement.of_samples(STEP_TIME, _noise(rng, step, count))
    found = [
        Measurement.of_rate(throughput(unit), batch, times),
        times,
        Measurement.of_value(MEMORY, 1.3 * 1024**3),
        Measurement.of_value(HOST_MEMORY, 2.9 * 1024**3),
    ]
    warnings = []
    if batch == 1:
        remedy = "close other programs, or take a machine of its own"
        warnings = [
            RecordWarning(kind="contended", message="other processes used 41 % of the CPU meanwhile", remedy=remedy)
        ]
    where = case(
        index, "inference", f"{model} {precision}", category="inference", **_parameters(model, precision, batch)
    )
    return record(where, found, facts=_facts(model, precision, batch, 1), warnings=warnings, conditions=CONDITIONS)


def _facts(model: str, precision: str, batch: int, ranks: int) -> dict[str, Any]:
    return {
        "model": model,
        "parameter_count": {"gpt2-small": 124_439_808, "bert-large": 335_141_888}.get(model, 25_557_032),
        "batch_size": batch,
        "global_batch_size": batch * ranks,
        "precision": precision,
        "device": "NVIDIA H200",
        "timing": "device events around forward, backward and optimizer; input preparation is outside",
        "stopped": "precise",
        "warm_up": {"steps": 24, "seconds": 4.81, "steady": True},
        "flops_formula": "6 x parameters x tokens, attention included",
        "peak_flops_source": "datasheet, dense",
    }


CONDITIONS: dict[str, Any] = {
    "before": {"load": 0.41, "gpu_temperature": 41, "sm_clock_mhz": 1980},
    "after": {"load": 1.12, "gpu_temperature": 66, "sm_clock_mhz": 1965},
}


def _gpu(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "cuda_index": index,
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory_total": 150_754_820_096,
        "sm_clock_max_mhz": 1980,
        "power_limit_watts": 700.0,
        "ecc": {"enabled": True, "uncorrected_aggregate": 0, "remap_pending": False},
        "persistence": True,
        "throttle_reasons": [],
        "processes": None,
    }


ENVIRONMENT: dict[str, Any] = {
    "host": "node-07",
    "system": "Linux",
    "kernel": "6.8.0-52-generic",
    "distribution": "Ubuntu 24.04.2 LTS",
    "container": "none",
    "cpu": {
        "model": "AMD EPYC 9654 96-Core Processor",
        "sockets": 2,
        "physical_cores": 192,
        "governor": "performance",
        "boost": None,
        "flags": ["avx2", "avx512f", "avx512_bf16"],
        "caches": [{"level": 3, "kind": "Unified", "size": 33_554_432, "shared_by": 16}],
    },
    "memory": {"total": 1_622_722_183_168, "available": 1_590_123_102_208, "limit": None},
    "driver": {"version": "570.86.15", "cuda": "12.8"},
    "gpus": [_gpu(0), _gpu(1)],
    "software": {
        "python": "3.11.9",
        "paceline": "0.1.0",
        "packages": {"torch": "2.9.1", "numpy": "2.3.4"},
        "torch_cuda": "12.8",
    },
    "git": {"commit": "3f9c1d2e", "dirty": False},
    "load": [0.41, 0.38, 0.35],
    "variables": {"OMP_NUM_THREADS": "96", "NCCL_P2P_LEVEL": "NVL"},
}


HOSTILE = "<script>alert('x')</script>|`=1+1`\x1b[31m"


def hostile_run() -> RunRecords:
    """Every text that a user or a library may have written tries to be more than text."""
    times = Measurement.of_samples(Metric(name="step_time", unit="s", better=Better.LOWER), [0.1, 0.11, 0.1, 0.12])
    rate = Metric(name=f"rate{HOSTILE}", unit=f"u{HOSTILE}", better=Better.HIGHER)
    warnings = [RecordWarning(kind=HOSTILE, message=HOSTILE, remedy=HOSTILE)]
    good = case(0, "train", HOSTILE, model=HOSTILE, precision=HOSTILE)
    bad = case(1, "train", f"={HOSTILE}")
    cause = Cause(kind=CauseKind.ERROR, message=HOSTILE, detail=HOSTILE)
    facts = {HOSTILE: {HOSTILE: [HOSTILE]}, "device": HOSTILE}
    subject = Subject(model=HOSTILE, scale=HOSTILE, layout=HOSTILE, device=HOSTILE, engine=HOSTILE)
    said = {"primary": rate.name, "subject": subject, "timing": HOSTILE}
    measured = [Measurement.of_rate(rate, 1, times), times]
    records = [
        record(good, measured, facts=facts, warnings=warnings, conditions=facts, **said),
        record(bad, outcome=Outcome.FAILED, cause=cause),
    ]
    environment = {"host": HOSTILE, HOSTILE: [{"name": HOSTILE}]}
    return run_of(records, name=HOSTILE, command=["paceline", HOSTILE], environment=environment, version=HOSTILE)
