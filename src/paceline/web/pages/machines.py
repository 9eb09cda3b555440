"""The followers: what each has, what it does, and what it did."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from paceline.core.errors import unknown
from paceline.service.api.answer_cache import AnswerCache
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.service.engines.base import FollowerState
from paceline.service.job_store import ACTIVE, list_jobs
from paceline.service.jobs import JobState
from paceline.store.dashboard_queries import placements
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.pages.queue import FRESH, Machine, machines_of
from paceline.web.site import Site

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


def routes(router: APIRouter, site: Site) -> None:
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


PAGE = Page("/machines", routes, title="Machines", order=70)
