"""One job: its state and history in words, its cases as they end, the end of its log, and the button that stops it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import yaml
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from paceline.analysis.summary import summarize_run
from paceline.core.record import Outcome
from paceline.core.run import RunRecords
from paceline.report.text import heading, humanize, one_line, show_figure, show_value
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Caller, Scope, check_owner
from paceline.service.engines.base import AttemptProgress
from paceline.service.jobs import Job, JobState
from paceline.store.dashboard_queries import glance, last_lines
from paceline.web.job_history import CAUSES, HistoryLine, history, listed, needs_words
from paceline.web.pages import Page
from paceline.web.site import SentForm, Site, SmallChart, small_chart

CASES = 200  # of a job that has more, those around the one that is being measured
LINES = 200
INTERRUPTED = "interrupted"
_FIRST = ("rate", "p50", "p99", "failures")  # in this order, before others
_TITLES = {"rate": "Rate", "p50": "Latency, p50", "p99": "Latency, p99", "failures": "Failures"}


class CaseLine(BaseModel):
    """One case, whether it was measured, is being measured, or is still to be."""

    index: int
    title: str
    state: str  # an outcome, or running, waiting, interrupted
    result: str = ""
    seconds: float | None = None
    warnings: list[str] = []
    message: str = ""


class LiveChart(BaseModel):
    """One figure of the case in flight over the last minutes."""

    name: str
    now: str
    low: str
    high: str
    seconds: float  # from the first point to the last
    chart: SmallChart


class JobPage(BaseModel):
    """All that there is to see of a job."""

    answer: str
    job: Job
    cause: str  # of a failure, in a word or two
    needs: str
    expected_end: datetime | None
    progress: AttemptProgress
    live: list[LiveChart]
    cases: list[CaseLine]
    more_cases: int
    done: int
    total: int
    history: list[HistoryLine]
    log: str
    quarantined: int  # items of reports on it that could not be stored
    suite: str
    has_run: bool


def job_page(site: Site, job_id: str) -> JobPage:
    """The job as it is now."""
    job = site.leader.job(job_id)
    records = glance(site.store, job.run_id) if job.run_id else None
    progress = site.leader.progress(job_id)
    lines = _cases(records, progress, is_active=job.state.is_active)
    done = sum(line.state not in ("running", "waiting", INTERRUPTED) for line in lines)
    measured = sum(line.state == Outcome.OK.value for line in lines)
    first = max(0, min(done - CASES // 2, len(lines) - CASES))
    rows = last_lines(site.store, job_id, LINES)
    log = [row.text for row in rows]
    if job.needs.nodes > 1:  # lines begin with the machine that wrote them
        log = [f"{row.follower} | {line}" for row in rows for line in row.text.splitlines(keepends=True)]
    document = dict(job.suite)
    if job.overrides:
        document["changed"] = job.overrides
    if job.only:
        document["only"] = list(job.only)
    return JobPage(
        answer=_answer(job, measured, len(lines), site.leader.why_it_waits(job_id)),
        job=job,
        cause=CAUSES[job.failure.kind] if job.failure else "",
        needs=needs_words(job.needs),
        expected_end=site.leader.expected_end(job_id) if job.state.is_active else None,
        progress=progress,
        live=_live(site.leader.watched(job_id), progress),
        cases=lines[first : first + CASES],
        more_cases=max(0, len(lines) - CASES),
        done=done,
        total=len(lines),
        history=history(site.store.queue.events(job_id), job),
        log="".join(log),
        quarantined=len(site.store.queue.quarantined(job_id)),
        suite=yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110),
        has_run=records is not None,
    )


def _live(watched: Sequence[tuple[datetime, AttemptProgress]], progress: AttemptProgress) -> list[LiveChart]:
    """A chart for each figure of the case in flight; one that a load always has is drawn even where it is zero."""
    looks = [(at, one) for at, one in watched if one.case_index == progress.case_index]
    names = dict.fromkeys(name for _, one in looks for name in one.figures)
    charts = []
    for name in sorted(names, key=lambda one: _FIRST.index(one) if one in _FIRST else len(_FIRST)):
        found = [one.figures.get(name) for _, one in looks]
        values = [figure.value if figure else None for figure in found]
        last = next(figure for figure in reversed(found) if figure is not None)
        drawn = small_chart([values], width=300, height=84, floor=0.0)
        charts.append(
            LiveChart(
                name=_TITLES.get(name) or heading(humanize(name)),
                now=show_value(last.value, last.unit),
                low=show_value(drawn.low, last.unit),
                high=show_value(drawn.high, last.unit),
                seconds=(looks[-1][0] - looks[0][0]).total_seconds(),
                chart=drawn,
            )
        )
    return charts


def _cases(records: RunRecords | None, progress: AttemptProgress, *, is_active: bool) -> list[CaseLine]:
    if records is None:
        return []
    rows = {row.case.index: row for row in summarize_run(records).rows}
    lines = []
    for case in records.run.cases:
        is_now = is_active and progress.case_index == case.index
        title = one_line(f"{case.benchmark} {case.title}".strip())
        line = CaseLine(index=case.index, title=title, state="running" if is_now else "waiting")
        row = rows.get(case.index)
        if row is not None:
            line.state = row.record.outcome.value if row.record.is_final else INTERRUPTED
            line.result = show_figure(row.headline) if row.headline else ""
            line.seconds = row.record.seconds
            line.warnings = list(dict.fromkeys(warning.kind for warning in row.warnings))
            line.message = one_line(row.record.cause.message) if row.record.cause else ""
        lines.append(line)
    return lines


def _answer(job: Job, measured: int, total: int, waits_for: str) -> str:
    name = one_line(job.name)
    of_cases = f": {measured} of {total} {'case' if total == 1 else 'cases'} measured" if total else ""
    match job.state:
        case JobState.QUEUED:
            again = ", again" if job.attempt else ""
            return f"{name} waits{again}: {one_line(waits_for)}." if waits_for else f"{name} waits for its turn{again}."
        case JobState.PLACED:
            return f"{name} starts on {listed(job.followers)}."
        case JobState.RUNNING:
            does = "is asked to stop" if job.stop_asked else "runs"
            return f"{name} {does} on {listed(job.followers)}{of_cases}."
        case JobState.CANCELLED:
            return f"{name} was cancelled{of_cases}."
        case _:
            return f"{name} {job.state}{of_cases}."  # succeeded, or failed


def routes(router: APIRouter, site: Site) -> None:
    """`/jobs/ID` and the form that cancels it."""

    @router.get("/jobs")
    @needs(Scope.READ)
    def jobs() -> Response:
        return RedirectResponse("/", 307)

    @router.get("/jobs/{job_id}")
    @needs(Scope.READ)
    def job(request: Request, job_id: str) -> Response:
        view = job_page(site, job_id)
        scripts = [] if view.job.state.is_final else ["live.js"]
        visitor: Caller = request.state.caller
        may_cancel = visitor.scope >= Scope.SUBMIT and visitor.may_change(view.job)
        return site.answer(request, "job.html", view, scripts=scripts, may_cancel=may_cancel)

    @router.post("/jobs/{job_id}/cancel")
    @needs(Scope.SUBMIT)
    def cancel(request: Request, job_id: str, form: SentForm) -> Response:
        visitor = site.check_form(request, form)
        request.state.subject = job_id
        check_owner(visitor, site.leader.job(job_id))
        site.leader.cancel(job_id, visitor.name)
        return RedirectResponse(f"/jobs/{job_id}", 303)


PAGE = Page("/jobs", routes)
