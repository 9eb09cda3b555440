"""Where the cases of a suite run: targets, ranks, devices and parts of the machine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.suite import Here, Suite, expand
from support.refused import refused
from support.small_suites import KNOWN, Gemm, Train, TrainParameters, cases, refusal

# ---- where to run


@pytest.mark.parametrize(("gpus", "target"), [(0, "cpu"), (4, "cuda:0")])
def test_auto_is_the_first_gpu_or_else_the_cpu(gpus: int, target: str) -> None:
    assert cases({"benchmark": "gemm"}, gpus=gpus)[0].target == target


@pytest.mark.parametrize(
    ("written", "target"),
    [("cuda", "cuda:0"), ("cuda:", "cuda:0"), ("cuda:3", "cuda:3"), ("cpu", "cpu"), ("cpu:", "cpu")],
)
def test_targets_are_brought_to_one_spelling(written: str, target: str) -> None:
    assert cases({"benchmark": "gemm", "target": written}, gpus=8)[0].target == target


@pytest.mark.parametrize("target", ["gpu", "cpu:0", "cuda:x", "cuda:-1", "auto:1", "", "CUDA:0"])
def test_other_targets_are_refused_with_the_known_ones(target: str) -> None:
    says = re.escape(f"'{target}' is not a target; write auto, cpu, cuda:0, cuda:* or cuda:each")
    with refused("invalid-value", says=says, key="target", value=target, where="mine, case 1 (gemm)", case=1):
        cases({"benchmark": "gemm", "target": target})


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (1, 1), (4, 4)])
def test_all_gpus_are_as_many_ranks(gpus: int, ranks: int) -> None:
    assert cases({"benchmark": "train", "model": "m", "target": "cuda:*"}, gpus=gpus)[0].ranks == ranks


def test_several_ranks_are_refused_where_only_one_can_measure() -> None:
    with refused("not-distributed", key="ranks", value=2):
        cases({"benchmark": "gemm", "ranks": 2})
    with refused("not-distributed", key="ranks", value=4):
        cases({"benchmark": "gemm", "target": "cuda:*"}, gpus=4)
    assert cases({"benchmark": "train", "model": "m", "ranks": 2})[0].ranks == 2


def test_a_case_for_another_kind_of_machine_is_left_out() -> None:
    entries = [{"benchmark": "gemm", "only_on": "cuda", "size": 1}, {"benchmark": "gemm", "only_on": "cpu", "size": 2}]
    assert [case.parameters["size"] for case in cases(*entries)] == [2]
    assert [case.parameters["size"] for case in cases(*entries, gpus=1)] == [1]
    assert [case.index for case in cases(*entries)] == [0]


def test_a_suite_of_which_nothing_is_left_is_refused() -> None:
    with refused("no-case-left", says="has no GPU", where="mine"):
        cases({"benchmark": "gemm", "only_on": "cuda"})


# ---- the machine


@pytest.mark.parametrize(
    ("devices", "device", "belongs"),
    [
        ({}, None, True),
        ({}, "cpu", True),
        ({"cuda": 1}, "cpu", False),
        ({}, "gpu", False),
        ({"cuda": 1}, "gpu", True),
        ({"cuda": 1}, "layout", True),
        ({}, "layout", False),
        ({"cuda": 1}, "gpus", False),
        ({"cuda": 2}, "gpus", True),
        ({"cuda": 1}, "cuda", True),
        ({"cuda": 1}, "rocm", False),
        ({"cuda": 0, "rocm": 1}, "rocm", True),
        ({"cuda": 0, "rocm": 1}, "cuda", False),
    ],
)
def test_where_a_case_belongs(devices: dict[str, int], device: str | None, belongs: bool) -> None:
    assert Here(devices=devices).offers(device) is belongs


@pytest.mark.parametrize(
    ("here", "ranks", "nodes", "fits"),
    [
        (Here(devices={"cuda": 2}), 2, None, True),
        (Here(devices={"cuda": 2}), 3, None, False),
        (Here(devices={"cuda": 1}), None, None, True),
        (Here(), None, None, False),
        (Here(devices={"cuda": 2}), 2, 1, True),
        (Here(devices={"cuda": 2}), 2, 2, False),
        (Here(world=2, nodes=2), 2, 2, True),
        (Here(world=2, nodes=2), None, None, True),
        (Here(world=2, nodes=2), 2, 1, False),
        (Here(world=2, nodes=1), 4, 1, False),
    ],
)
def test_whether_a_layout_fits(here: Here, ranks: int | None, nodes: int | None, fits: bool) -> None:
    assert here.fits(ranks, nodes) is fits


def test_a_machine_of_so_many_devices() -> None:
    here = Here.with_devices(2, None, world=4, nodes=2)
    assert (here.devices, here.world, here.nodes, here.gpus, here.kind) == ({"cuda": 2}, 4, 2, 2, "cuda")
    assert Here.with_devices(1, "rocm", world=1, nodes=1).resolve("auto") == ["rocm:0"]
    none = Here.with_devices(0, None, world=1, nodes=1)
    assert (none.devices, none.gpus, none.kind, none.resolve("auto"), none.resolve("cuda:1")) == (
        {}, 0, "cpu", ["cpu"], ["cuda:1"],
    )  # fmt: skip


class Laid(Train):
    """Its size says how many ranks it takes, two for each host."""

    name = "laid"

    @classmethod
    def ranks(cls, parameters: TrainParameters) -> int | None:
        return parameters.size

    @classmethod
    def nodes(cls, parameters: TrainParameters) -> int | None:
        return parameters.size // 2 or None


def laid(here: Here, benchmark: type[Benchmark[Any]] = Laid, **keys: Any) -> list[Case]:
    entry = {"benchmark": benchmark.name, "model": "m"} | keys
    suite = Suite(name="mine", cases=[{name: value for name, value in entry.items() if value is not None}])
    return expand(suite, lambda _: benchmark, here)


def test_parameters_may_call_for_ranks() -> None:
    assert [case.ranks for case in laid(Here(), size=2)] == [2]
    assert [case.ranks for case in laid(Here(world=2), size=2)] == [2]
    with refused("wrong-number-of-ranks", key="ranks", value=3):
        laid(Here(), size=2, ranks=3)
    with refused("wrong-number-of-ranks", key="ranks", value=4):
        laid(Here(world=4), size=2)
    with refused("wrong-number-of-nodes", value=2, says="name the hosts with --hosts"):
        laid(Here(), size=4)
    with refused("wrong-number-of-nodes", value=1, says="change the layout, or name other hosts"):
        laid(Here(world=2, nodes=2), size=2)
    assert [case.ranks for case in laid(Here(nodes=2, world=4), size=4)] == [4]


def test_a_layout_that_does_not_fit_may_be_left_out() -> None:
    here = Here(devices={"cuda": 2})
    assert [case.ranks for case in laid(here, size=[1, 2, 4], only_on="layout")] == [1, 2]
    assert [case.ranks for case in laid(here, size=[1, 2], only_on="gpu")] == [1, 2]


def test_processes_that_were_started_together_measure_together_where_the_benchmark_can() -> None:
    assert [case.ranks for case in laid(Here(world=2), Train)] == [2]
    assert [case.ranks for case in laid(Here(world=2), Train, ranks=2)] == [2]
    assert [case.ranks for case in laid(Here(world=2), Gemm, model=None)] == [1]
    with refused("wrong-number-of-ranks", key="ranks", value=3):
        laid(Here(world=2), Train, ranks=3)


@pytest.mark.parametrize("target", ["cuda:0", "cuda:*", "cpu"])
def test_several_ranks_begin_at_the_first_device(target: str) -> None:
    assert [case.ranks for case in laid(Here(devices={"cuda": 1}), Train, target=target, ranks=2)] == [2]
    assert laid(Here(devices={"cuda": 4}), Train, target="cuda:3")[0].ranks == 1


def test_a_suite_has_so_many_cases_at_most() -> None:
    suite = Suite(name="mine", cases=[{"benchmark": "gemm", "size": [1, 2, 3]}])
    assert len(expand(suite, KNOWN.get, Here(), most_cases=3)) == 3
    with refused("too-many-cases", case=1):
        expand(suite, KNOWN.get, Here(), most_cases=2)


def test_a_list_of_which_only_some_are_lists_is_one_value() -> None:
    with refused("invalid-value", key="shape.1"):
        cases({"benchmark": "gemm", "shape": [2, [3]]})


@pytest.mark.parametrize(
    ("target", "gpus", "expected"),
    [
        ("cuda:each", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ("auto:each", 2, ["cuda:0", "cuda:1"]),
        ("auto:each", 0, ["cpu"]),
        ("cuda:each", 0, ["cuda:0"]),  # which is not here, and says so
        ("auto:*", 0, ["cpu"]),
        ("auto", 2, ["cuda:0"]),
    ],
)
def test_each_device_is_a_case_of_its_own(target: str, gpus: int, expected: list[str]) -> None:
    found = cases({"benchmark": "gemm", "target": target}, gpus=gpus)
    assert [case.target for case in found] == expected
    assert {case.ranks for case in found} == {1}
    assert [case.index for case in found] == list(range(len(expected)))


def test_all_devices_of_any_kind_are_one_case() -> None:
    (case,) = cases({"benchmark": "train", "model": "m", "target": "auto:*"}, gpus=4)
    assert (case.target, case.ranks) == ("cuda:*", 4)


@pytest.mark.parametrize(("most", "gpus", "taken"), [(2, 4, 2), (4, 4, 4), (8, 4, 4), (1, 4, 1), (2, 0, 1)])
def test_a_suite_may_take_the_first_devices_alone(most: int, gpus: int, taken: int) -> None:
    (case,) = cases({"benchmark": "train", "model": "m", "target": "auto:*", "most_devices": most}, gpus=gpus)
    assert case.ranks == taken
    found = cases({"benchmark": "gemm", "target": "auto:each", "most_devices": most}, gpus=gpus)
    assert [case.target for case in found] == ([f"cuda:{number}" for number in range(taken)] if gpus else ["cpu"])


@pytest.mark.parametrize(
    ("size", "more", "gpus", "at_once"),
    [
        (16, {}, 2, True),
        (8, {}, 2, False),
        (8, {"at_once": True}, 2, True),
        (16, {"at_once": False}, 2, False),
        (16, {}, 1, False),
    ],
)
def test_devices_are_measured_at_once_where_the_benchmark_stays_within_one_or_the_suite_says_so(
    size: int, more: dict[str, Any], gpus: int, at_once: bool
) -> None:
    found = cases({"benchmark": "two-words", "target": "cuda:each", "size": size, **more}, gpus=gpus)
    assert {case.at_once for case in found} == {at_once}


def test_the_same_work_is_known_on_other_devices_and_only_in_the_same_repetition() -> None:
    found = cases({"benchmark": "gemm", "target": "cuda:each", "size": [8, 16], "repeat": 2}, gpus=2)
    assert len({case.work_key for case in found}) == 4
    assert len({case.key for case in found}) == 4  # two sizes on two devices, whichever repetition


def test_each_device_by_itself_takes_one_rank() -> None:
    with refused("one-device-for-several-ranks", key="target"):
        cases({"benchmark": "train", "model": "m", "target": "cuda:each", "ranks": 2}, gpus=2)


@pytest.mark.parametrize(("nodes", "expected"), [([0, 2], [0, 2]), ([0], [None]), ([], [None])])
def test_each_part_of_the_machine_is_a_case_where_there_are_several(
    nodes: list[int | str], expected: list[int | None]
) -> None:
    suite = Suite(name="s", cases=[{"benchmark": "gemm", "node": "each", "size": 8}])
    found = expand(suite, KNOWN.get, Here(parts={"nodes": nodes, "others": [7, 8]}))
    assert [case.parameters["node"] for case in found] == expected


def test_only_a_part_of_the_machine_can_be_each() -> None:
    assert "steps" in refusal({"benchmark": "gemm", "steps": "each"})
