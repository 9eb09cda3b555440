"""What differs and matters is named; the rest is not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.compare.verdicts import Side, environment_differences
from support.records import ENVIRONMENT, literal_run, run_of


def side(**changes: Any) -> Side:
    return Side("a", (run_of(literal_run().records, environment=ENVIRONMENT | changes),))


def named(one: Side, other: Side, *, on_gpus: bool = True) -> dict[str, tuple[str, str]]:
    found = environment_differences(one, other, on_gpus=on_gpus)
    return {difference.name: (difference.reference, difference.new) for difference in found}


def gpus(**changes: Any) -> list[dict[str, Any]]:
    return [gpu | changes for gpu in ENVIRONMENT["gpus"]]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"gpus": gpus(name="NVIDIA A100")}, "GPUs"),
        ({"gpus": gpus()[:1]}, "GPUs"),
        ({"gpus": gpus(power_limit_watts=500.0)}, "power limit"),
        ({"driver": {"version": "580.0"}}, "driver"),
        ({"software": ENVIRONMENT["software"] | {"torch_cuda": "13.0"}}, "CUDA of torch"),
        ({"software": ENVIRONMENT["software"] | {"packages": {"torch": "2.10"}}}, "torch"),
        ({"cpu": ENVIRONMENT["cpu"] | {"model": "another"}}, "CPU"),
        ({"cpu": ENVIRONMENT["cpu"] | {"governor": "powersave"}}, "CPU governor"),
        ({"variables": ENVIRONMENT["variables"] | {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}},
         "variable TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        ({"memory": ENVIRONMENT["memory"] | {"limit": 8 * 1024**3}}, "memory limit"),
    ],
)  # fmt: skip
def test_what_matters_is_named(changes: dict[str, Any], name: str) -> None:
    assert name in named(side(), side(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"load": [9.0, 9.0, 9.0]},
        {"host": "another"},
        {"kernel": "6.1"},
        {"memory": ENVIRONMENT["memory"] | {"available": 1}},
        {"gpus": gpus(temperature_celsius=80, memory_used=7, sm_clock_mhz=300, uuid="GPU-1")},
        {"software": ENVIRONMENT["software"] | {"packages": {"torch": "2.9.1", "numpy": "9.9"}}},
    ],
)
def test_what_does_not_matter_is_passed_over(changes: dict[str, Any]) -> None:
    assert named(side(), side(**changes)) == {}


def test_gpus_do_not_matter_where_none_was_measured() -> None:
    assert named(side(), side(gpus=[], driver=None), on_gpus=False) == {}


def test_the_version_of_paceline_matters() -> None:
    other = Side("b", (run_of(literal_run().records, version="0.2.0"),))
    assert named(side(), other) == {"Paceline": ("0.1.0", "0.2.0")}


def test_runs_of_one_side_that_differ_are_told() -> None:
    mixed = Side("b", (*side().runs, *side(driver={"version": "580.0"}).runs))
    assert named(side(), mixed)["driver"] == ("570.86.15", "570.86.15, or 580.0")
    assert "driver" in named(mixed, mixed)


def test_no_environment_differs_in_nothing() -> None:
    assert named(side(), Side("b", (run_of([], environment={}),))) == {}


def of(part: str, **changes: Any) -> dict[str, Any]:
    return {part: ENVIRONMENT[part] | changes}


@pytest.mark.parametrize(
    ("before", "after", "name", "words"),
    [
        ({}, {"gpus": gpus()[:1]}, "GPUs", ("2 x NVIDIA H200", "1 x NVIDIA H200")),
        ({}, {"gpus": []}, "GPUs", ("2 x NVIDIA H200", "none")),
        (
            {"gpus": [*gpus(name="B")[:1], *gpus(name="A")]},
            {"gpus": gpus(name=None)},
            "GPUs",
            ("2 x A, 1 x B", "2 x unknown"),
        ),
        ({}, {"driver": {"version": "580.0"}}, "driver", ("570.86.15", "580.0")),
        ({}, of("software", torch_cuda="13.0"), "CUDA of torch", ("12.8", "13.0")),
        ({}, {"gpus": gpus(power_limit_watts=500.25)}, "power limit", ("700 W", "500.2 W")),
        (
            {"gpus": [*gpus()[:1], *gpus(power_limit_watts=500.0)[:1], *gpus(power_limit_watts=None)[:1]]},
            {"gpus": [*gpus(), *gpus()[:1]]},
            "power limit",
            ("500 W, 700 W", "700 W"),
        ),
        ({}, {"gpus": gpus(sm_clock_max_mhz=1000)}, "highest SM clock", ("1980 MHz", "1000 MHz")),
        (
            {"gpus": gpus(memory_clock_max_mhz=1)},
            {"gpus": gpus(memory_clock_max_mhz=2)},
            "highest memory clock",
            ("1 MHz", "2 MHz"),
        ),
        ({}, {"gpus": gpus(ecc={"enabled": False})}, "ECC", ("on", "off")),
        ({"gpus": gpus(mig=False)}, {"gpus": gpus(mig=True)}, "MIG", ("off", "on")),
        ({}, of("cpu", model="another"), "CPU", ("AMD EPYC 9654 96-Core Processor", "another")),
        (of("cpu", usable=2.0), of("cpu", usable=2.5), "CPU cores", ("2", "2.5")),
        ({}, of("cpu", governor="powersave"), "CPU governor", ("performance", "powersave")),
        (of("cpu", boost=True), of("cpu", boost=False), "CPU boost", ("on", "off")),
        (of("cpu", quota=None), of("cpu", quota=1.5), "CPU quota", ("none", "1.5 cores")),
        ({}, of("memory", limit=8 * 1024**3), "memory limit", ("none", "8 GiB")),
        ({"architecture": "x86_64"}, {"architecture": "arm64"}, "architecture", ("x86_64", "arm64")),
        ({}, {"container": "docker"}, "container", ("none", "docker")),
        ({"virtualization": "kvm"}, {"virtualization": "none"}, "virtualization", ("kvm", "none")),
        ({}, of("software", python="3.12.9"), "Python", ("3.11", "3.12")),
        ({}, of("software", packages={"torch": "2.9.1", "triton": "3.0"}), "triton", ("absent", "3.0")),
        ({}, {"variables": {"NCCL_P2P_LEVEL": "NVL"}}, "variable OMP_NUM_THREADS", ("96", "unset")),
    ],
)
def test_what_differs_is_told_in_a_word(
    before: dict[str, Any], after: dict[str, Any], name: str, words: tuple[str, str]
) -> None:
    assert named(side(**before), side(**after)) == {name: words}
    assert named(side(**after), side(**before)) == {name: words[::-1]}


@pytest.mark.parametrize(
    "changes",
    [
        {"driver": None},
        {"driver": {}},
        {"git": None},
        {"git": {"dirty": True}},
        {"cpu": {}},
        {"memory": {}},
        {"gpus": gpus(power_limit_watts=None, sm_clock_max_mhz=None, ecc={})},
        of("cpu", boost=True),
        of("cpu", quota=1.5),
        of("software", python="3.11.10"),
        of("software", python=None),
        of("software", packages={}, torch_cuda=None),
        {"variables": ENVIRONMENT["variables"] | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}},
    ],
)
def test_what_one_side_does_not_know_or_what_is_harmless_is_no_difference(changes: dict[str, Any]) -> None:
    assert named(side(), side(**changes)) == {}
    assert named(side(**changes), side()) == {}


def test_gpus_that_nobody_looked_for_are_not_missing() -> None:
    rest = {name: value for name, value in ENVIRONMENT.items() if name != "gpus"}
    assert named(side(), Side("b", (run_of([], environment=rest),))) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": gpus(name="A", power_limit_watts=1.0, sm_clock_max_mhz=1, ecc={"enabled": False})},
        {"driver": {"version": "580.0"}},
        of("software", torch_cuda="13.0"),
    ],
)
def test_without_gpus_only_what_is_theirs_is_passed_over(changes: dict[str, Any]) -> None:
    other = side(**changes, kernel="6.1", architecture="arm64")
    assert named(side(architecture="x86_64"), other, on_gpus=False) == {"architecture": ("x86_64", "arm64")}
    assert len(named(side(architecture="x86_64"), other)) > 1


def test_a_run_of_which_nothing_is_known_adds_no_answer() -> None:
    partly = Side("a", (run_of([], environment={}), *side().runs))
    assert named(partly, side(driver={"version": "580.0"})) == {"driver": ("570.86.15", "580.0")}
    assert named(partly, side()) == {}


def test_runs_of_one_side_may_differ_in_a_variable_that_one_of_them_sets() -> None:
    mixed = Side("b", (*side().runs, *side(variables={"NCCL_P2P_LEVEL": "NVL"}).runs))
    assert named(mixed, mixed) == {"variable OMP_NUM_THREADS": ("96, or unset", "96, or unset")}


def test_commits_that_are_compared_are_no_warning_and_a_side_of_several_is() -> None:
    one, other = ({"git": {"commit": f"{letter * 16}", "dirty": False}} for letter in "ab")
    assert "git commit" not in named(side(**one), side(**other))
    mixed = Side("mixed", (*side(**one).runs, *side(**other).runs))
    assert named(side(**one), mixed)["git commit"] == ("aaaaaaaaaa", "aaaaaaaaaa, or bbbbbbbbbb")
