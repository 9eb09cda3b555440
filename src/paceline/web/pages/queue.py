"""The queue and the followers: who runs what, until when, and who is next; what each machine has, and what it did."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from paceline.core.errors import unknown
from paceline.service.api.answer_cache import AnswerCache
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.service.engines.base import FollowerState
from paceline.service.job_store import ACTIVE, FINAL, list_jobs
from paceline.service.jobs import Job, JobState
from paceline.service.leader import Leader
from paceline.store.dashboard_queries import placements
from paceline.web.job_history import CAUSES, counted, lead_of, needs_words, rest_of
from paceline.web.pages import Page
from paceline.web.site import Site

WAITING = 50  # on one page
MACHINES = 40
OVER = 10
LONG = 1000  # jobs that wait, whose order takes time to find
FRESH = 1.0  # seconds for which all who look see the same page: of a long queue in any case, else if nothing changed

View = TypeVar("View", bound=BaseModel)


class RunningJob(BaseModel):
    """A job that a follower has."""

    id: str
    name: str
    state: JobState
    by: str
    since: datetime
    expected_end: datetime | None
    attempt: int
    followers: tuple[str, ...]
    done: int
    cases: int
    doing: str
    stop_asked: bool


class Machine(BaseModel):
    """A follower and what it does."""

    id: str
    leads: str  # its GPUs, otherwise its processor
    has: str  # what else it has
    labels: tuple[str, ...]
    seen_at: datetime
    draining: bool
    refused: str  # why it is given nothing
    kept_for: str | None  # the job that is next here, and needs more of it than is free
    kept_for_name: str = ""
    running: list[RunningJob]


class WaitingJob(BaseModel):
    """A job that waits for its turn."""

    place: int
    id: str
    name: str
    by: str
    submitted_at: datetime
    priority: int
    needs: str
    expected_seconds: float
    attempt: int
    waits_for: str  # what no machine here has; empty if it only waits for its turn


class EndedJob(BaseModel):
    """A job that is over."""

    id: str
    name: str
    by: str
    state: JobState
    ended_at: datetime
    run_id: str | None
    message: str


class QueuePage(BaseModel):
    """All of it."""

    answer: str
    counts: dict[str, int]
    machine_count: int
    busy: int
    machines: list[Machine]
    waiting: list[WaitingJob]
    page: int
    pages: int
    over: list[EndedJob]
    quarantined: int  # items of reports that could not be stored
    refused: list[str]  # machines
    trouble: str


def queue_page(site: Site, page: int) -> QueuePage:
    """The queue as it is now."""
    leader = site.leader
    counts = {state.value: 0 for state in JobState} | site.store.queue.counts()
    active = list_jobs(site.store, ACTIVE, limit=1000)
    followers = leader.followers()
    at_work = {follower for job in active for follower in job.followers}
    followers.sort(key=lambda state: (state.id not in at_work, state.id))
    busy = sum(state.id in at_work for state in followers)
    pages = max(1, -(-counts[JobState.QUEUED] // WAITING))
    page = min(page, pages)
    first = (page - 1) * WAITING
    next_jobs = leader.waiting(page * WAITING)[first:]
    waiting = [
        _view(
            WaitingJob,
            job,
            place=place,
            needs=needs_words(job.needs),
            expected_seconds=seconds,
            attempt=job.attempt + 1,
            waits_for=leader.why_it_waits(job.id),
        )
        for place, (job, seconds) in enumerate(next_jobs, start=first + 1)
    ]
    over = [
        _view(
            EndedJob,
            job,
            ended_at=job.state_at,
            run_id=job.run_id if job.run_id and site.store.has(job.run_id) else None,
            message=f"{CAUSES[job.failure.kind]}: {job.failure.message}" if job.failure else "",
        )
        for job in list_jobs(site.store, FINAL, limit=OVER)
    ]
    return QueuePage(
        answer=_answer(counts, busy, len(followers)),
        counts=counts,
        machine_count=len(followers),
        busy=busy,
        machines=machines_of(leader, followers[:MACHINES], active),
        waiting=waiting,
        page=page,
        pages=pages,
        over=sorted(over, key=lambda one: one.ended_at, reverse=True),
        quarantined=site.store.queue.quarantine_count(),
        refused=sorted(state.id for state in leader.refused()),
        trouble=leader.trouble,
    )


def machines_of(leader: Leader, followers: Iterable[FollowerState], active: Iterable[Job]) -> list[Machine]:
    """Followers with the jobs that they have."""
    drained = leader.drained()
    of_follower: dict[str, list[RunningJob]] = {}
    for job in active:
        progress = leader.progress(job.id)
        running = _view(
            RunningJob,
            job,
            since=job.state_at,
            expected_end=leader.expected_end(job.id),
            done=progress.cases_done,
            cases=progress.cases,
            doing=progress.title,
        )
        for follower in job.followers:
            of_follower.setdefault(follower, []).append(running)
    return [
        Machine(
            id=state.id,
            leads=lead_of(state),
            has=rest_of(state),
            labels=state.labels,
            seen_at=state.seen_at,
            draining=state.draining,
            refused=state.refused,
            kept_for=drained.get(state.id),
            kept_for_name=leader.job(drained[state.id]).name if state.id in drained else "",
            running=sorted(of_follower.get(state.id, []), key=lambda one: one.since),
        )
        for state in followers
    ]


def _view(model: type[View], job: Job, **more: Any) -> View:
    """A job as a list shows it: the fields of the job that the list has, and these."""
    return model.model_validate(dict(job) | {"by": job.submitted_by} | more)


def _answer(counts: dict[str, int], busy: int, machines: int) -> str:
    running = counts[JobState.RUNNING] + counts[JobState.PLACED]
    waiting = counts[JobState.QUEUED]
    wait = f"{counted(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}" if waiting else "nothing waits"
    if running:
        run = f"{counted(running, 'job')} {'runs' if running == 1 else 'run'}"
        return f"{run} on {busy:,} of {counted(machines, 'machine')}; {wait}."
    if not machines:
        return f"No machine is here; {wait}."
    idle = "" if waiting else " and idle"
    return f"{counted(machines, 'machine')} {'is' if machines == 1 else 'are'} here{idle}; {wait}."


def queue_routes(router: APIRouter, site: Site) -> None:
    """`/`."""
    leader = site.leader
    cache = AnswerCache[QueuePage](
        lambda: leader.edition if leader.unfinished_count < LONG else None, longest=FRESH, is_latest=True
    )

    @router.get("/")
    @needs(Scope.READ)
    def queue(request: Request, page: int = Query(1, ge=1, le=1_000_000)) -> Response:
        view = cache.get(page, partial(queue_page, site, page))
        return site.answer(request, "queue.html", view, scripts=["live.js"], is_shared=True)


ON_A_PAGE = 100
DONE = 50


class ListedMachine(BaseModel):
    """A machine that is here, or was."""

    machine: Machine
    is_here: bool


class Machines(BaseModel):
    """All of them."""

    answer: str
    machines: list[ListedMachine]
    page: int
    pages: int


class PastJob(BaseModel):
    """A job that a machine was given."""

    at: datetime
    job: str
    name: str
    state: JobState
    run_id: str
    is_last: bool  # the attempt that counts


class MachinePage(BaseModel):
    """A machine in full."""

    answer: str
    known: ListedMachine
    given: list[PastJob]
    environment: dict[str, Any]


def _followers(site: Site) -> dict[str, tuple[FollowerState, bool]]:
    """Every follower that was ever seen, and whether it is here and believed."""
    absent = site.leader.recorded() | {state.id: state for state in site.leader.refused()}
    here = {state.id: (state, True) for state in site.leader.followers()}
    return {name: (state, False) for name, state in absent.items()} | here


def _machines(site: Site, followers: list[tuple[FollowerState, bool]]) -> list[ListedMachine]:
    """Followers with what they do."""
    active = list_jobs(site.store, ACTIVE, limit=1000)
    machines = machines_of(site.leader, [state for state, _ in followers], active)
    return [ListedMachine(machine=one, is_here=is_here) for one, (_, is_here) in zip(machines, followers, strict=True)]


def _listed(site: Site, page: int) -> Machines:
    """A page of the list."""
    followers = sorted(_followers(site).values(), key=lambda one: (not one[1], not one[0].refused, one[0].id))
    pages = max(1, -(-len(followers) // ON_A_PAGE))
    page = min(page, pages)
    here = sum(is_here for _, is_here in followers)
    refused = sum(bool(state.refused) for state, _ in followers)
    others = {"refused": refused, "gone": len(followers) - here - refused}
    more = "".join(f", {count:,} {what}" for what, count in others.items() if count)
    return Machines(
        answer=f"{counted(here, 'machine')} here{more}.",
        machines=_machines(site, followers[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]),
        page=page,
        pages=pages,
    )


def machine_routes(router: APIRouter, site: Site) -> None:
    """`/machines` and `/machines/ID`."""
    cache = AnswerCache[Machines](lambda: site.leader.edition, longest=FRESH, is_latest=True)

    @router.get("/machines")
    @needs(Scope.READ)
    def machines(request: Request, page: int = Query(1, ge=1, le=1_000_000)) -> Response:
        view = cache.get(page, partial(_listed, site, page))
        return site.answer(request, "machines.html", view, scripts=["live.js"], is_shared=True)

    @router.get("/machines/{follower:path}")
    @needs(Scope.READ)
    def machine(request: Request, follower: str) -> Response:
        followers = _followers(site)
        if follower not in followers:
            raise unknown("machine", follower[:100], followers)
        known = _machines(site, [followers[follower]])[0]
        running = known.machine.running
        does = f"runs {counted(len(running), 'job')}" if running else "is idle"
        if not known.is_here:
            does = f"is refused: {known.machine.refused}" if known.machine.refused else "is not here"
        given = []
        for placement in placements(site.store, follower, DONE):
            job = site.leader.job(placement.job_id)
            run_id = placement.run_id if site.store.has(placement.run_id) else ""
            is_last = job.run_id == placement.run_id
            given.append(
                PastJob(at=placement.at, job=job.id, name=job.name, state=job.state, run_id=run_id, is_last=is_last)
            )
        view = MachinePage(
            answer=f"{follower} {does}.",
            known=known,
            given=given,
            environment=followers[follower][0].machine,
        )
        return site.answer(request, "machine.html", view, scripts=["live.js"])


PAGES = [
    Page("/", queue_routes, title="Queue", order=10),
    Page("/machines", machine_routes, title="Machines", order=70),
]
