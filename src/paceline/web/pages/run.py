"""The report of a run, also while it is being measured, with its tags, note and pin; and each of its cases."""

from __future__ import annotations

import re
from functools import lru_cache

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import JSONResponse

from paceline.core.errors import InputError
from paceline.core.run import RunRecords, RunStatus
from paceline.report.render import html as render_html
from paceline.report.run.case_page import CasePage, case_of, document, same_case
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Caller, Scope
from paceline.store.dashboard_queries import glance, pin_and_note
from paceline.web.pages import Page
from paceline.web.pages.runs import may_change, owner_of
from paceline.web.site import Site, embedded, templates, wants_json

MOST_RUNS = 500  # among which the history of a case is looked for
_MOST_REPORTS = 16  # that were made last and may be requested again
_CASE = re.compile(r'(<details id="case-(\d+)"(?: open)?>\n<summary>.*?</summary>\n<div class="inside">\n)', re.DOTALL)


class RunProgress(BaseModel):
    """How far a run is."""

    status: RunStatus
    done: int
    total: int


def routes(router: APIRouter, site: Site) -> None:
    """`/runs/ID` and `/runs/ID/cases/N`."""

    @lru_cache(_MOST_REPORTS)
    def report(run_id: str, *edition: object) -> str:
        """The report of a run, which is made again when the run has come further than in this edition."""
        records = site.store.load(run_id)
        if records.run.status == "running":  # as if what it has were all of it: what is to come is not a failure
            measured = [record.case for record in records.records]
            run = records.run.model_copy(update={"cases": measured, "status": "finished"})
            records = RunRecords(run=run, records=records.records)
        link = rf'\1<p class="small"><a href="/runs/{run_id}/cases/\2">Samples, history, run again</a></p>\n'
        return _CASE.sub(link, site.report(records))

    @router.get("/runs/{run_id}")
    @needs(Scope.READ)
    def show_run(request: Request, run_id: str) -> Response:
        records = site.store.load(site.store.find_run(run_id), samples=False)
        if wants_json(request):
            plain = {"records": {"__all__": {"measurements": {"__all__": {"samples"}}}}}
            return JSONResponse(records.model_dump(mode="json", exclude=plain))
        run, done = records.run, len(records.records)
        is_going = run.status == "running"
        visitor: Caller = request.state.caller
        pinned, note = pin_and_note(site.store, run.id)
        values = {
            "run": run,
            "pinned": pinned,
            "note": note,
            "done": done,
            "total": len(run.cases),
            "is_going": is_going,
            "job": owner_of(site, run.id),
            "may_change": may_change(site, visitor, run.id),
        }
        above = Markup(templates().get_template("run.html").render(**values, **site.shared_values(request)))
        scripts = ["run.js"] if is_going else []
        if is_going and not done:
            view = RunProgress(status="running", done=0, total=len(run.cases))
            return site.answer(request, "run_empty.html", view, scripts=scripts, run=run, above=above)
        attempts = sum(record.attempt for record in records.records)
        page = report(run.id, run.status, run.ended_at, run.name, done, attempts)
        return embedded(site, request, page, above=above, scripts=scripts)

    @router.get("/runs/{run_id}/progress")
    @needs(Scope.READ)
    def progress(run_id: str) -> RunProgress:
        records = glance(site.store, run_id)
        if records is None:
            raise InputError("unknown-run", f"there is no run '{run_id}'", value=run_id)
        return RunProgress(status=records.run.status, done=len(records.records), total=len(records.run.cases))

    @router.get("/runs/{run_id}/cases/{index}")
    @needs(Scope.READ)
    def show_case(request: Request, run_id: str, index: int) -> Response:
        whole = site.store.load(site.store.find_run(run_id))
        page = CasePage(case_of(whole, index), ())
        if page.metric:
            runs = site.store.history(page.metric, limit=MOST_RUNS)
            page = CasePage(page.records, same_case(page.records, runs))
        if wants_json(request):
            return JSONResponse(page.record.model_dump(mode="json"))
        indices = [record.case.index for record in whole.records]
        place = indices.index(index)
        values = {
            "run": whole.run,
            "record": page.record,
            "metric": page.metric,
            "before": indices[place - 1] if place else None,
            "after": indices[place + 1] if place + 1 < len(indices) else None,
            "place": place + 1,
            "of": len(indices),
        }
        above = Markup(templates().get_template("case.html").render(**values, **site.shared_values(request)))
        made = document(page, every="/runs/{run}/cases/{case}")
        return embedded(site, request, render_html.render(made), above=above)


PAGE = Page("/runs/ID", routes)
