"""From records to ceilings: which figure of each benchmark, under which name, and what is absent."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.ceilings import ceilings_of, levels
from paceline.core.metric import Better, Merge, Metric
from paceline.core.profile import Ceiling
from paceline.core.record import At, Cause, CauseKind, Doubt, Measurement, Outcome, Record
from support.records import case, record, run_of

KIB, MIB = 1024, 1024**2
CACHES = [
    {"level": 1, "kind": "Data", "size": 32 * KIB, "shared_by": 1},
    {"level": 1, "kind": "Instruction", "size": 64 * KIB, "shared_by": 1},
    {"level": 2, "kind": "Unified", "size": MIB, "shared_by": 1},
    {"level": 3, "kind": "Unified", "size": 32 * MIB, "shared_by": 8},
]
ENVIRONMENT = {"cpu": {"model": "EPYC 9654", "caches": CACHES}}


def metric(name: str, unit: str) -> Metric:
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=Merge.SUM)


def rate(name: str, value: float, unit: str = "B/s", at: At | None = None) -> Measurement:
    times = Measurement.of_samples(metric("time", "s"), [1.0] * 20, at=at)
    return Measurement.of_rate(metric(name, unit), value, times)


def seconds(name: str, value: float, at: At | None = None) -> Measurement:
    return Measurement.of_samples(metric(name, "s"), [value] * 20, at=at)


def found(*records: Record, **more: Any) -> dict[tuple[str, str, str], Ceiling]:
    ceilings, _ = ceilings_of(run_of(list(records), environment=ENVIRONMENT, **more))
    return {(one.device, one.kind, one.name): one for one in ceilings}


def gemm(index: int, precision: str, value: float, **more: Any) -> Record:
    title = case(index, "gemm", precision, precision=precision, target=more.pop("target", "cpu"))
    return record(title, [rate("compute_rate", value, "FLOP/s")], facts={"device": "cpu"}, **more)


def test_a_matrix_product_is_the_compute_ceiling_of_its_precision() -> None:
    doubt = Doubt(kind="contended", message="others", remedy="stop them")
    ceilings = found(gemm(0, "fp32", 2e12, doubts=[doubt]))
    one = ceilings["cpu", "compute", "fp32"]
    assert (one.value, one.unit, one.device_name) == (2e12, "FLOP/s", "EPYC 9654")
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.value <= one.high
    assert [doubt.kind for doubt in one.doubts] == ["contended"]
    assert one.datasheet is None


def test_a_gpu_has_the_name_that_the_record_gives() -> None:
    where = case(0, "gemm", "bf16", precision="bf16", target="cuda:0")
    measured = [rate("compute_rate", 8e14, "FLOP/s")]
    (one,) = found(record(where, measured, facts={"device": "NVIDIA H200"})).values()
    assert one.device_name == "NVIDIA H200"


def test_of_repetitions_the_best_is_the_ceiling() -> None:
    assert (
        found(gemm(0, "fp32", 2e12), gemm(1, "fp32", 3e12), gemm(2, "fp32", 1e12))["cpu", "compute", "fp32"].value
        == 3e12
    )


@pytest.mark.parametrize("outcome", [Outcome.UNSUPPORTED, Outcome.FAILED, Outcome.TIMEOUT])
def test_what_did_not_succeed_is_absent_with_its_reason(outcome: Outcome) -> None:
    cause = Cause(kind=CauseKind.ERROR, message="fp8 needs compute capability 8.9")
    failed = record(case(1, "gemm", "fp8", precision="fp8", target="cuda:0"), outcome=outcome, cause=cause)
    ceilings, absent = ceilings_of(run_of([gemm(0, "fp32", 2e12), failed], environment=ENVIRONMENT))
    assert [one.name for one in ceilings] == ["fp32"]
    (one,) = absent
    assert (one.what, one.device, one.reason) == ("gemm fp8", "cuda:0", "fp8 needs compute capability 8.9")


def test_what_was_not_run_is_absent_too() -> None:
    waiting = case(1, "gemm", "fp16", precision="fp16", target="cpu")
    ceilings, absent = ceilings_of(run_of([gemm(0, "fp32", 2e12)], not_run=[waiting], environment=ENVIRONMENT))
    assert len(ceilings) == 1
    assert [(one.what, one.reason) for one in absent] == [("gemm fp16", "it was not run")]


def test_a_run_of_models_has_no_ceilings() -> None:
    other = record(case(0, "train", "lstm", target="cpu"), [rate("throughput", 5.0, "samples/s")])
    assert ceilings_of(run_of([other], environment=ENVIRONMENT)) == ([], [])


def test_levels_are_what_all_cores_reach_together() -> None:
    names = {level.name: level for level in levels(CACHES, 16)}
    assert list(names) == ["L1", "L2", "L3", "main memory"]
    assert names["L1"].high == 0.75 * 16 * 32 * KIB
    assert names["L2"].low == 2 * 16 * 32 * KIB
    assert names["L3"].high == 0.75 * 2 * 32 * MIB
    assert names["main memory"].low == 2 * 2 * 32 * MIB
    assert levels([], 16) == []


def test_stream_has_main_memory_from_its_own_size_and_caches_from_a_sweep() -> None:
    facts = {"device": "cpu", "threads": 1}
    whole = record(case(0, "stream", "", target="cpu"), [rate("triad_bandwidth", 40e9)], facts=facts)
    sizes = [8 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 4 * MIB, 64 * MIB]
    points = [rate("triad_bandwidth", float(size), at={"size": size}) for size in sizes]
    cached = Doubt(kind="cached", message="less than four times the last cache", remedy="use larger sizes")
    swept = record(
        case(1, "stream", "", target="cpu", sizes=sizes),
        [rate("triad_bandwidth", 1.0), *points],
        facts=facts,
        doubts=[cached],
    )
    ceilings = found(whole, swept)
    assert {name: one.value for (_, _, name), one in ceilings.items()} == {
        "main memory": 40e9,
        "L1": 8 * KIB,  # three arrays of 8 KiB
        "L2": 256 * KIB,  # those of 512 KiB would not fit
        "L3": 4 * MIB,
    }
    assert not ceilings["cpu", "memory", "L2"].doubts


def test_a_level_that_no_size_belongs_to_has_no_line() -> None:
    sizes = [16 * KIB]
    points = [rate("triad_bandwidth", 1e9, at={"size": 16 * KIB})]  # more than the first level, less than the second
    swept = record(case(0, "stream", "", target="cpu", sizes=sizes), points, facts={"threads": 1})
    assert found(swept) == {}


def test_latency_by_level_keeps_the_interval_of_its_own_point() -> None:
    times = {16 * KIB: 1e-9, 512 * KIB: 4e-9, 16 * MIB: 20e-9, 256 * MIB: 100e-9}
    points = [seconds("latency", value, at={"size": size}) for size, value in times.items()]
    imprecise = Doubt(kind="imprecise", message="at 256 MiB: wide", remedy="measure longer")
    noisy = points[-1].model_copy(
        update={"summary": Measurement.of_samples(metric("latency", "s"), [5e-8, 1e-7, 2e-7] * 7).summary}
    )
    measured = record(
        case(0, "memory-latency", "", target="cpu"), [*points[:-1], noisy], facts={"device": "cpu"}, doubts=[imprecise]
    )
    ceilings = found(measured)
    assert [name for (_, _, name) in ceilings] == ["L1", "L2", "L3", "main memory"]
    assert not ceilings["cpu", "latency", "L1"].doubts
    assert ceilings["cpu", "latency", "main memory"].doubts == (imprecise,)


@pytest.mark.parametrize(
    ("direction", "pages", "kind", "name"),
    [
        ("h2d", "pinned", "link", "host to device, pinned"),
        ("d2h", "pageable", "link", "device to host, pageable"),
        ("d2d", None, "memory", "copy within device memory"),
    ],
)
def test_copies(direction: str, pages: str | None, kind: str, name: str) -> None:
    facts = {"direction": direction, "host_memory": pages, "device": "NVIDIA H200"}
    measured = record(case(0, "copy", direction, direction=direction), [rate("bandwidth", 55e9)], facts=facts)
    assert list(found(measured)) == [("cuda:0", kind, name)]


def test_a_collective_has_the_bandwidth_of_its_largest_and_the_time_of_its_smallest_array() -> None:
    measured = [
        rate("bus_bandwidth", 4e11),
        seconds("time", 2e-3),
        seconds("time", 2e-5, at={"size": 64}),
        seconds("time", 2e-3, at={"size": 1024 * MIB}),
        seconds("time", 9.0, at={"size": 64}).model_copy(update={"scope": "rank 0"}),
    ]
    where = case(0, "collective", "all-reduce", operation="all-reduce", target="cuda:*", ranks=8)
    ceilings = found(record(where, measured, facts={"device": "NVIDIA H200"}))
    assert ceilings["cuda:*", "link", "all-reduce, 8 GPUs"].value == 4e11
    assert ceilings["cuda:*", "latency", "all-reduce, 8 GPUs"].value == 2e-5


def test_launches_links_and_disks() -> None:
    launch = record(
        case(0, "kernel-launch", ""),
        [seconds("wall_time", 3e-6), seconds("event_time", 2e-6), seconds("issue_time", 1e-6)],
        facts={"device": "NVIDIA H200"},
    )
    tcp = record(case(1, "tcp", "", target="cpu"), [rate("bandwidth", 4e9), seconds("round_trip_time", 3e-5)])
    disk = record(
        case(2, "disk", "", target="cpu", pattern="read"), [rate("bandwidth", 3e9)], facts={"device": "/dev/x"}
    )
    ceilings = found(launch, tcp, disk)
    assert {key: one.value for key, one in ceilings.items()} == {
        ("cuda:0", "launch", "issuing a kernel"): 1e-6,
        ("cuda:0", "launch", "kernel after kernel"): 2e-6,
        ("cpu", "link", "tcp loopback"): 4e9,
        ("cpu", "latency", "tcp loopback"): pytest.approx(3e-5),
        ("cpu", "storage", "disk read"): 3e9,
    }
    assert ceilings["cpu", "storage", "disk read"].device_name == "EPYC 9654"
