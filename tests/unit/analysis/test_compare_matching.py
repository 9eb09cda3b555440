"""Which cases belong together, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.compare.matching import Difference, Side, match
from paceline.core.case import Case
from paceline.core.record import Measurement
from support.records import STEP_TIME, record, run_of


def side(name: str, *cases: Case) -> Side:
    times = Measurement.of_samples(STEP_TIME, [0.1, 0.11, 0.12])
    return Side(name, (run_of([record(one, [times]) for one in cases]),))


def gemm(index: int = 0, *, target: str = "cpu", ranks: int = 1, repeat: int = 1, **parameters: Any) -> Case:
    told = {"size": 512, "precision": "fp32", "budget": 10.0} | parameters
    title = f"{told['precision']} {told['size']}"
    return Case(index=index, benchmark="gemm", parameters=told, title=title, target=target, ranks=ranks, repeat=repeat)


def test_the_same_key_is_the_same_case_and_repetitions_pool() -> None:
    found = match(side("a", gemm(), gemm(1, repeat=2)), side("b", gemm(5)))
    (one,) = found.matches
    assert one.is_alike
    assert len(one.reference.records) == 2
    assert one.label == "gemm fp32 512"
    assert not found.only_reference
    assert not found.only_new


def test_another_target_and_unknown_parameters_are_the_same_work() -> None:
    newer = gemm(target="cuda:0", epilogue="none")
    found = match(side("a", gemm(), gemm(1, size=1024)), side("b", newer, gemm(1, size=1024, epilogue="none")))
    assert [one.label for one in found.matches] == ["gemm fp32 512", "gemm fp32 1024"]
    assert found.matches[0].differences == (Difference("target", "cpu", "cuda:0"),)
    assert not found.matches[1].is_alike
    assert found.matches[1].differences == ()


def test_a_setting_that_differs_throughout_is_what_the_comparison_is_about() -> None:
    found = match(
        side("a", gemm(), gemm(1, size=1024)), side("b", gemm(precision="bf16"), gemm(1, size=1024, precision="bf16"))
    )
    assert len(found.matches) == 2
    assert found.differences == {Difference("precision", "fp32", "bf16"): 2}


@pytest.mark.parametrize("parameters", [{"size": 1024}, {"model": "other"}])
def test_other_work_is_never_matched(parameters: dict[str, Any]) -> None:
    found = match(side("a", gemm(model="this")), side("b", gemm(**{"model": "this"} | parameters)))
    assert not found.matches
    assert len(found.only_reference) == len(found.only_new) == 1


def test_what_is_ambiguous_is_left_alone() -> None:
    several = (gemm(), gemm(1, target="cuda:0"))
    found = match(side("a", gemm(target="cuda:1")), side("b", *several))
    assert not found.matches
    assert found.only_new == ("gemm fp32 512 on cpu", "gemm fp32 512 on cuda:0")


def test_other_benchmarks_are_not_looked_at() -> None:
    other = gemm().model_copy(update={"benchmark": "matmul"})
    assert not match(side("a", gemm()), side("b", other)).matches
