"""The list of runs, by filters that the address holds; the report of each, also while it is measured, and its cases.

Tags, notes and pins are changed from both.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import JSONResponse, RedirectResponse

from paceline.core.errors import InputError
from paceline.core.run import RunRecords, RunStatus
from paceline.report.render import html as render_html
from paceline.report.run.case_page import CasePage, case_of, document, same_case
from paceline.report.run_list import PINNED, Headline, ListedRun, RunGlances, listed
from paceline.service.api.errors import Refused
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Caller, Scope
from paceline.service.jobs import Job
from paceline.store.dashboard_queries import glance, pin_and_note, run_count
from paceline.store.retention import change_run, change_tags, readable
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.site import Form, SentForm, Site, embedded, inside, templates, wants_json

LISTED = 100
MOST_LISTED = 10_000
_KEPT = 5_000  # runs whose figures are not read again at every look
_RUN_OF_JOB = re.compile(r"\d{8}-\d{6}-(.+)-\d+")
LONGEST_NOTE, LONGEST_TAG, MOST_TAGS = 2000, 64, 16

Status = Literal["", "running", "finished", "interrupted", "pinned"]


class RunLine(BaseModel):
    """One run."""

    id: str
    name: str
    status: RunStatus
    started_at: datetime
    ended_at: datetime | None
    cases: int
    ok: int
    not_ok: int
    tags: tuple[str, ...]
    pinned: bool
    note: str
    host: str
    devices: str
    machine: str
    figure: Headline | None
    warnings: dict[str, int]

    @classmethod
    def of(cls, run: ListedRun) -> RunLine:
        """The line of a run."""
        glance = run.glance
        host = glance.machine.removesuffix(glance.devices).rstrip(", ")
        return cls(
            **run.row.model_dump(),
            host=host,
            devices=glance.devices,
            machine=glance.machine,
            figure=glance.headline,
            warnings=dict(glance.warnings),
        )


class RunQuery(BaseModel):
    """What somebody looks for."""

    search: str = ""
    machine: str = ""
    tag: str = ""
    benchmark: str = ""
    status: Status = ""

    def address(self, **changed: str | int) -> str:
        """The list with other filters."""
        values = {name: value for name, value in (self.model_dump() | changed).items() if value}
        return f"/runs?{urlencode(values)}" if values else "/runs"

    @property
    def is_filtered(self) -> bool:
        """Whether anything is looked for."""
        return any(self.model_dump().values())


class Known(BaseModel):
    """What there is to choose among the latest runs."""

    machines: list[tuple[str, str]]  # as it is looked for, and as it is shown
    devices: list[str]
    tags: list[str]
    benchmarks: list[str]
    statuses: list[str]


class Runs(BaseModel):
    """The latest runs that were looked for."""

    answer: str
    query: RunQuery
    known: Known
    runs: list[RunLine]
    total: int
    shown: int
    is_cut: bool  # there may be more of them


def owner_of(site: Site, run_id: str) -> Job | None:
    """The job that measured a run, if there is one."""
    match = _RUN_OF_JOB.fullmatch(run_id)
    with suppress(InputError):
        job = site.leader.job(match[1]) if match else None
        return job if job is not None and run_id in job.run_ids else None
    return None


def may_change(site: Site, visitor: Caller, run_id: str) -> bool:
    """Whether somebody may tag, note and pin a run: one of their own jobs', or any with the scope admin."""
    if visitor.scope >= Scope.ADMIN:
        return True
    job = owner_of(site, run_id) if visitor.scope >= Scope.SUBMIT else None
    return job is not None and visitor.may_change(job)


def _known(query: RunQuery, latest: Sequence[ListedRun]) -> Known:
    def texts(found: Iterable[str], chosen: str) -> list[str]:
        return sorted({text for text in (*found, chosen) if text and text.isprintable()}, key=str.casefold)

    machines = {run.machine: RunLine.of(run) for run in latest if run.machine and run.machine.isprintable()}
    shown = {text: f"{line.devices or line.host} · {line.host}" for text, line in machines.items()}
    devices = texts((run.glance.devices for run in latest), "")
    if query.machine and query.machine not in devices:
        shown.setdefault(query.machine, query.machine)
    return Known(
        machines=sorted(shown.items(), key=lambda pair: pair[1].casefold()),
        devices=devices,
        tags=texts((tag for run in latest for tag in run.row.tags), query.tag),
        benchmarks=texts((name for run in latest for name in run.glance.benchmarks), query.benchmark),
        statuses=[*get_args(RunStatus), PINNED],
    )


def list_routes(router: APIRouter, site: Site) -> None:
    """`/runs`, and what changes the tags, the note and the pin of one."""
    glances, lock = RunGlances(site.store, _KEPT), threading.Lock()

    @router.get("/runs")
    @needs(Scope.READ)
    def runs(
        request: Request,
        search: str = "",
        machine: str = "",
        tag: str = "",
        benchmark: str = "",
        status: Status = "",
        limit: int = Query(LISTED, ge=1, le=MOST_LISTED),
    ) -> Response:
        query = RunQuery(search=search.strip(), machine=machine, tag=tag, benchmark=benchmark, status=status)
        with lock:  # one at a time looks through all runs
            latest = listed(glances, LISTED)
            wanted = listed(glances, limit, **query.model_dump()) if query.is_filtered or limit > LISTED else latest
        wanted = wanted[:limit]
        total = run_count(site.store)
        going = sum(run.row.status == "running" for run in wanted)
        of_all = f" of {total:,}" if query.is_filtered else ""
        number = len(wanted) if query.is_filtered else total
        answer = f"{number:,}{of_all} {'run' if (total if of_all else number) == 1 else 'runs'}"
        view = Runs(
            answer=f"{answer}, {going} still going." if going else f"{answer}.",
            query=query,
            known=_known(query, latest),
            runs=[RunLine.of(run) for run in wanted],
            total=total,
            shown=len(wanted),
            is_cut=len(wanted) == limit and len(wanted) < total,
        )
        visitor: Caller = request.state.caller
        mine = {run.id for run in view.runs if may_change(site, visitor, run.id)}
        return site.answer(request, "runs.html", view, scripts=["live.js", "runs.js"], mine=mine)

    def changing(request: Request, form: Form, run_id: str) -> str:
        """The run that somebody changes, if they may."""
        visitor = site.check_form(request, form)
        run_id = site.store.find_run(run_id)
        request.state.subject = run_id
        if not may_change(site, visitor, run_id):
            message = f"run '{run_id}' is not of a job of '{visitor.name}'"
            raise Refused(403, "not-yours", message, "ask its owner, or somebody who has a token with the scope admin")
        return run_id

    @router.post("/runs/tags")
    @needs(Scope.SUBMIT)
    def tag_several(request: Request, form: SentForm) -> Response:
        """Tag the runs that were ticked."""
        tags = read_tags(form.get("tags"))
        if not tags or not form.get("run"):
            raise InputError("nothing-to-tag", "tick at least one run, and give at least one tag", key="tags")
        for run_id in [changing(request, form, one) for one in form.get("run").split(",")]:
            change_tags(site.store, run_id, add=tags)
        return RedirectResponse(inside(request.query_params.get("next", ""), "/runs"), 303)

    @router.post("/runs/{run_id}/pin")
    @needs(Scope.SUBMIT)
    def pin(request: Request, run_id: str, form: SentForm) -> Response:
        run_id = changing(request, form, run_id)
        change_run(site.store, run_id, pinned=form.get("pinned") == "yes")
        return RedirectResponse(inside(form.get("next"), f"/runs/{run_id}"), 303)

    @router.post("/runs/{run_id}/about")
    @needs(Scope.SUBMIT)
    def about(request: Request, run_id: str, form: SentForm) -> Response:
        """Its tags and its note, in place of earlier ones."""
        run_id = changing(request, form, run_id)
        tags, note = read_tags(form.get("tags")), " ".join(form.get("note").split())
        if len(note) > LONGEST_NOTE:
            raise InputError("note-too-long", f"a note has at most {LONGEST_NOTE:,} characters", key="note")
        earlier = site.store.load(run_id, samples=False).run.tags
        change_run(site.store, run_id, note=readable("note", note) if note else "")
        change_tags(site.store, run_id, add=tags, remove=[tag for tag in earlier if tag not in tags])
        return RedirectResponse(f"/runs/{run_id}", 303)


def read_tags(text: str) -> list[str]:
    """The tags between commas."""
    tags = [readable("tag", one) for one in dict.fromkeys(part.strip() for part in text.split(",")) if one]
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        message = f"a run has at most {counted(MOST_TAGS, 'tag')} of at most {LONGEST_TAG} characters"
        raise InputError("too-many-tags", message, key="tags", value=text[:100])
    return tags


MOST_RUNS = 500  # among which the history of a case is looked for
_MOST_REPORTS = 16  # that were made last and may be requested again
_CASE = re.compile(r'(<details id="case-(\d+)"(?: open)?>\n<summary>.*?</summary>\n<div class="inside">\n)', re.DOTALL)


class RunProgress(BaseModel):
    """How far a run is."""

    status: RunStatus
    done: int
    total: int


def run_routes(router: APIRouter, site: Site) -> None:
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


PAGES = [Page("/runs", list_routes, title="Runs", order=30), Page("/runs/ID", run_routes)]
