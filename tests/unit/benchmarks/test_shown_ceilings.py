"""Which figure of each benchmark shows what its device can do at most, and under which name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.roofline import ceilings_of
from paceline.benchmarks.memory.host import levels
from paceline.core.benchmark import described
from paceline.core.environment import Cache, Environment
from paceline.core.metric import Better, Merge, Metric
from paceline.core.profile import Ceiling
from paceline.core.record import At, Measurement, Record, RecordWarning
from support.records import case, record, run_of

KIB, MIB = 1024, 1024**2
CACHES = [
    Cache(level=1, kind="Data", size=32 * KIB, shared_by=1),
    Cache(level=1, kind="Instruction", size=64 * KIB, shared_by=1),
    Cache(level=2, kind="Unified", size=MIB, shared_by=1),
    Cache(level=3, kind="Unified", size=32 * MIB, shared_by=8),
]
ENVIRONMENT = Environment.model_validate({"cpu": {"model": "EPYC 9654", "caches": CACHES}})


def metric(name: str, unit: str) -> Metric:
    return Metric(name=name, unit=unit, better=Better.HIGHER, merge=Merge.SUM)


def rate(name: str, value: float, unit: str = "B/s", at: At | None = None) -> Measurement:
    times = Measurement.of_samples(metric("time", "s"), [1.0] * 20, at=at)
    return Measurement.of_rate(metric(name, unit), value, times)


def seconds(name: str, value: float, at: At | None = None) -> Measurement:
    return Measurement.of_samples(metric(name, "s"), [value] * 20, at=at)


def found(*records: Record) -> dict[tuple[str, str, str], Ceiling]:
    told = [described(one, ENVIRONMENT) for one in records]
    ceilings, _ = ceilings_of(run_of(told, environment=ENVIRONMENT))
    return {(one.device, one.kind, one.name): one for one in ceilings}


@pytest.mark.parametrize(("units", "name"), [("auto", "bf16"), ("off", "bf16 plain units")])
def test_a_matrix_product_is_the_compute_ceiling_of_its_precision(units: str, name: str) -> None:
    where = case(0, "gemm", "bf16", precision="bf16", tensor_cores=units)
    measured = record(where, [rate("compute_rate", 2e12, "FLOP/s")], facts={"device": "NVIDIA H200"})
    ((key, one),) = found(measured).items()
    assert key == ("cuda:0", "compute", name)
    assert (one.value, one.device_name) == (2e12, "NVIDIA H200")


def test_a_model_shows_no_ceiling() -> None:
    assert found(record(case(0, "train", "lstm", target="cpu", model="lstm"), [rate("throughput", 5.0)])) == {}


def test_levels_are_what_all_cores_reach_together() -> None:
    names = {level.name: level for level in levels(ENVIRONMENT, 16)}
    assert list(names) == ["L1", "L2", "L3", "main memory"]
    assert names["L1"].high == 0.75 * 16 * 32 * KIB
    assert names["L2"].low == 2 * 16 * 32 * KIB
    assert names["L3"].high == 0.75 * 2 * 32 * MIB
    assert names["main memory"].low == 2 * 2 * 32 * MIB
    assert levels(Environment(), 16) == []


def test_stream_has_main_memory_from_its_own_size_and_caches_from_a_sweep() -> None:
    facts = {"device": "cpu", "threads": 1}
    whole = record(case(0, "stream", "", target="cpu"), [rate("triad_bandwidth", 40e9)], facts=facts)
    sizes = [8 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 4 * MIB, 64 * MIB]
    points = [rate("triad_bandwidth", float(size), at={"size": size}) for size in sizes]
    cached = RecordWarning(kind="cached", message="less than four times the last cache", remedy="use larger sizes")
    swept = record(
        case(1, "stream", "", target="cpu", sizes=sizes),
        [rate("triad_bandwidth", 1.0), *points],
        facts=facts,
        warnings=[cached],
    )
    ceilings = found(whole, swept)
    assert {name: one.value for (_, _, name), one in ceilings.items()} == {
        "main memory": 40e9,
        "L1": 8 * KIB,  # three arrays of 8 KiB
        "L2": 256 * KIB,  # those of 512 KiB would not fit
        "L3": 4 * MIB,
    }
    assert not ceilings["cpu", "memory", "L2"].warnings


def test_a_level_that_no_size_belongs_to_has_no_line() -> None:
    sizes = [16 * KIB]
    points = [rate("triad_bandwidth", 1e9, at={"size": 16 * KIB})]  # more than the first level, less than the second
    swept = record(case(0, "stream", "", target="cpu", sizes=sizes), points, facts={"threads": 1})
    assert found(swept) == {}


def test_latency_by_level_keeps_the_interval_of_its_own_point() -> None:
    times = {16 * KIB: 1e-9, 512 * KIB: 4e-9, 16 * MIB: 20e-9, 256 * MIB: 100e-9}
    points = [seconds("latency", value, at={"size": size}) for size, value in times.items()]
    imprecise = RecordWarning(kind="imprecise", message="at 256 MiB: wide", remedy="measure longer")
    wide = Measurement.of_samples(metric("latency", "s"), [5e-8, 1e-7, 2e-7] * 7).summary
    noisy = replace(points[-1], summary=wide)
    measured = record(
        case(0, "memory-latency", "", target="cpu"),
        [*points[:-1], noisy],
        facts={"device": "cpu"},
        warnings=[imprecise],
    )
    ceilings = found(measured)
    assert [name for (_, _, name) in ceilings] == ["L1", "L2", "L3", "main memory"]
    assert not ceilings["cpu", "latency", "L1"].warnings
    assert ceilings["cpu", "latency", "main memory"].warnings == (imprecise,)


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
        replace(seconds("time", 9.0, at={"size": 64}), scope="rank 0"),
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


def test_a_link_to_another_host_is_not_called_loopback() -> None:
    tcp = record(case(0, "tcp", "", target="cpu", peer="node2:18500"), [rate("bandwidth", 1e9)])
    assert list(found(tcp)) == [("cpu", "link", "tcp to node2:18500")]
