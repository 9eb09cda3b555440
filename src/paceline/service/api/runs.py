"""Routes of results: runs, their records, their reports; and the machines that they come from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import HTMLResponse

from paceline.core.errors import InputError
from paceline.core.run import RunRecords
from paceline.service.api import documents as d
from paceline.service.api.errors import declared, not_found
from paceline.service.api.served import Served
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job, JobState
from paceline.service.placing import gpus_among

# The page has scripts of its own; whatever a name in it may smuggle in, it gets neither the token nor the API.
_ISOLATED = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "frame-ancestors 'self'; sandbox allow-scripts allow-downloads allow-popups"
)

_PAGE = {"description": "A page", "content": {"text/html": {"schema": {"type": "string"}}}}

Id = Annotated[str, Path(pattern=d.RUN_ID)]


def router(served: Served) -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["results"])
    store, leader = served.store, served.leader

    @made.get("/runs")
    def list_runs(limit: Annotated[int, Query(ge=1, le=500)] = 50) -> d.RunsPage:
        """Runs, the newest first, whether a job made them or not."""
        return d.RunsPage(runs=[d.RunSummary(**row.model_dump()) for row in store.runs(limit)])

    @made.get("/runs/{run_id}", responses={200: {"model": d.RunView}, **declared(404)}, response_model=None)
    def show_run(run_id: Id, samples: bool = False) -> Response:
        """One run with its records; `last` is the newest."""
        found = load(run_id)
        left_out = {} if samples else {"measurements": {"__all__": {"samples"}}}
        view = d.RunView(
            run=found.run.model_dump(mode="json"),
            records=[record.model_dump(mode="json", exclude=left_out) for record in found.records],
        )
        return Response(view.model_dump_json(), media_type="application/json")

    @made.get("/runs/{run_id}/report", response_class=Response, responses={200: _PAGE, **declared(404)})
    def report(run_id: Id) -> HTMLResponse:
        """The run as a page that needs nothing else."""
        return HTMLResponse(served.report(load(run_id)), headers={"Content-Security-Policy": _ISOLATED})

    @made.get("/followers")
    def followers() -> d.FollowersPage:
        """The machines, and what they are doing."""
        here = {state.id: state for state in leader.followers()}
        known = {row.id: FollowerState.model_validate(row.document) for row in store.queue.followers()}
        gone = [state for name, state in known.items() if name not in here]
        rows = store.queue.jobs([state.value for state in JobState if state.is_active], limit=None)
        active = [Job.model_validate(row.document) for row in rows]
        views = [_follower(state, present=True, jobs=_busy(state.id, active)) for state in here.values()]
        return d.FollowersPage(followers=[*views, *(_follower(state, present=False, jobs=[]) for state in gone)])

    def load(run_id: str) -> RunRecords:
        try:
            return store.load(store.find_run(run_id))
        except InputError:
            raise not_found("run", run_id) from None

    def _busy(follower: str, active: list[Job]) -> list[d.Busy]:
        return [
            d.Busy(
                job=job.id,
                name=job.name,
                state=job.state,
                since=job.state_at,
                devices=gpus_among(job.devices[job.followers.index(follower)]),
                expected_end=leader.expected_end(job.id),
            )
            for job in active
            if follower in job.followers
        ]

    return made


def _follower(state: FollowerState, *, present: bool, jobs: list[d.Busy]) -> d.FollowerView:
    known = state.model_dump(exclude={"machine"})
    return d.FollowerView(**known, present=present, jobs=jobs)
