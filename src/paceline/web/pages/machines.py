"""The followers: what each has, what it does, and what it did."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from paceline.core.errors import unknown
from paceline.service.engines.base import FollowerState
from paceline.service.job_store import ACTIVE, list_jobs
from paceline.service.jobs import JobState
from paceline.store.dashboard_queries import placements
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.pages.queue import Machine, machines_of
from paceline.web.site import Site

ON_A_PAGE = 100
DONE = 50


class Known(BaseModel):
    """A machine that is here, or was."""

    machine: Machine
    is_here: bool


class Machines(BaseModel):
    """All of them."""

    answer: str
    machines: list[Known]
    page: int
    pages: int


class Given(BaseModel):
    """A job that a machine was given."""

    at: datetime
    job: str
    name: str
    state: JobState
    run_id: str
    is_last: bool  # the attempt that counts


class OneMachine(BaseModel):
    """A machine in full."""

    answer: str
    known: Known
    given: list[Given]
    environment: dict[str, Any]


def everyone(site: Site) -> dict[str, tuple[FollowerState, bool]]:
    """Every follower that was ever seen, and whether it is here."""
    found = {row.id: (FollowerState.model_validate(row.document), False) for row in site.store.queue.followers()}
    return found | {state.id: (state, True) for state in site.leader.followers()}


def known(site: Site, followers: list[tuple[FollowerState, bool]]) -> list[Known]:
    """Followers with what they do."""
    active = list_jobs(site.store, ACTIVE, limit=1000)
    made = machines_of(site.leader, [state for state, _ in followers], active)
    return [Known(machine=one, is_here=is_here) for one, (_, is_here) in zip(made, followers, strict=True)]


def _given(site: Site, follower: str) -> list[Given]:
    found = []
    for placement in placements(site.store, follower, DONE):
        job = site.leader.job(placement.job_id)
        found.append(
            Given(
                at=placement.at,
                job=job.id,
                name=job.name,
                state=job.state,
                run_id=placement.run_id if site.store.has(placement.run_id) else "",
                is_last=job.run_id == placement.run_id,
            )
        )
    return found


def routes(router: APIRouter, site: Site) -> None:
    """`/machines` and `/machines/ID`."""

    @router.get("/machines")
    def machines(request: Request, page: int = Query(1, ge=1, le=1_000_000)) -> Response:
        found = sorted(everyone(site).values(), key=lambda one: (not one[1], one[0].id))
        pages = max(1, -(-len(found) // ON_A_PAGE))
        page = min(page, pages)
        here = sum(is_here for _, is_here in found)
        gone = f", {len(found) - here:,} gone" if here < len(found) else ""
        view = Machines(
            answer=f"{counted(here, 'machine')} here{gone}.",
            machines=known(site, found[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]),
            page=page,
            pages=pages,
        )
        return site.answer(request, "machines.html", view, scripts=["live.js"])

    @router.get("/machines/{follower:path}")
    def machine(request: Request, follower: str) -> Response:
        found = everyone(site)
        if follower not in found:
            raise unknown("machine", follower[:100], found)
        one = known(site, [found[follower]])[0]
        view = OneMachine(
            answer=_answer(one),
            known=one,
            given=_given(site, follower),
            environment=found[follower][0].machine,
        )
        return site.answer(request, "machine.html", view, scripts=["live.js"])


def _answer(known: Known) -> str:
    machine = known.machine
    if not known.is_here:
        return f"{machine.id} is not here."
    if not machine.running:
        return f"{machine.id} is idle."
    return f"{machine.id} runs {counted(len(machine.running), 'job')}."


PAGE = Page("/machines", routes, title="Machines", order=70)
