"""The form that submits a job: a suite that ships, one benchmark with its parameters, or a suite as YAML."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, get_args

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, RedirectResponse

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import is_micro
from paceline.core.errors import InputError, StoreError, unknown
from paceline.core.parameters import in_words
from paceline.report.text import one_line
from paceline.runner.suite_file import load_suite, shipped
from paceline.service import admission
from paceline.service.admission import OVER_QUOTA
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Caller, Scope
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job, JobRequest, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.placement import could_run
from paceline.web import form_fields
from paceline.web.form_fields import PREFIX, Group, groups_of, read_parameters, read_settings
from paceline.web.job_history import counted, lead_of, listed
from paceline.web.pages import Page
from paceline.web.site import Form, SentForm, Site

Kind = Literal["suite", "benchmark", "yaml"]
DEFAULT_SUITE = "quick"
_TAGGED = 200  # runs whose tags are offered
_FIELDS = ("suite", "benchmark", "set", "gpus", "gpu", "memory_gib", "labels", "whole_node", "priority", "tags")
EXAMPLE = """\
name: my-suite
cases:
  - benchmark: stream
  - benchmark: gemm
    precision: [fp32, bf16]
    size: 2048
"""


class Choice(BaseModel):
    """One thing to choose."""

    name: str
    summary: str
    category: str = ""


class Checked(BaseModel):
    """Whether the form can be sent, as far as that can be checked without the machine."""

    ok: bool
    errors: dict[str, str] = {}  # by field; "" is the form as a whole
    cases: int = 0
    message: str = ""


class MachineChoices(BaseModel):
    """What the machines that are here have, for a form to offer."""

    machines: list[str]
    gpus: dict[str, int]  # how many machines have such a GPU
    counts: list[int]  # GPUs that a job may have on one machine
    memory_gib: list[int]
    labels: list[str]

    @classmethod
    def of(cls, followers: Sequence[FollowerState]) -> MachineChoices:
        """Those of these machines."""
        # What cannot be typed cannot be asked for, and must not reach a page as it is.
        names = [name for state in followers for name in set(state.gpus) if name.isprintable()]
        most = max((len(state.gpus) for state in followers), default=0)
        return cls(
            machines=[one_line(f"{lead_of(state)} · {state.id}") for state in followers],
            gpus=dict(sorted(Counter(names).items())),
            counts=[count for count in (1, 2, 4, 8, 16) if count < most] + ([most] if most else []),
            memory_gib=sorted({size for state in followers for size in state.gpu_memory_gib}),
            labels=sorted({label for state in followers for label in state.labels if label.isprintable()}),
        )


class Submission(BaseModel):
    """The form as it stands."""

    kind: Kind
    id: str
    suites: list[Choice]
    benchmarks: list[Choice]
    suite: str
    benchmark: str
    about: str
    groups: list[Group]
    values: dict[str, str]
    machines: MachineChoices
    tags_here: list[str]
    again: str = ""  # the run that is to be run again
    checked: Checked | None = None


@cache
def _first_benchmark() -> str:
    """What the form shows before anything was chosen: the first single operation of the default suite."""
    names = [str(case["benchmark"]) for case in load_suite(DEFAULT_SUITE).cases]
    return next((name for name in names if is_micro(BENCHMARKS.registry().get(name).category)), names[0])


def form_page(site: Site, kind: Kind, name: str, values: dict[str, str], job_id: str) -> Submission:
    """The form with what was typed so far."""
    entries = BENCHMARKS.registry().entries
    suite = values.get("suite") or (name if kind == "suite" and name else DEFAULT_SUITE)
    benchmark = values.get("benchmark") or (name if kind == "benchmark" and name else _first_benchmark())
    if kind == "benchmark" and benchmark not in entries:
        raise unknown("benchmark", benchmark[:100], entries, key="benchmark")
    groups = groups_of(entries[benchmark].Parameters) if kind == "benchmark" else []
    for group in groups:
        for entry in group.entries:
            entry.value = values.get(PREFIX + entry.name, "")
    return Submission(
        kind=kind,
        id=job_id,
        suites=_suites(),
        benchmarks=[
            Choice(name=one, summary=entry.summary, category=entry.category) for one, entry in sorted(entries.items())
        ],
        suite=suite,
        benchmark=benchmark,
        about=entries[benchmark].summary if kind == "benchmark" else "",
        groups=groups,
        values={"yaml": EXAMPLE if kind == "yaml" else "", "priority": "0"} | values,
        machines=MachineChoices.of(site.leader.followers()),
        tags_here=sorted({tag for row in site.store.runs(_TAGGED) for tag in row.tags}),
    )


@cache
def _suites() -> list[Choice]:
    return [Choice(name=one, summary=one_line(load_suite(one).description)) for one in sorted(shipped())]


@contextmanager
def _noting(errors: dict[str, str], field: str) -> Iterator[None]:
    """Note what is wrong with a field."""
    try:
        yield
    except InputError as error:
        errors[field] = str(error)
    except ValueError:
        errors[field] = "this is not a whole number"


def read(form: Form) -> tuple[JobRequest | None, dict[str, str]]:
    """The job that a form asks for, or what is wrong with each field; "" is the form as a whole."""
    errors: dict[str, str] = {}
    needs: dict[str, Any] = {name: form.get(name) for name in ("gpu", "gpus", "memory_gib") if form.get(name)}
    needs |= {"labels": _words(form.get("labels")), "whole_node": form.get("whole_node") == "yes"}
    fields: dict[str, Any] = {"id": form.get("id"), "needs": needs, "tags": _words(form.get("tags"))}
    with _noting(errors, "priority"):
        fields["priority"] = int(form.get("priority", "0") or "0")
    kind = form.get("kind")
    if kind == "benchmark":
        name = form.get("benchmark")
        benchmark = BENCHMARKS.registry().entries.get(name)
        if benchmark is None:
            errors["benchmark"] = str(unknown("benchmark", name[:100], BENCHMARKS.registry().entries))
        else:
            typed = {
                key.removeprefix(PREFIX): value.strip()
                for key, value in form.values.items()
                if key.startswith(PREFIX) and value.strip()
            }
            values, wrong = read_parameters(typed, benchmark.Parameters)
            errors |= {PREFIX + key: message for key, message in wrong.items()}
            fields["suite"] = {"name": name, "cases": [{"benchmark": name} | values]}
    elif kind == "yaml":
        with _noting(errors, "yaml"):
            fields["suite"] = admission.parsed_suite(admission.read_document(form.values.get("yaml", ""), "the suite"))
    else:
        fields["suite"] = form.get("suite")
        with _noting(errors, "set"):
            fields["overrides"] = read_settings(form.get("set"))
    try:
        request = JobRequest.model_validate(fields)
    except ValidationError as error:
        places = {"suite": _suite_field(form), "overrides": "set"}
        for complaint in error.errors():
            name = str(complaint["loc"][1 if complaint["loc"][0] == "needs" else 0])
            errors.setdefault(places.get(name, name), in_words(complaint))
        return None, errors
    return (None if errors else request), errors


def check(form: Form, leader: Leader) -> tuple[Checked, JobRequest | None]:
    """Whether the form can be sent, and the job that it asks for."""
    request, errors = read(form)
    if request is None:
        return Checked(ok=False, errors=errors), None
    field = _suite_field(form)
    try:
        document = admission.document_of(request.suite)
        problems, cases = admission.problems(document, request.overrides, request.needs)
    except InputError as error:
        return Checked(ok=False, errors={field: str(error)}), None
    if problems:
        return Checked(ok=False, errors=_by_field(problems, field, form, request.overrides)), None
    titles = listed(list(dict.fromkeys(f"{case.benchmark} {case.title}".strip() for case in cases)), most=3)
    message = f"{counted(len(cases), 'case')}: {titles}. {_capable_machines(leader, request.needs)}"
    return Checked(ok=True, cases=len(cases), message=message), request


def _suite_field(form: Form) -> str:
    """The field that the whole suite is in."""
    kind = form.get("kind")
    return kind if kind in get_args(Kind) else ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def _by_field(problems: list[InputError], whole: str, form: Form, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Each problem at the field that it is about, or at the field of the whole suite."""
    errors: dict[str, list[str]] = {}
    for problem in problems:
        key = problem.key
        if whole == "benchmark" and f"{PREFIX}{key}" in form.values:
            field, message = f"{PREFIX}{key}", problem.message
        elif key is not None and any(path == key or path.endswith(f".{key}") for path in overrides):
            field, message = "set", problem.message
        else:
            where = f"entry {problem.case}: " if problem.case and whole != "benchmark" and len(problems) > 1 else ""
            field, message = whole, f"{where}{admission.message_of(problem)}"
        errors.setdefault(field, []).append(message)
    return {field: "; ".join(messages) for field, messages in errors.items()}


def _capable_machines(leader: Leader, needs: MachineNeeds) -> str:
    """How many of the machines that are here can run a job."""
    followers = leader.followers()
    able = sum(could_run(state, needs) for state in followers)
    if not followers:
        return "No machine is here yet; the job will wait for one."
    message = f"{able} of the {counted(len(followers), 'machine')} here can run it"
    if len(followers) == 1:
        name = followers[0].id
        message = f"{name} can run it" if able else f"{name}, the only machine here, cannot run it"
    return f"{message}; the job will wait for {'more' if able else 'another'}." if able < needs.nodes else f"{message}."


def _again(site: Site, run_id: str, index: int | None) -> tuple[Kind, str, dict[str, str]]:
    """The form as it must be filled in to run something again: one case by its parameters, a run as a suite."""
    run = site.store.load(run_id, samples=False).run
    cases = [case for case in run.cases if index in (None, case.index)]
    if not cases:
        message = f"run '{run_id}' has no case {index}: it has {counted(len(run.cases), 'case')}"
        raise InputError("unknown-case", message, key="case", value=index)
    values = form_fields.needs_of(run, cases)
    if index is not None and cases[0].benchmark in BENCHMARKS.registry().entries:
        name = cases[0].benchmark
        typed = {PREFIX + key: text for key, text in form_fields.form_values(cases[0]).items()}
        asked = Form([("kind", "benchmark"), ("benchmark", name), ("id", "again"), *typed.items()])
        if not read(asked)[1]:
            return "benchmark", name, values | typed
    return "yaml", "", values | {"yaml": form_fields.suite_text(run, cases)}


def routes(router: APIRouter, site: Site) -> None:
    """`/submit`: the form, what is wrong with it as one types, and the job."""

    def show(request: Request, submission: Submission, status: int = 200) -> Response:
        return site.answer(request, "submit.html", submission, scripts=["submit.js"], status=status)

    @router.get("/submit")
    @needs(Scope.READ)
    def form(
        request: Request, kind: Kind = "suite", name: str = "", run: str = "", case: int | None = None
    ) -> Response:
        given = request.query_params.items()
        values = {key: value for key, value in given if key in _FIELDS or key.startswith(PREFIX)}
        if run:
            run = site.store.find_run(run)
            kind, name, more = _again(site, run, case)
            values |= more
        page = form_page(site, kind, name, values, secrets.token_hex(6))
        page.again = run
        return show(request, page)

    @router.post("/submit/check")
    @needs(Scope.SUBMIT)
    def checked(request: Request, form: SentForm) -> Response:
        site.check_form(request, form)
        return JSONResponse(check(form, site.leader)[0].model_dump(mode="json"))

    @router.post("/submit")
    @needs(Scope.SUBMIT)
    def submit(request: Request, form: SentForm) -> Response:
        visitor = site.check_form(request, form)
        result, asked = check(form, site.leader)
        status = 422
        if asked is not None:
            try:
                job = _submitted(site, asked, visitor)
            except (StoreError, InputError) as error:  # nothing was taken: what was typed must not be lost, too
                result = Checked(ok=False, errors={"": str(error)})
                status = 503 if isinstance(error, StoreError) else 403
            else:
                request.state.subject = job.id
                return RedirectResponse(f"/jobs/{job.id}", 303)
        kind: Any = form.get("kind")
        values = {key: value for key, value in form.values.items() if key not in ("token", "id", "kind")}
        submission = form_page(site, kind if kind in get_args(Kind) else "suite", "", values, form.get("id"))
        submission.checked = result
        for group in submission.groups:
            for entry in group.entries:
                entry.error = result.errors.get(PREFIX + entry.name, "")
                group.is_folded = group.is_folded and not entry.error
        return show(request, submission, status)


def _submitted(site: Site, request: JobRequest, visitor: Caller) -> Job:
    """The job that the leader took; a form that was sent, changed and sent again is another one."""
    if site.leader.trouble:
        raise StoreError(site.leader.trouble)
    job = admission.new_job(request, visitor.name)
    try:
        return site.leader.submit(job, visitor.quotas)[0]
    except InputError as error:
        if error.code == OVER_QUOTA:
            raise
        return site.leader.submit(job.model_copy(update={"id": secrets.token_hex(6)}), visitor.quotas)[0]


PAGE = Page("/submit", routes, title="Submit", order=20)
