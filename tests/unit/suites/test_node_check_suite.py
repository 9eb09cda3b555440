"""The suite `node-check` measures every device, every RDMA device and every NUMA node that a machine has."""

from __future__ import annotations

from collections import Counter

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.suite import Here, expand
from paceline.runner.suite_file import load_suite


def cases(here: Here) -> list[Case]:
    return expand(load_suite("node-check"), BENCHMARKS.registry().get, here)


def test_an_eight_gpu_node_is_measured_whole() -> None:
    parts: dict[str, list[int | str]] = {"numa_nodes": [0, 1], "rdma_devices": [f"mlx5_{n}" for n in range(8)]}
    found = cases(Here(devices={"cuda": 8}, parts=parts))
    targets = [f"cuda:{number}" for number in range(8)]
    for benchmark in ("gemm", "stream", "copy", "kernel-launch"):
        counts = Counter(case.target for case in found if case.benchmark == benchmark and case.target != "cpu")
        assert sorted(counts) == targets and len(set(counts.values())) == 1, benchmark
    assert [case.parameters["device"] for case in found if case.benchmark == "rdma"] == parts["rdma_devices"]
    streams = [case.parameters["numa_node"] for case in found if case.benchmark == "stream" and case.target == "cpu"]
    assert streams == [0, 1]


def test_a_small_machine_has_each_of_them_once() -> None:
    found = cases(Here(parts={"numa_nodes": [0], "rdma_devices": []}))
    assert [case.parameters["numa_node"] for case in found if case.benchmark == "stream"] == [None]
    assert [case.parameters["device"] for case in found if case.benchmark == "rdma"] == [None]
