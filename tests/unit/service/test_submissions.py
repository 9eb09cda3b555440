"""A job that would not be measured as it was asked for is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from paceline.service import admission
from paceline.service.admission import cases_of
from paceline.service.follower_calls import assignment_of
from paceline.service.jobs import LEASE, Job, JobRequest, JobState, MachineNeeds, Placed, change
from support.refused import refused

TRAIN = {"name": "t", "cases": [{"benchmark": "train", "model": "resnet18"}, {"benchmark": "gemm", "size": 64}]}
ANY = MachineNeeds()


def new_job(suite: Any, needs: MachineNeeds = ANY, only: tuple[str, ...] = ()) -> Job:
    return admission.new_job(JobRequest(id="a", suite=suite, needs=needs, only=only))


def test_all_of_a_request_reaches_the_job_and_what_followers_need_reaches_them() -> None:
    request = JobRequest(
        id="a",
        suite=TRAIN,
        overrides={"size": 128},
        needs=MachineNeeds(labels=("rack-1",)),
        priority=7,
        tags=("night",),
        only=("gemm",),
    )
    job = admission.new_job(request, by="ada")
    assert {name: getattr(job, name) for name in JobRequest.model_fields} == dict(request)
    assert (job.name, job.submitted_by, job.state, job.attempt) == ("t", "ada", JobState.QUEUED, 0)
    placed = change(job, Placed(at=job.submitted_at, followers=("one",), devices=((0, 2),), run_id="run"))
    given = assignment_of(placed, LEASE)
    shared = set(type(given).model_fields) & set(Job.model_fields) - {"name", "devices"}
    assert shared == {"attempt", "suite", "overrides", "only", "tags"}
    assert {name: getattr(given, name) for name in shared} == {name: getattr(placed, name) for name in shared}
    assert (given.job_id, given.run_id, given.name, given.devices) == ("a", "run", "one", (1,))


def test_what_several_machines_measure_together_has_a_rank_for_each_of_their_gpus() -> None:
    assert [case.ranks for case in cases_of(TRAIN, {}, MachineNeeds(nodes=2))] == [2, 1]
    assert [case.ranks for case in cases_of(TRAIN, {}, MachineNeeds(nodes=2, gpus=4))] == [8, 1]
    assert new_job(TRAIN, MachineNeeds(nodes=2)).needs.nodes == 2


def test_machines_that_would_only_look_on_are_refused() -> None:
    assert new_job("gemm").needs.nodes == 1
    with refused("no-case-for-several-nodes", key="nodes", value=2):
        new_job("gemm", MachineNeeds(nodes=2))


def test_of_a_suite_only_some_cases_can_be_submitted() -> None:
    assert [case.benchmark for case in cases_of(TRAIN, {}, MachineNeeds(), ["gemm"])] == ["gemm"]
    assert new_job(TRAIN, only=("train resnet18",)).only == ("train resnet18",)
    with refused("no-such-case", key="--only", value="gemv"):
        new_job(TRAIN, only=("gemv",))


def test_more_ranks_than_a_case_may_have_are_refused() -> None:
    with refused("not-from-network", case=1, key="ranks", value=320):
        cases_of(TRAIN, {}, MachineNeeds(nodes=40, gpus=8))


@pytest.mark.parametrize("tag", ["a b", "", "-a", "a" * 65, "a\n"])
def test_a_tag_that_cannot_be_typed_is_refused_in_words(tag: str) -> None:
    with pytest.raises(ValidationError, match="is no tag of a job: write letters, digits and"):
        JobRequest(id="a", suite="gemm", tags=("a", tag))
