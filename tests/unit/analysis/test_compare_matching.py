"""Which cases belong together, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.analysis.compare.verdicts import Difference, Pool, Side, match, parameters_apart
from paceline.core.case import Case
from paceline.core.record import Measurement, Outcome
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


def test_what_has_a_partner_of_the_same_key_is_not_matched_again() -> None:
    alone, both = side("a", gemm()), side("b", gemm(), gemm(1, target="cuda:0"))
    more = match(alone, both)
    assert [(one.reference.case.target, one.new.case.target) for one in more.matches] == [("cpu", "cpu")]
    assert (more.only_reference, more.only_new) == ((), ("gemm fp32 512",))
    less = match(both, alone)
    assert [(one.reference.case.target, one.new.case.target) for one in less.matches] == [("cpu", "cpu")]
    assert (less.only_reference, less.only_new) == (("gemm fp32 512",), ())


def test_matches_are_in_the_order_of_the_reference() -> None:
    before = side("a", gemm(2, size=2048), gemm(0, size=1024), gemm(1))
    after = side("b", gemm(0, size=2048, target="cuda:0"), gemm(2, size=1024), gemm(1))
    assert [one.label for one in match(before, after).matches] == ["gemm fp32 1024", "gemm fp32 512", "gemm fp32 2048"]


def test_a_number_of_ranks_that_differs_throughout_is_what_the_comparison_is_about() -> None:
    one = match(side("a", gemm(ranks=1)), side("b", gemm(ranks=2)))
    assert one.differences == {Difference("ranks", "1", "2"): 1}


@pytest.mark.parametrize("is_swapped", [False, True])
def test_ranks_that_differ_within_a_side_tell_cases_apart(is_swapped: bool) -> None:
    varied, single = side("a", gemm(), gemm(1, size=1024, ranks=2)), side("b", gemm(ranks=2))
    assert not match(*((single, varied) if is_swapped else (varied, single))).matches


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_setting_that_differs_within_a_side_tells_cases_apart(is_swapped: bool) -> None:
    varied, single = side("a", gemm(), gemm(1, size=1024, precision="bf16")), side("b", gemm(precision="bf16"))
    assert not match(*((single, varied) if is_swapped else (varied, single))).matches


def test_another_budget_makes_no_other_work() -> None:
    before = side("a", gemm(), gemm(1, size=1024))
    both = match(before, side("b", gemm(budget=5.0), gemm(1, size=1024, budget=20.0)))
    assert [one.differences for one in both.matches] == [
        (Difference("budget", "10.0", "5.0"),),
        (Difference("budget", "10.0", "20.0"),),
    ]


def test_a_pool_is_not_named_after_one_of_its_repetitions() -> None:
    cases = (gemm(repeat=2), gemm(1), gemm(2, size=1024, repeat=3), gemm(3, size=1024, target="cuda:0"))
    labels = ["gemm fp32 512", "gemm fp32 1024 on cpu", "gemm fp32 1024 on cuda:0"]
    both = match(side("a", *cases), side("b", *cases))
    assert [one.label for one in both.matches] == labels
    assert match(side("a", *cases), side("b")).only_reference == tuple(labels)


def test_only_what_succeeded_is_good() -> None:
    good, bad = record(gemm(), []), record(gemm(repeat=2), [], outcome=Outcome.FAILED)
    pool = Pool(good.case, (bad, good))
    assert pool.good == (good,)


def test_what_only_one_case_knows_is_no_difference() -> None:
    one, other = gemm(epilogue="none", ranks=2), gemm(size=1024, algorithm="x", target="cuda:0")
    assert parameters_apart(one, other) == (
        Difference("target", "cpu", "cuda:0"),
        Difference("ranks", "2", "1"),
        Difference("size", "512", "1024"),
    )


def test_what_differed_within_a_side_still_counts_for_those_that_are_left() -> None:
    before = side("a", gemm(algorithm="x"), gemm(1, size=1024, algorithm="y"))
    after = side("b", gemm(precision="bf16", algorithm="x"), gemm(1, size=1024, precision="bf16", algorithm="z"))
    both = match(before, after)
    assert [one.label for one in both.matches] == ["gemm fp32 512"]
    assert (both.only_reference, both.only_new) == (("gemm fp32 1024",), ("gemm bf16 1024",))


def test_a_parameter_with_parts_differs_in_some_of_them() -> None:
    one = gemm(server={"kind": "url", "model": "m", "url": "http://one:8000"})
    other = gemm(server={"kind": "url", "url": "http://two:8000", "token_env": "T"})
    assert parameters_apart(one, other) == (
        Difference("server.model", "m", "unset"),
        Difference("server.url", "http://one:8000", "http://two:8000"),
        Difference("server.token_env", "unset", "T"),
    )
