"""A round over the followers of a leader that is gone on with: who gets a job once more, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from paceline.api.client import Client
from paceline.api.fleet import FleetListener, JobFleet
from paceline.service.engines.base import AttemptReport, FollowerState
from paceline.service.jobs import JobState, MachineNeeds
from paceline.store.queue import EventRow
from support.leading import SEEN, Puppet, Served, served_in


@dataclass
class MixedFleet(Puppet):
    """Followers with GPUs of these names."""

    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def followers(self) -> Sequence[FollowerState]:
        return [
            FollowerState(id=name, host=name, gpus=gpus, gpu_memory_gib=(80,) * len(gpus), seen_at=SEEN)
            for name, gpus in self.gpus.items()
        ]

    def poll(self, follower: str, acknowledged: dict[tuple[str, int], int]) -> Sequence[AttemptReport]:
        own = {one.job_id for one in self.begun if one.name == follower}
        return [report for report in super().poll(follower, acknowledged) if report.job_id in own]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    gpus = {"big": ("H200",) * 4, "mixed": ("H200", "H200", "L4"), "none": (), "small": ("H200",)}
    with served_in(tmp_path, engine=MixedFleet(gpus=gpus)) as made:
        made.leader.step()
        yield made


def new_round(served: Served) -> JobFleet:
    return JobFleet(Client(served.url, None), FleetListener())


def submitted(served: Served) -> JobFleet:
    fleet = new_round(served)
    fleet.submit("gemm", {"size": 64}, tags=(), machines="")
    return fleet


def cancel(served: Served, *jobs: str) -> None:
    served.leader.step()  # their followers begin
    for job in jobs:
        served.leader.cancel(job, "somebody")
        served.engine.end(job)
    served.leader.step()
    assert {served.leader.job(job).state for job in jobs} == {JobState.CANCELLED}


def needs_of(served: Served, job: str) -> MachineNeeds:
    return served.leader.job(job).needs


def test_every_follower_of_a_mixed_fleet_is_asked_again_for_what_it_has(served: Served) -> None:
    first = submitted(served)
    cancel(served, *first.jobs.values())
    again = new_round(served)
    again.resume(first.id)
    assert sorted(again.jobs) == ["big", "mixed", "none", "small"]
    assert not set(again.jobs.values()) & set(first.jobs.values())
    needs = {name: needs_of(served, job) for name, job in again.jobs.items()}
    assert {name: one.gpus for name, one in needs.items()} == {"big": 4, "mixed": 2, "none": 0, "small": 1}
    assert all(one.follower == name and one.whole_node for name, one in needs.items())


def test_a_node_with_gpus_of_two_kinds_starts(served: Served) -> None:
    job = served.leader.job(submitted(served).jobs["mixed"])
    assert (job.followers, job.devices) == (("mixed",), ((0, 1, 2, 3),))


def test_what_has_ended_well_is_found_behind_many_jobs_of_others(served: Served) -> None:
    first = submitted(served)
    cancel(served, first.jobs["none"])
    now = datetime.now(UTC)
    with served.store.queue.writing("keep jobs of others") as writing:
        for number in range(210):  # more than two pages
            of_other = {"id": f"other-{number}", "tags": (), "state": JobState.SUCCEEDED, "submitted_at": now}
            job = served.leader.job(first.jobs["none"]).model_copy(update=of_other)
            writing.submit(job.model_dump(mode="json"), EventRow(now, "submitted", {}))
    again = new_round(served)
    again.resume(first.id)
    third = new_round(served)
    third.resume(first.id)
    kept = {name: job for name, job in first.jobs.items() if name != "none"}
    assert kept.items() <= again.jobs.items() and again.jobs == third.jobs
