"""A job that would not be measured as it was asked for is refused."""

from __future__ import annotations

import pytest

from paceline.core.errors import InputError
from paceline.service.api.submissions import cases_of, new_job
from paceline.service.jobs import MachineNeeds

TRAIN = {"name": "t", "cases": [{"benchmark": "train", "model": "resnet18"}, {"benchmark": "gemm", "size": 64}]}


def test_what_several_machines_measure_together_has_a_rank_for_each_of_their_gpus() -> None:
    assert [case.ranks for case in cases_of(TRAIN, {}, MachineNeeds(nodes=2))] == [2, 1]
    assert [case.ranks for case in cases_of(TRAIN, {}, MachineNeeds(nodes=2, gpus=4))] == [8, 1]
    assert new_job("a", TRAIN, {}, MachineNeeds(nodes=2)).needs.nodes == 2


def test_machines_that_would_only_look_on_are_refused() -> None:
    assert new_job("a", "gemm", {}, MachineNeeds()).needs.nodes == 1
    with pytest.raises(InputError, match=r"'nodes' = 2: none of the cases .* leave it out"):
        new_job("b", "gemm", {}, MachineNeeds(nodes=2))


def test_of_a_suite_only_some_cases_can_be_submitted() -> None:
    assert [case.benchmark for case in cases_of(TRAIN, {}, MachineNeeds(), ["gemm"])] == ["gemm"]
    assert new_job("a", TRAIN, {}, MachineNeeds(), wanted=["train resnet18"]).only == ("train resnet18",)
    with pytest.raises(InputError, match="--only 'gemv' is in the name of no case of 't'"):
        new_job("b", TRAIN, {}, MachineNeeds(), wanted=["gemv"])


def test_more_ranks_than_a_case_may_have_are_refused() -> None:
    with pytest.raises(InputError, match=r"'ranks' = 320 is more than 256"):
        cases_of(TRAIN, {}, MachineNeeds(nodes=40, gpus=8))
