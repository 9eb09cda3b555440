"""Micro benchmarks under SuperBench's names and in its units."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, Record
from paceline.report.export import superbench
from support.micro_records import (
    SIZES,
    cannot,
    collective,
    copy,
    gemm,
    latency,
    memory_latency,
    micro,
    micro_run,
    pairs,
)
from support.records import described_here, record


def of(benchmark: str, measurements: list[Measurement], *, facts: dict[str, Any] | None = None, **more: Any) -> Record:
    return record(micro(0, "compute", benchmark, "", **more), measurements, facts=facts or {})


def value(name: str, number: float, unit: str = "s", at: At | None = None) -> Measurement:
    return Measurement.of_value(Metric(name=name, unit=unit, better=Better.HIGHER), number, at=at)


def keys(*records: Record) -> dict[str, float]:
    found = superbench.results(list(records))
    return {key: number for key, number in found.items() if not key.endswith("return_code")}


def test_kernel_launch_is_in_milliseconds() -> None:
    one = of("kernel-launch", [value("wall_time", 2.3e-6), value("event_time", 2.2e-6), value("loop_cost", 1e-9)])
    assert keys(one) == {
        "kernel-launch/event_time": pytest.approx(2.2e-3),
        "kernel-launch/wall_time": pytest.approx(2.3e-3),
    }


@pytest.mark.parametrize(
    ("precision", "tensor_cores", "key"),
    [
        ("fp64", "auto", "fp64_tc_flops"),
        ("fp64", "off", "fp64_flops"),
        ("fp32", "auto", "fp32_flops"),
        ("fp32", "off", "fp32_flops"),
        ("tf32", "auto", "tf32_tc_flops"),
        ("fp16", "auto", "fp16_tc_flops"),
        ("fp16", "off", "fp16_flops"),
        ("bf16", "auto", "bf16_tc_flops"),
        ("int8", "auto", "int8_tc_iops"),
    ],
)
def test_gemm_goes_by_format_and_units(precision: str, tensor_cores: str, key: str) -> None:
    found = keys(gemm(0, precision, 50e12, None, tensor_cores=tensor_cores))
    assert found == {f"gemm-flops/{key}": pytest.approx(50e3, rel=0.01)}


def test_fp8_goes_with_the_library_that_has_it() -> None:
    found = keys(gemm(0, "fp8", 1.4e15, None))
    assert found == {"cublaslt-gemm/fp8e4m3_0_8192_8192_8192_flops": pytest.approx(1400, rel=0.01)}


def test_a_cpu_never_passes_for_a_gpu() -> None:
    assert list(keys(gemm(0, "bf16", 1e11, None, target="cpu"))) == ["gemm-flops:target=cpu/bf16_flops"]
    both = keys(gemm(0, "fp32", 1e11, None, target="cpu"), gemm(1, "fp32", 50e12, None))
    assert set(both) == {"gemm-flops:target=cpu/fp32_flops", "gemm-flops/fp32_flops"}


def test_cases_of_one_benchmark_share_no_key() -> None:
    found = keys(gemm(0, "fp32", 5e13, None), gemm(1, "bf16", 7e14, None), gemm(2, "fp32", 6e13, None, size=4096))
    assert set(found) == {
        "gemm-flops:size=null/fp32_flops",
        "gemm-flops/bf16_tc_flops",
        "gemm-flops:size=4096/fp32_flops",
    }


def test_products_of_the_framework() -> None:
    assert keys(of("matmul", [value("time", 0.012)])) == {"pytorch-matmul/nosharding_time": pytest.approx(12)}
    sharded = [
        of("sharding-matmul", [value("time", 0.02)], mode=mode, ranks=2) for mode in ("all-reduce", "all-gather")
    ]
    sharded[1] = sharded[1].model_copy(update={"case": sharded[1].case.model_copy(update={"index": 1})})
    assert keys(*sharded) == {
        "pytorch-sharding-matmul/allreduce_time": pytest.approx(20),
        "pytorch-sharding-matmul/allgather_time": pytest.approx(20),
    }
    overlap = of(
        "compute-during-collective", [value("multiply_time_together", 1e-3), value("matmul_time_together", 2e-3)]
    )
    assert keys(overlap) == {
        "pytorch-computation-communication-overlap/mul_time": pytest.approx(1),
        "pytorch-computation-communication-overlap/matmul_time": pytest.approx(2),
    }


def test_lists_of_functions_are_in_microseconds() -> None:
    shape = {"function": "64x32x16 nt", "m": 64, "n": 32, "k": 16, "transpose_a": False, "transpose_b": True}
    batched = shape | {"function": "8 of 64x32x16 nt", "batch": 8}
    times = [value("time", 5e-6, at={"function": one["function"]}) for one in (shape, batched)]  # type: ignore[dict-item]
    found = keys(of("blas-functions", times, facts={"functions": [shape, batched]}, precision="fp32"))
    assert found == {
        "cublas-function/name_cublassgemm_k_16_m_64_n_32_transa_0_transb_1_time": pytest.approx(5),
        "cublas-function/name_cublassgemmstridedbatched_batchcount_8_k_16_m_64_n_32_transa_0_transb_1_time": (
            pytest.approx(5)
        ),
    }
    at: At = {"function": "64x56x56 to 64, 3x3", "pass": "backward-weight"}
    found = keys(of("dnn-functions", [value("time", 7e-6, at=at)]))
    assert found == {"cudnn-function/name_cudnnconvolutionbackwardfilter_64x56x56-to-64-3x3_time": pytest.approx(7)}


def test_copies_and_pairs_are_in_gigabytes() -> None:
    found = keys(copy(0, "h2d", 55e9), copy(1, "d2h", 54e9), copy(2, "d2d", 2e12))
    assert set(found) == {"mem-bw/h2d_bw", "mem-bw/d2h_bw", "mem-bw/d2d_bw"}
    assert found["mem-bw/h2d_bw"] == pytest.approx(55, rel=0.02)
    p2p = pairs(0, 2)
    own = p2p.case.model_copy(update={"benchmark": "p2p", "parameters": {}})
    p2p = described_here(p2p.model_copy(update={"case": own, "facts": {}}))
    assert keys(p2p) == {
        "gpu-copy-bw/gpu0_to_gpu1_write_by_dma_bw": pytest.approx(372, rel=0.02),
        "gpu-copy-bw/gpu1_to_gpu0_write_by_dma_bw": pytest.approx(372, rel=0.02),
    }


def test_a_copy_of_another_kind_never_passes_for_the_usual_one() -> None:
    assert list(keys(copy(0, "h2d", 9e9, host_memory="pageable"))) == ["mem-bw:host_memory=pageable/h2d_bw"]
    assert not any(key.startswith("mem-bw") for key in keys(copy(0, "h2d", 9e9, both=True)))
    assert not any(key.startswith("mem-bw") for key in keys(copy(0, "auto", 9e9, target="cpu")))


def test_rdma_through_this_host_is_a_loopback() -> None:
    points = [value("bandwidth_average", 24e9, "B/s", at={"size": 8388608})]
    assert keys(of("rdma", points, operation="read")) == {"ib-loopback/ib_read_bw_8388608:0": pytest.approx(24)}
    assert list(keys(of("rdma", points, peer="node-08"))) == ["rdma/bandwidth_average_size-8388608"]


def test_stream_goes_by_device() -> None:
    rates = [value(f"{kernel}_bandwidth", 100e9, "B/s") for kernel in ("copy", "scale", "add", "triad")]
    host = keys(of("stream", rates, facts={"threads": 8}, target="cpu"))
    assert host["cpu-stream/threads"] == 8
    assert host["cpu-stream/triad_throughput"] == pytest.approx(100e3)
    device = keys(of("stream", rates, facts={"array_sizes": [1024, 4096]}, target="cuda:1"))
    assert device["gpu-stream/STREAM_TRIAD_double_gpu_1_buffer_4096_bw"] == pytest.approx(100)


def test_latency_of_memory_is_in_nanoseconds() -> None:
    found = keys(memory_latency(0))
    assert found["cpu-memory-bw-latency/mem_latency_lat"] == pytest.approx(96, rel=0.02)
    assert found["cpu-memory-bw-latency/mem_latency_4096_lat"] == pytest.approx(1.1, rel=0.02)


def test_collectives_are_named_by_backend_operation_and_size() -> None:
    found = keys(collective(0, "all-reduce", 400e9), collective(1, "reduce-scatter", 300e9))
    assert len(found) == 2 * 3 * len(SIZES)
    assert found["nccl-bw/allreduce_268435456_busbw"] == pytest.approx(
        found["nccl-bw/allreduce_268435456_algbw"] * 2 * 7 / 8
    )
    assert found["nccl-bw/reducescatter_1024_time"] == pytest.approx(18, rel=0.05)
    assert set(keys(collective(0, "all-to-all", 3e9, backend="gloo"))) >= {"gloo-bw/alltoall_1024_busbw"}


def test_the_backend_of_a_device_is_meant_where_none_is_asked_for() -> None:
    one = collective(0, "all-reduce", 3e9, backend="auto", ranks=2)  # on CPUs
    assert all(key.startswith("gloo-bw/") for key in keys(one))


def test_connections_are_told_for_each_host() -> None:
    measured = [
        Measurement.of_samples(latency("connect_time"), [1e-3, 3e-3]),
        value("success_rate", 50.0, "%"),
    ]
    assert keys(of("tcp", measured, facts={"hosts": ["node-08:22"]})) == {
        "tcp-connectivity/node-08-22_successed_count": 2,
        "tcp-connectivity/node-08-22_failed_count": 2,
        "tcp-connectivity/node-08-22_success_rate": 50,
        "tcp-connectivity/node-08-22_time_min": pytest.approx(1),
        "tcp-connectivity/node-08-22_time_max": pytest.approx(3),
        "tcp-connectivity/node-08-22_time_avg": pytest.approx(2),
    }


def test_a_disk_goes_by_job_and_direction() -> None:
    slow = Measurement.of_samples(latency(), [1e-4] * 200)
    where = {"pattern": "random-read", "raw_device": "/dev/nvme0n1"}
    found = keys(of("disk", [value("iops", 5000.0, "operations/s"), slow], facts={"block_size": 4096}, **where))
    assert found == {
        "disk-benchmark/nvme0n1_rand_read_bs": 4096,
        "disk-benchmark/nvme0n1_rand_read_read_iops": 5000,
        "disk-benchmark/nvme0n1_rand_read_read_lat_ns_95.0": pytest.approx(1e5),
        "disk-benchmark/nvme0n1_rand_read_read_lat_ns_99.0": pytest.approx(1e5),
        "disk-benchmark/nvme0n1_rand_read_read_lat_ns_99.9": pytest.approx(1e5),
    }
    mixed = [value("iops", 70.0, at={"direction": "read"}), value("iops", 30.0, at={"direction": "write"})]
    assert keys(of("disk", mixed, pattern="mixed")) == {
        "disk-benchmark/file_seq_readwrite_read_iops": 70,
        "disk-benchmark/file_seq_readwrite_write_iops": 30,
    }


def test_points_of_other_benchmarks_have_keys_of_their_own() -> None:
    found = keys(
        of("mine", [value("score", 1.0), value("score", 2.0, at={"size": 8}), value("score", 3.0, at={"size": 9})])
    )
    assert found == {"mine/score": 1.0, "mine/score_size-8": 2.0, "mine/score_size-9": 3.0}


def test_a_whole_run_loses_nothing_and_tells_what_is_missing() -> None:
    run = micro_run(more=[cannot(20)])
    found = superbench.results(run.records)
    codes = {key: code for key, code in found.items() if key.endswith("return_code")}
    assert codes["gemm-flops/return_code"] == codes["nccl-bw/return_code"] == 0
    assert 34 in codes.values()
    assert sum("_busbw" in key for key in found) == 6 * len(SIZES)
