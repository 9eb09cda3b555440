"""A leader says when jobs will end: from what it knows, also after a restart, and corrected while they run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from paceline.core.case import Case
from paceline.core.record import Measurement, Metric, Outcome, Record
from paceline.core.run import Run
from paceline.service.engines.base import AttemptProgress, AttemptReport
from paceline.service.jobs import FailureKind, JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.placement import DurationPredictor, cases_of
from paceline.store.dashboard_queries import latest
from paceline.store.store import Store
from support.kept_jobs import history, kept
from support.scripted_followers import START, Clock, ScriptedEngine, a_job


def gemm(index: int) -> Case:
    return Case(index=index, benchmark="gemm", parameters={"size": 64}, title=str(index))


def a_run(store: Store, name: str, seconds: float, gpus: list[dict[str, Any]]) -> None:
    case = gemm(0)
    run = Run(id=name, name="x", started_at=START, version="1", command=[], environment={"gpus": gpus}, cases=[case])
    store.begin(run)
    sample = Measurement.of_samples(Metric(name="t", unit="s"), [1.0] * 10)
    store.add(
        Record(run_id=name, case=case, outcome=Outcome.OK, started_at=START, seconds=seconds, measurements=[sample])
    )


def test_the_latest_durations_with_their_machines(store: Store) -> None:
    for number in range(5):
        gpus = [{"name": "NVIDIA H200", "cuda_index": 0}, {"name": "broken", "cuda_index": None}] if number % 2 else []
        a_run(store, f"run-{number}", 10.0 + number, gpus)
    found = latest(store, 3)
    assert [past.seconds for past in found] == [12.0, 13.0, 14.0]
    assert [past.gpus for past in found] == [(), ("NVIDIA H200",), ()]
    assert found[0].case == gemm(0)


def test_a_leader_that_restarts_predicts_from_the_store(store: Store, clock: Clock) -> None:
    suite = {"name": "s", "cases": [{"benchmark": "gemm", "size": 64}]}
    ignorant = DurationPredictor().demand(a_job(suite=suite), []).seconds
    (expanded,) = cases_of(a_job(suite=suite))
    run = Run(id="r", name="x", started_at=START, version="1", command=[], environment={}, cases=[expanded])
    store.begin(run)
    store.add(Record(run_id="r", case=expanded, outcome=Outcome.OK, started_at=START, seconds=123.0))
    informed = DurationPredictor()
    informed.load(store)
    assert informed.demand(a_job(suite=suite), []).seconds == 123.0 != ignorant
    leader = Leader(store, ScriptedEngine(), clock)
    leader.submit(a_job(suite=suite))
    leader.step()
    assert leader.expected_end("job") == START + timedelta(seconds=123)


def test_the_expected_end_is_corrected_as_cases_end(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    attempt = engine.attempt("job")
    attempt.begin(cases=4)
    done = 0

    def poll(follower: str, acknowledged: dict[tuple[str, int], int]) -> list[AttemptReport]:
        items = [item for item in attempt.items if item.number > acknowledged.get(("job", 1), 0)]
        return [
            AttemptReport(
                job_id="job", attempt=1, items=tuple(items), progress=AttemptProgress(cases=4, cases_done=done)
            )
        ]

    engine.poll = poll  # type: ignore[method-assign]
    leader.step()
    guessed = leader.expected_end("job")
    clock.pass_(100.0)
    attempt.record()  # of one second
    done = 3
    leader.step()
    corrected = leader.expected_end("job")
    assert guessed is not None and corrected is not None
    assert corrected <= clock() + timedelta(seconds=2), "one case is left, which takes as long as the others did"
    clock.pass_(1.0)
    leader.step()
    assert leader.expected_end("job") == corrected, "nothing new was told"


def test_a_case_on_the_processor_says_nothing_of_gpus() -> None:
    predictor = DurationPredictor()
    for _ in range(5):
        predictor.learn(gemm(0), ("NVIDIA H200",), 50.0)
    assert predictor._history.predict(gemm(0), "cpu").seconds == 50.0


def test_a_job_that_no_machine_can_run_says_why_and_ends_when_patience_does(store: Store, clock: Clock) -> None:
    leader = Leader(store, ScriptedEngine(["one"]), clock, patience=timedelta(hours=1))
    leader.submit(a_job("gpu", needs=MachineNeeds(gpus=1)))
    leader.submit(a_job("fine"))
    leader.step()
    assert leader.why_it_waits("gpu") == "the only machine here, one, has no GPU"
    assert leader.why_it_waits("fine") == ""
    clock.pass_(3599.0)
    leader.step()
    assert kept(store, "gpu").state is JobState.QUEUED
    clock.pass_(2.0)
    leader.step()
    job = kept(store, "gpu")
    assert job.state is JobState.FAILED and job.failure is not None
    assert job.failure.kind is FailureKind.UNPLACEABLE
    assert "one, has no GPU; none that could was seen for 60 min" in job.failure.message
    assert history(store, "gpu") == ["submitted", "refused"]
    assert leader.why_it_waits("gpu") == ""
    leader.step()


def test_a_job_waits_for_a_machine_that_was_seen_before(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"], gpus=1)
    leader = Leader(store, engine, clock, patience=timedelta(hours=1))
    leader.step()
    engine.present, engine.gpus = ["two"], 0
    leader.step()
    leader.submit(a_job("gpu", needs=MachineNeeds(gpus=1)))
    clock.pass_(2 * 3600.0)
    leader.step()
    assert kept(store, "gpu").state is JobState.QUEUED
    assert leader.why_it_waits("gpu") == "none of the machines here can run it; it waits for one to return"
    engine.present, engine.gpus = ["two", "one"], 1
    leader.step()
    assert kept(store, "gpu").state is JobState.PLACED


def test_a_leader_that_was_away_gives_machines_time_to_come(store: Store, clock: Clock) -> None:
    Leader(store, ScriptedEngine([]), clock).submit(a_job("gpu", needs=MachineNeeds(gpus=1)))
    clock.pass_(48 * 3600.0)
    leader = Leader(store, ScriptedEngine([]), clock)
    leader.step()
    assert kept(store, "gpu").state is JobState.QUEUED
    clock.pass_(24 * 3600.0)
    leader.step()
    assert kept(store, "gpu").state is JobState.FAILED
