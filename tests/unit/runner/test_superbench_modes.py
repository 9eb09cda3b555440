"""How many processes a mode of SuperBench's starts, and what is said where so many cannot measure."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case
from paceline.core.suite import Here, Suite, expand
from paceline.runner.superbench_config import read_config
from paceline.runner.superbench_modes import not_as_asked
from support.refused import refused

EIGHT = Here(devices={"cuda": 8})
EACH = {"name": "local", "prefix": "CUDA_VISIBLE_DEVICES={proc_rank}"}


def config(benchmark: str, mode: dict[str, Any], **more: Any) -> Suite:
    entry = {"enable": True, "modes": [mode], **more}
    return read_config({"superbench": {"benchmarks": {benchmark: entry}}}, "mine.yaml")


def cases(suite: Suite, here: Here = EIGHT) -> list[Case]:
    return expand(suite, BENCHMARKS.get, here)


@pytest.mark.parametrize(("proc_num", "count"), [(2, 2), (8, 8), (1, 1), (None, 1), ("4", 4)])
def test_so_many_processes_are_so_many_devices_from_the_first(proc_num: Any, count: int) -> None:
    suite = config("kernel-launch", {**EACH, "proc_num": proc_num})
    assert [case.target for case in cases(suite)] == [f"cuda:{number}" for number in range(count)]
    assert suite.notes == not_as_asked(suite, EIGHT) == []


@pytest.mark.parametrize(("proc_num", "ranks"), [(2, 2), (8, 8), (1, 1), (None, 8)])
@pytest.mark.parametrize("kind", ["mpi", "torch.distributed"])
def test_processes_that_work_together_are_so_many_ranks(kind: str, proc_num: int | None, ranks: int) -> None:
    models: dict[str, Any] = {"frameworks": ["pytorch"], "models": ["resnet18"]}
    for benchmark, more in (("nccl-bw", {}), ("model-benchmarks:cnn", models)):
        suite = config(benchmark, {"name": kind, "proc_num": proc_num}, **more)
        assert {(case.target, case.ranks) for case in cases(suite)} == {("cuda:*", ranks)}
        assert suite.notes == not_as_asked(suite, EIGHT) == []


@pytest.mark.parametrize(
    ("mode", "ngpus", "ranks"),
    [
        ({"name": "local", "proc_num": 1}, 4, 4),
        ({"name": "local"}, 8, 8),
        ({"name": "local", "proc_num": 1}, None, 8),
        ({"name": "mpi", "proc_num": 4}, 2, 8),
        ({"name": "mpi", "proc_num": 4}, 1, 4),
    ],
)
def test_gpus_of_a_process_are_ranks_as_well(mode: dict[str, Any], ngpus: int | None, ranks: int) -> None:
    suite = config("nccl-bw", mode, parameters={"ngpus": ngpus})
    assert [case.ranks for case in cases(suite)] == [ranks]
    assert suite.notes == not_as_asked(suite, EIGHT) == []


@pytest.mark.parametrize(
    ("benchmark", "mode", "parameters", "note"),
    [
        (
            "mem-bw",
            {"name": "local", "proc_num": 4},
            {},
            "mem-bw, mode local, proc_num, 4: one process measures it, not several side by side",
        ),
        (
            "nccl-bw",
            {"name": "local", "proc_num": 2},
            {"ngpus": 4},
            "nccl-bw, mode local, proc_num, 2: one case over the devices, none side by side",
        ),
        (
            "ib-loopback",
            {"name": "local", "proc_num": 4, "prefix": "PROC_RANK={proc_rank} IB_DEVICES=0,2"},
            {},
            "ib-loopback, mode local, proc_num, 4: IB_DEVICES names 2 adapters",
        ),
        (
            "cpu-stream",
            {"name": "mpi", "proc_num": 2, "node_num": 3},
            {},
            "cpu-stream, mode mpi, node_num, 3: one host measures it",
        ),
        (
            "kernel-launch",
            {"name": "local", "proc_num": 32, "prefix": "HIP_VISIBLE_DEVICES=$(({proc_rank}%8))"},
            {},
            "kernel-launch, mode local, proc_num, 32: each of 8 devices measures once",
        ),
        (
            "kernel-launch",
            {"name": "local", "proc_num": 1, "prefix": "CUDA_VISIBLE_DEVICES=3"},
            {},
            "kernel-launch, prefix, CUDA_VISIBLE_DEVICES=3: devices are taken in their order, from the first",
        ),
        (
            "nccl-bw",
            {"name": "mpi"},
            {"ngpus": 4},
            "nccl-bw, parameters, ngpus, 4: all devices take part without proc_num",
        ),
        (
            "nccl-bw",
            {"name": "mpi", "proc_num": 8},
            {"stepfactor": 1},
            "nccl-bw, parameters, stepfactor, 1: sizes grow by a factor of at least 2, and so by 2",
        ),
    ],
)
def test_what_cannot_be_so_on_any_machine_has_no_counterpart(
    benchmark: str, mode: dict[str, Any], parameters: dict[str, Any], note: str
) -> None:
    suite = config(benchmark, mode, parameters=parameters)
    assert note in suite.notes
    assert len(suite.notes) == len(set(suite.notes))


@pytest.mark.parametrize(
    ("here", "note"),
    [
        (EIGHT, ""),
        (Here(devices={"cuda": 7}), "all 7 devices take part"),
        (Here(devices={"cuda": 1}), "the only device takes part"),
        (Here(), "there is no GPU here, so one process measures on the CPU"),
    ],
)
@pytest.mark.parametrize(
    ("benchmark", "mode"), [("kernel-launch", EACH), ("nccl-bw", {"name": "mpi"}), ("nccl-bw", {"name": "local"})]
)
def test_more_processes_than_devices_have_no_counterpart_on_that_machine(
    benchmark: str, mode: dict[str, Any], here: Here, note: str
) -> None:
    is_of_process = mode == {"name": "local"}
    key, parameters = ("ngpus", {"ngpus": 8}) if is_of_process else ("proc_num", {})
    suite = config(benchmark, {**mode, **({} if is_of_process else {"proc_num": 8})}, parameters=parameters)
    measured = cases(suite, here)
    assert max(len(measured), *(case.ranks for case in measured)) == max(1, here.gpus)
    place = "parameters" if is_of_process else f"mode {mode['name']}"
    assert not_as_asked(suite, here) == ([f"{benchmark}, {place}, {key}, 8: {note}"] if note else [])


@pytest.mark.parametrize(
    ("mode", "here", "note"),
    [
        ({"proc_num": 8, "node_num": 2}, Here(devices={"cuda": 8}, world=16, nodes=2), ""),
        ({"proc_num": 8}, Here(devices={"cuda": 8}, world=16, nodes=2), ""),
        ({"proc_num": 8, "node_num": "all"}, Here(devices={"cuda": 8}, world=16, nodes=2), ""),
        ({"node_num": 1}, EIGHT, ""),
        (
            {"proc_num": 4},
            Here(devices={"cuda": 8}, world=16, nodes=2),
            "proc_num, 4: 16 ranks on 2 hosts take part; --hosts with :4 behind each starts others",
        ),
        (
            {"node_num": 1},
            Here(devices={"cuda": 8}, world=16, nodes=2),
            "node_num, 1: all 2 hosts take part; --each measures every host by itself",
        ),
        (
            {"node_num": 3},
            Here(devices={"cuda": 8}, world=16, nodes=2),
            "node_num, 3: all 2 hosts take part",
        ),
        ({"node_num": 2}, EIGHT, "node_num, 2: one host measures it by itself; --hosts A,B joins several"),
    ],
)
def test_other_hosts_than_asked_for_are_named(mode: dict[str, Any], here: Here, note: str) -> None:
    suite = config("nccl-bw", {"name": "mpi", **mode})
    assert not_as_asked(suite, here) == ([f"nccl-bw, mode mpi, {note}"] if note else [])


def test_a_local_mode_has_no_other_hosts_and_its_first_device_is_the_first() -> None:
    prefix = {"prefix": "CUDA_VISIBLE_DEVICES=0"}
    suite = config("kernel-launch", {"name": "local", "proc_num": 1, "node_num": 2, **prefix})
    assert suite.notes == [] == not_as_asked(suite, EIGHT)


@pytest.mark.parametrize("value", ["many", -2, 0, 2.5, True, [8]])
def test_what_is_no_number_of_processes_or_hosts_is_refused(value: Any) -> None:
    for key in ("proc_num", "node_num"):
        with refused(
            "not-a-count", key=key, value=value, where="mine.yaml, nccl-bw", says="a whole number of at least 1"
        ):
            config("nccl-bw", {"name": "mpi", key: value})
    with refused("not-a-count", key="ngpus", value=value):
        config("nccl-bw", {"name": "mpi"}, parameters={"ngpus": value})
