"""SuperBench's config files become suites; what has no counterpart is named, key by key, with why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.suite import Here, Suite, expand
from paceline.runner.suite_file import load_suite
from paceline.runner.superbench_config import Unmapped, counterpart, is_config, read_config
from support.refused import refused

CONFIG = Path(__file__).parents[2] / "data/superbench/config.yaml"


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(str(CONFIG))


@pytest.fixture(scope="module")
def cases(suite: Suite) -> list[Case]:
    """On a node with eight GPUs."""
    return expand(suite, BENCHMARKS.get, Here(devices={"cuda": 8}))


def config(**benchmarks: Any) -> Suite:
    entries = {name.replace("_", "-"): {"enable": True, **entry} for name, entry in benchmarks.items()}
    return read_config({"superbench": {"benchmarks": entries}}, "mine.yaml")


def named(cases: list[Case], name: str) -> list[Case]:
    return [case for case in cases if case.superbench == name]


def test_every_benchmark_that_runs_is_measured_or_named_with_a_reason(suite: Suite, cases: list[Case]) -> None:
    assert {case.superbench.partition(":")[0] for case in cases} == {
        "kernel-launch", "gemm-flops", "cublaslt-gemm", "nccl-bw", "nccl-lat", "rccl-bw", "ib-loopback", "mem-bw",
        "cpu-memory-bw-latency", "gpu-copy-bw", "cpu-hpl", "cudnn-function", "cublas-function", "cpu-stream",
        "pytorch-matmul", "pytorch-sharding-matmul", "pytorch-computation-communication-overlap", "model-benchmarks",
        "lstm_models", "gpu-burn", "ib-traffic",
    }  # fmt: skip
    wholly = {note.partition(":")[0] for note in suite.notes}
    for name in ("gpu-sm-copy-bw", "tcp-connectivity", "dist-inference", "silent"):
        assert name in wholly
    assert not any("gpcnet-network-load-test" in note for note in suite.notes), "what is off is nobody's business"


@pytest.mark.parametrize(
    "note",
    [
        "gemm-flops, precision, int4_tc: no product is measured in this number format",
        "cublaslt-gemm, in_types, fp8e5m2: no product",
        "hipblaslt-gemm, shapes, 4096:8192:*2,4096,4096: write out a range",
        "nccl-lat:default, parameters, graph_iters: collectives are launched one by one",
        "rccl-bw:allreduce:correctness, mca: ranks are started without MPI",
        "nccl-bw:pairs, pattern, pair-wise: pairs are measured by 'pairs'",
        "nccl-bw:batches, pattern, k-batch: pairs are measured by 'pairs'",
        "mem-bw, prefix, numactl -N $(({proc_rank}/2)): processes are not bound",
        "disk-benchmark, seq_write: it overwrites the device",
        "cpu-stream, parameters, cores: as many threads, not bound to these cores",
        "model-benchmarks:gpt, models, gpt3-175b: it is not a model of the zoo",
        "model-benchmarks:gpt, parameters, seq_len: the model has its own shape",
        "lstm_models, frameworks, tf2: models and products",
        "lstm_models, parameters, device: it has no counterpart",
        "silent: it does not say 'enable: true'",
        "ort-inference:fp16-online: ONNX Runtime is not measured",
        "tensorrt-inference, precision, int8: an engine in it takes data",
    ],
)
def test_what_has_no_counterpart_is_named_with_why(suite: Suite, note: str) -> None:
    assert any(one.startswith(note) for one in suite.notes), "\n".join(suite.notes)


@pytest.mark.parametrize(
    "note",
    [
        "superbench.monitor: clocks",
        "hipblaslt-gemm, parameters, num_warmup: a measurement warms up until it is steady",
        "rccl-bw:allreduce:correctness, parameters, check: results are always checked",
        "cpu-stream, parameters, cpu_arch: no program",
        "model-benchmarks:gpt, parameters, num_workers: the data is made on the device",
    ],
)
def test_what_changes_nothing_of_what_is_measured_is_needless(suite: Suite, note: str) -> None:
    assert any(one.startswith(note) for one in suite.needless), "\n".join(suite.needless)
    assert not any(one.startswith(note) for one in suite.notes)


def test_what_is_not_known_is_named_with_the_nearest_that_is() -> None:
    mode = {"name": "local", "proc_nun": 1}
    entry = {
        "modes": [mode],
        "parameter": {},
        "parameters": {"m": 16, "num_step": 5, "precison": ["fp32"], "x": 1, 7: 2},
    }
    read = config(**{"gemm-flops": entry, "kernel-lanch": {}, "quite-another": {}})
    assert {note for note in read.notes if "precison" in note or "lanch" in note} == {
        "gemm-flops, parameters, precison: it has no counterpart: did you mean 'precision'?",
        "kernel-lanch: no benchmark of this name is known: did you mean 'kernel-launch'?",
    }
    assert "gemm-flops, mode local, proc_nun: there is no such key: did you mean 'proc_num'?" in read.notes
    assert "gemm-flops.parameter: there is no such key: did you mean 'parameters'?" in read.notes
    assert "gemm-flops, parameters, num_step: it has no counterpart: did you mean 'num_steps'?" in read.notes
    assert "gemm-flops, parameters, x: it has no counterpart" in read.notes


def test_parameters_of_superbench_without_a_counterpart_are_taken_for_no_slips(suite: Suite) -> None:
    given = [note for note in (*suite.notes, *suite.needless) if ", parameters, " in note]
    assert given
    assert not any("did you mean" in note for note in given), "\n".join(given)


def test_parameters_that_ask_for_nothing_are_no_news(suite: Suite) -> None:
    assert not any("parameters, duration" in note or "tolerant_fail" in note for note in suite.notes)


def test_a_process_for_each_device_is_a_case_for_each(cases: list[Case]) -> None:
    launches = named(cases, "kernel-launch")
    assert [case.target for case in launches] == [f"cuda:{number}" for number in range(8)]
    assert all(case.at_once and case.timeout == 60 for case in launches)
    assert all(case.env == {"HIP_FORCE_DEV_KERNARG": "1"} for case in launches)
    copies = named(cases, "mem-bw")
    assert Counter(case.parameters["direction"] for case in copies) == {"h2d": 8, "d2h": 8, "d2d": 8}
    assert not any(case.at_once for case in copies)


def test_ranks_that_work_together_are_one_case_over_all_devices(cases: list[Case]) -> None:
    for name in ("nccl-bw:default", "pytorch-sharding-matmul", "model-benchmarks:gpt"):
        assert {(case.target, case.ranks) for case in named(cases, name)} == {("cuda:*", 8)}
    (gdr,) = named(cases, "nccl-bw:gdr-only")
    assert gdr.parameters["operation"] == "all-gather"
    assert gdr.env == {"HIP_FORCE_DEV_KERNARG": "1", "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0"}
    (checked,) = named(cases, "rccl-bw:allreduce:correctness")
    assert checked.parameters["sizes"] == [2**power for power in range(30, 36)]


def test_the_same_case_with_other_variables_is_other_work() -> None:
    modes = [{"name": "mpi", "env": {"NCCL_ALGO": algorithm}} for algorithm in ("Ring", "Tree")]
    first, second = expand(config(nccl_bw={"modes": modes}), BENCHMARKS.get, Here(devices={"cuda": 2}))
    assert first.key != second.key


def test_formats_of_products_are_those_of_the_units(cases: list[Case]) -> None:
    formats = {(case.parameters["precision"], case.parameters["tensor_cores"]) for case in named(cases, "gemm-flops")}
    assert formats == {
        ("fp64", "off"), ("fp32", "auto"), ("fp16", "off"), ("fp64", "auto"), ("tf32", "auto"), ("bf16", "auto"),
        ("fp16", "auto"), ("int8", "auto"),
    }  # fmt: skip
    blas = {case.parameters["precision"] for case in named(cases, "cublaslt-gemm")}
    assert blas == {"fp8", "fp64", "fp32", "fp16", "bf16", "int8"}


def test_models_train_and_infer_with_tf32_where_superbench_would(suite: Suite, cases: list[Case]) -> None:
    gpt = named(cases, "model-benchmarks:gpt")
    assert {(case.benchmark, case.parameters["precision"]) for case in gpt} == {
        (action, precision) for action in ("train", "inference") for precision in ("tf32", "fp16", "fp8_hybrid")
    }
    assert {case.parameters["steps"] for case in gpt} == {512}
    assert {case.repeat for case in gpt} == {1, 2}
    assert {case.parameters["precision"] for case in named(cases, "lstm_models")} == {"fp32"}  # by force_fp32
    on_cpu = expand(suite, BENCHMARKS.get, Here())
    assert "tf32" not in {case.parameters["precision"] for case in named(on_cpu, "model-benchmarks:gpt")}


def test_adapters_are_those_of_the_processes(cases: list[Case]) -> None:
    devices = [case.parameters["device"] for case in named(cases, "ib-loopback")]
    assert devices == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]


def test_only_reads_go_to_a_device_that_holds_data() -> None:
    runtimes = {"seq_read_runtime": 5, "rand_read_runtime": 6, "rand_write_runtime": 7}
    made = list(counterpart("disk-benchmark", {"block_devices": ["/dev/null", "/dev/none"], **runtimes}))
    entries = [one for one in made if not isinstance(one, Unmapped)]
    assert [(one["pattern"], one["raw_device"], one["budget"]) for one in entries] == [
        ("read", "/dev/null", 5),
        ("random-read", "/dev/null", 6),
    ]
    reasons = {one.what: one.why for one in made if isinstance(one, Unmapped)}
    assert reasons[", block_devices, /dev/none"] == "this machine has no such device"
    assert "overwrites" in reasons[", rand_write"]


def test_what_is_enabled_above_runs_alone() -> None:
    benchmarks: dict[str, Any] = {"kernel-launch": {}, "matmul": {}}
    document = {"superbench": {"enable": "kernel-launch", "benchmarks": benchmarks}}
    assert [case["benchmark"] for case in read_config(document, "mine.yaml").cases] == ["kernel-launch"]
    with refused("unknown-benchmark", key="superbench.enable"):
        read_config({"superbench": {"enable": ["kernel-lunch"], "benchmarks": benchmarks}}, "mine.yaml")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"modes": [{"name": "slurm"}]}, "unknown-mode"),
        ({"modes": ["local"]}, "not-a-mapping"),
        ({"parameters": ["m"]}, "not-a-mapping"),
        ({"modes": 5}, "not-a-list"),
        ({"frameworks": "pytorch"}, "not-a-list"),
        ({"frameworks": ["tf1"]}, "no-cases"),
    ],
)
def test_what_is_no_config_is_refused(entry: dict[str, Any], code: str) -> None:
    with refused(code):
        config(matmul=entry)


@pytest.mark.parametrize("parameters", [{"maxbytes": -1}, {"stepfactor": "two"}, {"stepfactor": [2]}])
def test_a_parameter_that_is_no_number_is_refused_with_its_benchmark(parameters: dict[str, Any]) -> None:
    with refused("invalid-value", where="mine.yaml, nccl-bw"):
        read_config(
            {"superbench": {"benchmarks": {"nccl-bw": {"enable": True, "parameters": parameters}}}}, "mine.yaml"
        )


def test_a_config_in_which_nothing_is_enabled_says_so() -> None:
    with refused("no-cases", says="no benchmark of it says 'enable: true'"):
        read_config({"superbench": {"benchmarks": {"matmul": {"enable": False}}}}, "mine.yaml")
    with refused("no-cases", says="matmul: it does not say 'enable: true'"):
        read_config({"superbench": {"benchmarks": {"matmul": None}}}, "mine.yaml")


@pytest.mark.parametrize("inner", ["3", "", "[benchmarks]"])
def test_a_config_that_holds_no_mapping_is_refused_as_one(tmp_path: Path, inner: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"version: v0.12\nsuperbench: {inner}\n")
    with refused("not-a-mapping", key="superbench", says="'superbench' must be a mapping"):
        load_suite(str(path))


def test_a_suite_of_ours_is_none() -> None:
    assert not is_config({"name": "mine", "cases": []})
    assert not is_config(["superbench"])


def test_patterns_over_hosts_become_those_of_pairs() -> None:
    patterns = {
        "k-batch": {"type": "k-batch", "batch": 4},
        "topo-aware": {
            "type": "topo-aware",
            "ibstat": "/fabric/ibstat.txt",
            "ibnetdiscover": "/fabric/topo.txt",
            "min_dist": 2,
            "max_dist": 4,
        },
        "odd": {"type": "pair-wise", "mystery": 1},
    }
    modes = {name: [{"name": "mpi", "proc_num": 1, "pattern": pattern}] for name, pattern in patterns.items()}
    read = config(**{f"nccl-bw:{name}": {"modes": mode, "parameters": {}} for name, mode in modes.items()})
    keys = [{key: one[key] for key in one if key not in ("env", "superbench")} for one in read.cases]
    assert keys == [
        {"target": "auto:*", "benchmark": "pairs", "pattern": "k-batch", "batch": 4, "most_devices": 1},
        {
            "target": "auto:*",
            "benchmark": "pairs",
            "most_devices": 1,
            "pattern": "topo-aware",
            "topology": "/fabric/topo.txt",
            "ibstat": "/fabric/ibstat.txt",
            "min_distance": 2,
            "max_distance": 4,
        },
        {"target": "auto:*", "benchmark": "pairs", "pattern": "pair-wise", "most_devices": 1},
    ]
    assert any("pattern, mystery: the pattern pair-wise does not use it" in note for note in read.notes)


def test_traffic_between_adapters_becomes_pairs_by_rdma() -> None:
    mode = {"name": "mpi", "proc_num": 1}
    batches = {"modes": [{**mode, "pattern": {"type": "k-batch", "batch": 4}}]}
    many = {"modes": [mode], "parameters": {"pattern": "one-to-many"}}
    read = config(**{"ib-traffic": {"modes": [mode]}, "ib-traffic:batches": batches, "ib-traffic:many": many})
    keys = [{key: one[key] for key in one if key not in ("env", "superbench")} for one in read.cases]
    by_rdma = {"target": "auto:*", "benchmark": "pairs", "by": "rdma", "most_devices": 1}
    assert keys == [
        by_rdma,
        {**by_rdma, "pattern": "k-batch", "batch": 4},
    ]
    assert any(note.startswith("ib-traffic:many, pattern, one-to-many: hosts meet in pairs") for note in read.notes)


def test_engines_of_tensorrt_are_inference_by_it() -> None:
    mode = {"name": "local", "proc_num": 2, "prefix": "CUDA_VISIBLE_DEVICES={proc_rank}"}
    given = {"pytorch_models": ["resnet50", "a-net"], "batch_size": 8, "precision": "float16"}
    read = config(**{"tensorrt-inference": {"modes": [mode], "parameters": given}})
    first, second = expand(read, BENCHMARKS.get, Here(devices={"cuda": 2}))
    assert (first.benchmark, first.target, second.target) == ("inference", "cuda:0", "cuda:1")
    wanted = {"engine": "tensorrt", "precision": "fp16", "batch_size": 8, "model": "resnet50"}
    assert wanted.items() <= first.parameters.items()
    assert any("pytorch_models, a-net: it is not a model of the zoo" in note for note in read.notes)


def test_copies_and_memory_have_their_patterns_and_mixes(cases: list[Case]) -> None:
    copies = named(cases, "gpu-copy-bw:correctness")
    patterns = {(case.parameters.get("pattern"), case.parameters["by"]) for case in copies if case.benchmark == "p2p"}
    assert {("all-to-all", "sm"), ("all-to-all", "engine"), ("pairs", "sm")} <= patterns
    directions = {case.parameters["direction"] for case in copies if case.benchmark == "copy"}
    assert directions == {"h2d", "d2h"}
    memory = named(cases, "cpu-memory-bw-latency")
    mixes = Counter(case.parameters["mix"] for case in memory if case.benchmark == "stream")
    assert set(mixes) == {"reads", "3r1w", "2r1w", "1r1w"}
    assert any(case.benchmark == "memory-latency" for case in memory)
    (hpl,) = named(cases, "cpu-hpl")
    assert (hpl.benchmark, hpl.target) == ("hpl", "cpu")


def test_an_autotuned_product_takes_the_route_and_four_bits_are_a_format() -> None:
    parameters = {"in_types": ["bf16", "fp4e2m1"], "shapes": ["64,64,128"], "enable_autotune": True}
    suite = config(**{"cublaslt-gemm": {"modes": [{"name": "local", "proc_num": 1}], "parameters": parameters}})
    found = {(case.parameters["precision"], case.parameters["route"]) for case in expand(suite, BENCHMARKS.get, Here())}
    assert found == {("bf16", "autotuned"), ("fp4", "autotuned")}


def test_a_timeout_may_be_written_with_its_unit() -> None:
    assert [case.timeout for case in expand(config(matmul={"timeout": "2h"}), BENCHMARKS.get, Here())] == [7200.0]
    with refused("invalid-value"):
        expand(config(matmul={"timeout": "abc"}), BENCHMARKS.get, Here())
