"""What differs and matters is named; the rest is not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.compare.matching import Side, environment_differences
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
        ({"git": {"commit": "0123456789abcdef", "dirty": False}}, "git commit"),
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
