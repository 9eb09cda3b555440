"""The API of a leader: all its routes, and the application with the guard before and the pages next to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from paceline.core.benchmark import BENCHMARKS
from paceline.core.errors import InputError
from paceline.core.run import RunRecords
from paceline.report.export.openmetrics import PREFIX as METRICS_PREFIX
from paceline.report.export.openmetrics import Family, exposition, labels_of
from paceline.service import admission, job_store
from paceline.service.admission import OVER_QUOTA
from paceline.service.api import documents as d
from paceline.service.api import errors, tokens
from paceline.service.api.answer_cache import AnswerCache
from paceline.service.api.connections import Gate
from paceline.service.api.errors import Refused, declared, not_found, unavailable
from paceline.service.api.guard import PREFIX, Guard, Limits, needs
from paceline.service.api.tokens import Caller, Scope, Sessions, Tokens
from paceline.service.engines.base import AttemptProgress
from paceline.service.jobs import JOB_ID, Job, JobRequest, JobState
from paceline.service.leader import Leader
from paceline.service.placement import gpu_indices
from paceline.store.queue import QuarantineRow
from paceline.store.store import Store
from paceline.version import VERSION

DESCRIPTION = """Submit benchmarks to a leader, follow them, and fetch what they measured.

Every request but the one for the leader's health carries `Authorization: Bearer TOKEN`, unless the leader is bound to
its own machine and nobody has made a token yet."""

JobId = Annotated[str, Path(pattern=JOB_ID)]
RowId = Annotated[int, Path(ge=1, lt=2**31)]
RunId = Annotated[str, Path(pattern=d.RUN_ID)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,17}_[A-Za-z0-9][A-Za-z0-9-]{0,39}$")]
After = Annotated[str, Query(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")]
Limit = Annotated[int, Query(ge=1, le=500)]
States = Annotated[list[JobState] | None, Query()]

_LISTED = 0.5  # seconds for which all who ask for the same jobs get the same answer, if no job has changed
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PAGE = {"description": "A page", "content": {"text/html": {"schema": {"type": "string"}}}}
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_METRICS = {"description": "Metrics", "content": {OPENMETRICS.partition(";")[0]: {"schema": {"type": "string"}}}}
# The page has its own scripts; whatever a name in it may inject, it gets neither the token nor the API.
_ISOLATED = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "frame-ancestors 'self'; sandbox allow-scripts allow-downloads allow-popups"
)


def create_app(
    leader: Leader,
    store: Store,
    *,
    is_local: bool,
    report: Callable[[RunRecords], str],
    pages: APIRouter | None = None,
    limits: Limits | None = None,
    secret: bytes | None = None,
    proxies: Collection[str] = (),
) -> FastAPI:
    """The application for one leader; `pages` are routes outside /api, which use sessions that `secret` signs."""
    app = FastAPI(
        title="Paceline leader",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=None,  # the routes here have it, and the scope that it needs
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    BENCHMARKS.registry()  # reading every benchmark takes a second, which nobody who submits should wait for
    context = ApiContext(leader, store, Tokens(store), Sessions(secret or secrets.token_bytes(32)), report)
    app.state.context = context
    errors.install(app)
    routers = [_job_routes(context), _quarantine_routes(context), _result_routes(context)]
    routers += [_catalogue_routes(app), _admin_routes(context)]
    for router in [*routers, pages] if pages is not None else routers:
        app.router.routes.extend(router.routes)  # side by side, so that the guard finds the one that will answer
    app.add_middleware(
        Guard,
        store=store,
        tokens=context.tokens,
        sessions=context.sessions,
        routes=app.router.routes,
        is_local=is_local,
        limits=limits or Limits(),
        proxies=proxies,
    )
    return app


def _router(tag: str) -> APIRouter:
    return APIRouter(prefix=PREFIX, tags=[tag], responses=declared(400, 401, 403, 408, 413, 415, 422, 429, 503))


@dataclass(frozen=True)
class ApiContext:
    """A leader, its store, and how a run becomes a page."""

    leader: Leader
    store: Store
    tokens: Tokens
    sessions: Sessions
    report: Callable[[RunRecords], str]

    def job(self, job_id: str) -> Job:
        """A job by its id; the answer says so if there is none."""
        try:
            return self.leader.job(job_id)
        except InputError:
            raise not_found("job", job_id) from None

    def fields(self, job: Job) -> dict[str, Any]:
        """All that a view of a job may show; each view takes the fields that it has."""
        is_active = job.state.is_active
        return dict(job) | {
            "run_id": job.run_id,
            "progress": self.leader.progress(job.id) if is_active else AttemptProgress(),
            "expected_end": self.leader.expected_end(job.id) if is_active else None,
            "waits_for": "" if is_active else self.leader.why_it_waits(job.id),
        }


def _jobs_page(
    context: ApiContext, states: Sequence[JobState], before: tuple[datetime, str] | None, limit: int
) -> d.JobsPage:
    page = job_store.list_jobs(context.store, states, limit=limit + 1, before=before)
    following = None
    if len(page) > limit:
        last = page[limit - 1]
        following = f"{(last.submitted_at - _EPOCH) // _MICROSECOND}_{last.id}"
    queue = context.store.queue
    return d.JobsPage(
        jobs=[d.JobSummary.model_validate(context.fields(job)) for job in page[:limit]],
        next=following,
        counts=queue.counts(),
        quarantined=queue.quarantine_count(),
        refused={state.id: state.refused for state in context.leader.refused()},
    )


def _job_routes(context: ApiContext) -> APIRouter:
    """Submit, list, look at, stop, read the log."""
    router = _router("jobs")
    leader, queue = context.leader, context.store.queue
    listed = AnswerCache[str](lambda: leader.edition, longest=_LISTED, is_latest=True)

    @router.post("/jobs", status_code=201, responses={200: {"model": d.JobView}, **declared(409)})
    @needs(Scope.SUBMIT)
    def submit(sent: JobRequest, request: Request, response: Response) -> d.JobView:
        """Submit a job. The same id again gives the existing job, with 200."""
        request.state.subject = sent.id  # for the audit log
        if leader.trouble:
            raise unavailable(leader.trouble)
        caller: Caller = request.state.caller
        job = admission.new_job(sent, by=caller.name)
        try:
            job, is_new = leader.submit(job, caller.quotas)
        except InputError as error:
            raise Refused.of(error, 403 if error.code == OVER_QUOTA else 409) from None
        response.status_code = 201 if is_new else 200
        return view(job)

    @router.get("/jobs", responses={200: {"model": d.JobsPage}}, response_model=None)
    @needs(Scope.READ)
    def list_jobs(state: States = None, cursor: Cursor = None, limit: Limit = 100) -> Response:
        """Jobs, the newest first."""
        before = None
        if cursor is not None:
            at, _, job_id = cursor.partition("_")
            try:
                before = (_EPOCH + int(at) * _MICROSECOND, job_id)
            except OverflowError:
                message = f"cursor = {cursor} is not one that an earlier page has given"
                raise InputError("invalid-cursor", message, key="cursor", value=cursor) from None
        question = (tuple(state or ()), before, limit)
        text = listed.get(question, lambda: _jobs_page(context, *question).model_dump_json())
        return Response(text, media_type="application/json")

    @router.get("/jobs/{job_id}", responses=declared(404))
    @needs(Scope.READ)
    def show_job(job_id: JobId) -> d.JobView:
        """One job, with its history."""
        return view(context.job(job_id))

    @router.post("/jobs/{job_id}/cancel", responses=declared(404))
    @needs(Scope.SUBMIT)
    def cancel(job_id: JobId, request: Request) -> d.JobView:
        """Stop a job, whether it waits or runs; one that is over stays as it is."""
        request.state.subject = job_id
        tokens.check_owner(request.state.caller, context.job(job_id))
        return view(leader.cancel(job_id, request.state.caller.name))

    @router.get("/jobs/{job_id}/logs", responses=declared(404))
    @needs(Scope.READ)
    def logs(job_id: JobId, after: After = "0.0", limit: Limit = 500) -> d.LogPage:
        """Lines of its log, after those that were read already."""
        job = context.job(job_id)
        attempt, number = (int(part) for part in after.split("."))
        rows = queue.logs(job_id, (attempt, number), limit)
        lines = [d.LogLine.model_validate(asdict(row)) for row in rows]
        following = f"{lines[-1].attempt}.{lines[-1].number}" if lines else after
        return d.LogPage(lines=lines, next=following, is_over=job.state.is_final and len(lines) < limit)

    def view(job: Job) -> d.JobView:
        history = [d.HistoryEntry(at=row.at, kind=row.kind, details=row.document) for row in queue.events(job.id)]
        return d.JobView.model_validate(context.fields(job) | {"history": history})

    return router


def _quarantine_routes(context: ApiContext) -> APIRouter:
    """Look at what could not be stored, try again, drop it."""
    router = _router("quarantine")
    leader, queue = context.leader, context.store.queue

    @router.get("/quarantine")
    @needs(Scope.READ)
    def list_items(limit: Limit = 100) -> d.QuarantinePage:
        """Items of reports that could not be stored, the newest first."""
        return d.QuarantinePage(entries=queue.quarantined(limit=limit))

    @router.get("/quarantine/{number}", responses=declared(404))
    @needs(Scope.READ)
    def show_item(number: RowId) -> d.QuarantineView:
        """One of them, as its follower reported it."""
        quarantined = queue.quarantined_item(number)
        if quarantined is None:
            raise not_found("item in quarantine", str(number))
        return d.QuarantineView(entry=quarantined[0], item=quarantined[1])

    @router.post("/quarantine/{number}/retry", responses=declared(404))
    @needs(Scope.ADMIN)
    def retry(number: RowId, request: Request) -> QuarantineRow:
        """Store it, now that the reason may be gone."""
        request.state.subject = str(number)
        show_item(number)
        return leader.retry_quarantined(number)

    @router.post("/quarantine/{number}/drop", responses=declared(404))
    @needs(Scope.ADMIN)
    def drop(number: RowId, request: Request) -> QuarantineRow:
        """Delete it."""
        request.state.subject = str(number)
        show_item(number)
        return leader.drop_quarantined(number)

    return router


def _result_routes(context: ApiContext) -> APIRouter:
    """Runs, their records, their reports; and the machines that they come from."""
    router = _router("results")
    store, leader = context.store, context.leader

    @router.get("/runs")
    @needs(Scope.READ)
    def list_runs(limit: Limit = 50) -> d.RunsPage:
        """Runs, the newest first, whether a job made them or not."""
        return d.RunsPage(runs=store.runs(limit))

    @router.get("/runs/{run_id}", responses={200: {"model": d.RunView}, **declared(404)}, response_model=None)
    @needs(Scope.READ)
    def show_run(run_id: RunId, samples: bool = False) -> Response:
        """One run with its records; `last` is the newest."""
        records = load(run_id)
        left_out = {} if samples else {"measurements": {"__all__": {"samples"}}}
        view = d.RunView(
            run=records.run.model_dump(mode="json"),
            records=[record.model_dump(mode="json", exclude=left_out) for record in records.records],
        )
        return Response(view.model_dump_json(), media_type="application/json")

    @router.get("/runs/{run_id}/report", response_class=Response, responses={200: _PAGE, **declared(404)})
    @needs(Scope.READ)
    def report(run_id: RunId) -> HTMLResponse:
        """The run as a page that needs nothing else."""
        return HTMLResponse(context.report(load(run_id)), headers={"Content-Security-Policy": _ISOLATED})

    @router.get("/followers")
    @needs(Scope.READ)
    def followers() -> d.FollowersPage:
        """The machines, and what they are doing."""
        present = {state.id: state for state in leader.followers()}
        absent = leader.recorded() | {state.id: state for state in leader.refused()}
        running: dict[str, list[d.Busy]] = {name: [] for name in present}
        for job in job_store.list_jobs(store, job_store.ACTIVE):
            for follower, devices in zip(job.followers, job.devices, strict=False):
                if follower in running:
                    busy = d.Busy(
                        job=job.id,
                        name=job.name,
                        state=job.state,
                        since=job.state_at,
                        devices=gpu_indices(devices),
                        expected_end=leader.expected_end(job.id),
                    )
                    running[follower].append(busy)
        views = [
            d.FollowerView(**state.model_dump(exclude={"machine"}), present=name in present, jobs=running.get(name, []))
            for name, state in (present | {name: absent[name] for name in absent if name not in present}).items()
        ]
        return d.FollowersPage(followers=views)

    def load(run_id: str) -> RunRecords:
        try:
            return store.load(store.find_run(run_id))
        except InputError:
            raise not_found("run", run_id) from None

    return router


def _catalogue_routes(app: FastAPI) -> APIRouter:
    """The description of the API, and what is wrong with a suite as somebody types it."""
    router = _router("catalogue")

    @router.get("/openapi.json", include_in_schema=False)
    @needs(Scope.READ)
    def description() -> JSONResponse:
        return JSONResponse(app.openapi())

    @router.post("/validate")
    @needs(Scope.SUBMIT)
    def validate(sent: d.ValidateSent) -> d.SuiteValidation:
        """Whether a suite would be taken, and what is wrong with it, entry by entry."""
        try:
            if (sent.suite is None) == (sent.text is None):
                message = "give the suite either as 'suite' or, as YAML, as 'text'"
                raise InputError("not-one-suite", message, key="suite")
            if sent.suite is not None:
                document = admission.document_of(sent.suite)
            else:
                document = admission.parsed_suite(
                    admission.read_document(sent.text or "", "the suite", takes_aliases=False)
                )
            problems, cases = admission.problems(document, sent.overrides, sent.needs)
        except InputError as error:
            problems, cases = [error], []
        shown = [vars(error) | {"message": admission.message_of(error)} for error in problems]
        views = [d.ProblemView.model_validate(one) for one in shown]
        titles = [case.title or case.benchmark for case in cases]
        return d.SuiteValidation(ok=not problems, problems=views, cases=len(cases), titles=titles[:20])

    return router


def _admin_routes(context: ApiContext) -> APIRouter:
    """The leader's health, its figures, who did what."""
    router = _router("administration")
    queue = context.store.queue

    @router.get("/health/live")
    @needs(None)
    def live() -> d.Health:
        """200 unless the leader has to be started again; anybody may ask, and learns not why."""
        if not context.leader.is_live:
            raise Refused(503, "not-live", "the leader stands still", "start it again: nothing is lost")
        is_ready = context.leader.is_ready
        return d.Health(status="ok" if is_ready else "not-ready", live=True, ready=is_ready)

    @router.get("/health/ready")
    @router.get("/health")
    @needs(None)
    def ready() -> d.Health:
        """200 while the leader takes jobs; 503 while it cannot, which may pass by itself."""
        health = live()
        if not health.ready:
            raise Refused(503, "not-ready", "the leader takes no jobs just now", headers={"Retry-After": "5"})
        return health

    @router.get("/metrics", response_class=Response, responses={200: _METRICS})
    @needs(Scope.READ)
    def metrics(request: Request) -> Response:
        """The leader itself in OpenMetrics, for Prometheus."""
        text = leader_metrics(context.leader, context.store, getattr(request.app.state, "gate", None))
        return Response(text, media_type=OPENMETRICS)

    @router.get("/audit")
    @needs(Scope.ADMIN)
    def audit(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> d.AuditPage:
        """Who did what, the newest first."""
        return d.AuditPage(entries=queue.audited(limit))

    return router


def leader_metrics(leader: Leader, store: Store, gate: Gate | None) -> str:
    """The leader itself in figures, as they are now: its queue, its leases, its store and its front."""
    begun = time.perf_counter()
    counts = {state.value: 0 for state in JobState} | store.queue.counts()
    read_seconds = time.perf_counter() - begun
    leases, (writes, write_seconds) = leader.leases, leader.store_writes
    families = {
        "jobs": Family("", "Jobs in each state.", {labels_of({"state": one}): n for one, n in counts.items()}),
        "followers": _single("", "Followers that are here.", len(leader.followers())),
        "followers_refused": _single("", "Followers that are refused.", len(leader.refused())),
        "leases": _single("", "Jobs that followers have.", len(leases)),
        "age_seconds": _single("seconds", "Time since the leader last knew of its followers.", leader.age),
        "ready": _single("", "1 while jobs are taken, 0 while they are not.", leader.is_ready),
        "store_read_seconds": _single("seconds", "Time that counting the jobs took just now.", read_seconds),
        "store_writes": _single("", "Changes of jobs that were stored.", writes, "counter"),
        "store_write_seconds": _single("seconds", "Time that storing them took.", write_seconds, "counter"),
    }
    if leases:
        left = (min(leases) - datetime.now(UTC)).total_seconds()
        families["lease_left_seconds"] = _single("seconds", "Time until the first lease runs out.", left)
    quarantined = store.queue.quarantine_count()
    families["quarantined_reports"] = _single("", "Items of reports that could not be stored.", quarantined)
    if gate is not None:
        families["connections"] = _single("", "Connections that are open.", len(gate))
        families["connections_refused"] = _single(
            "", "Connections for which another had to go.", gate.refused, "counter"
        )
    return exposition({f"{METRICS_PREFIX}_leader_{name}": family for name, family in families.items()})


def _single(unit: str, about: str, value: float, kind: str = "gauge") -> Family:
    return Family(unit, about, {"": float(value)}, kind)
