"""Runs: the list of them, and the report of one, also while it is being measured."""

from __future__ import annotations

from functools import lru_cache

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import JSONResponse

from paceline.core.errors import InputError
from paceline.core.run import RunRecords, RunRow, RunStatus
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.store.dashboard_queries import glance, run_count
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

LISTED = 100
_MOST_REPORTS = 16  # that were made last and may be requested again


class Runs(BaseModel):
    """The latest runs."""

    answer: str
    runs: list[RunRow]
    total: int
    shown: int


class RunProgress(BaseModel):
    """How far a run is."""

    status: RunStatus
    done: int
    total: int


def routes(router: APIRouter, site: Site) -> None:
    """`/runs` and `/runs/ID`."""

    @lru_cache(_MOST_REPORTS)
    def report(run_id: str, *edition: object) -> str:
        """The report of a run, which is made again when the run has come further than in this edition."""
        records = site.store.load(run_id)
        if records.run.status == "running":  # as if what it has were all of it: what is to come is not a failure
            measured = [record.case for record in records.records]
            run = records.run.model_copy(update={"cases": measured, "status": "finished"})
            records = RunRecords(run=run, records=records.records)
        return site.report(records)

    @router.get("/runs")
    @needs(Scope.READ)
    def runs(request: Request, limit: int = Query(LISTED, ge=1, le=10_000)) -> Response:
        rows, total = site.store.runs(limit), run_count(site.store)
        going = sum(row.status == "running" for row in rows)
        answer = f"{counted(total, 'run')}, {going} still going." if going else f"{counted(total, 'run')}."
        return site.answer(request, "runs.html", Runs(answer=answer, runs=rows, total=total, shown=len(rows)))

    @router.get("/runs/{run_id}")
    @needs(Scope.READ)
    def show_run(request: Request, run_id: str) -> Response:
        records = site.store.load(site.store.find_run(run_id), samples=False)
        if wants_json(request):
            plain = {"records": {"__all__": {"measurements": {"__all__": {"samples"}}}}}
            return JSONResponse(records.model_dump(mode="json", exclude=plain))
        run, done = records.run, len(records.records)
        is_going = run.status == "running"
        banner = templates().get_template("run.html")
        above = Markup(banner.render(run=run, done=done, total=len(run.cases), is_going=is_going))
        scripts = ["run.js"] if is_going else []
        if is_going and not done:
            view = RunProgress(status="running", done=0, total=len(run.cases))
            return site.answer(request, "run_empty.html", view, scripts=scripts, run=run, above=above)
        attempts = sum(record.attempt for record in records.records)
        page = report(run.id, run.status, run.ended_at, done, attempts)
        return embedded(site, request, page, above=above, scripts=scripts)

    @router.get("/runs/{run_id}/progress")
    @needs(Scope.READ)
    def progress(run_id: str) -> RunProgress:
        records = glance(site.store, run_id)
        if records is None:
            raise InputError("unknown-run", f"there is no run '{run_id}'", value=run_id)
        return RunProgress(status=records.run.status, done=len(records.records), total=len(records.run.cases))


PAGE = Page("/runs", routes, title="Runs", order=30)
