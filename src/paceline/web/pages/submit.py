"""The form that submits a job: a suite that ships, one benchmark with its parameters, or a suite as YAML."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, RedirectResponse

from paceline.benchmarks import registry
from paceline.core.category import is_micro
from paceline.core.errors import InputError, StoreError, unknown
from paceline.core.parameters import in_words
from paceline.report.text import one_line
from paceline.runner.suite_file import load_suite, shipped
from paceline.service.api import submissions
from paceline.service.api.tokens import Scope
from paceline.service.jobs import Job, JobRequest, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.placement import could_run
from paceline.web.form import PREFIX, Group, groups_of, read_parameters, read_settings, read_text
from paceline.web.pages import Page
from paceline.web.site import Filled, Form, Site
from paceline.web.words import counted, listed

Kind = Literal["suite", "benchmark", "yaml"]
DEFAULT_SUITE = "quick"
EXAMPLE = """\
name: my-suite
cases:
  - benchmark: stream
  - benchmark: gemm
    precision: [fp32, bf16]
    size: 2048
"""
_NEEDS = ("gpu", "gpus", "memory_gib", "labels", "whole_node")


class Choice(BaseModel):
    """One thing to choose."""

    name: str
    summary: str
    category: str = ""


class Checked(BaseModel):
    """What the form says, as far as anybody but the machine can tell."""

    ok: bool
    errors: dict[str, str] = {}  # by field; "" is the form as a whole
    cases: int = 0
    message: str = ""


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
    gpus_here: list[str]
    labels_here: list[str]
    checked: Checked | None = None


class Read(BaseModel):
    """What was typed, read."""

    suite: dict[str, Any] | str | None = None
    overrides: dict[str, Any] = {}
    needs: MachineNeeds = MachineNeeds()
    priority: int = 0
    tags: tuple[str, ...] = ()
    errors: dict[str, str] = {}


@cache
def _first_benchmark() -> str:
    """What the form shows before anything was chosen: the first single operation of the default suite."""
    names = [str(case["benchmark"]) for case in load_suite(DEFAULT_SUITE).cases]
    return next((name for name in names if is_micro(registry().get(name).category)), names[0])


def empty(site: Site, kind: Kind, name: str, values: dict[str, str], job_id: str) -> Submission:
    """The form with what was typed so far."""
    entries = registry().entries
    suite = values.get("suite") or (name if kind == "suite" and name else DEFAULT_SUITE)
    benchmark = values.get("benchmark") or (name if kind == "benchmark" and name else _first_benchmark())
    if kind == "benchmark" and benchmark not in entries:
        raise unknown("benchmark", benchmark[:100], entries, key="benchmark")
    groups = groups_of(entries[benchmark].Parameters) if kind == "benchmark" else []
    for group in groups:
        for entry in group.entries:
            entry.value = values.get(PREFIX + entry.name, "")
    followers = site.leader.followers()
    return Submission(
        kind=kind,
        id=job_id,
        suites=_suites(),
        benchmarks=[
            Choice(name=one, summary=found.summary, category=found.category) for one, found in sorted(entries.items())
        ],
        suite=suite,
        benchmark=benchmark,
        about=entries[benchmark].summary if kind == "benchmark" else "",
        groups=groups,
        values={"yaml": EXAMPLE if kind == "yaml" else "", "priority": "0"} | values,
        gpus_here=sorted({name for state in followers for name in state.gpus}),
        labels_here=sorted({label for state in followers for label in state.labels}),
    )


@cache
def _suites() -> list[Choice]:
    return [Choice(name=one, summary=one_line(load_suite(one).description)) for one in sorted(shipped())]


def read(form: Form) -> Read:
    """What a form says; what is wrong with a field is told at the field."""
    found = Read(errors={})
    _read_work(form, found)
    needs = {name: form.get(name) for name in _NEEDS if form.get(name)}
    for name, text in needs.items():
        value: Any = _words(text) if name == "labels" else text == "yes" if name == "whole_node" else text
        found.needs = _kept(found, name, lambda name=name, value=value: _needs(found.needs, name, value), found.needs)
    tags = _words(form.get("tags"))
    found.priority = _kept(found, "priority", lambda: _sent("priority", int(form.get("priority", "0") or "0")), 0)
    found.tags = _kept(found, "tags", lambda: _sent("tags", tags), ())
    return found


def check(form: Form, leader: Leader) -> tuple[Checked, Read]:
    """Whether the form can be sent, and what it would come to."""
    found = read(form)
    if found.errors or found.suite is None:
        return Checked(ok=False, errors=found.errors), found
    kind = form.get("kind")
    try:
        document = submissions.document_of(found.suite)
        wrong, cases = submissions.problems(document, found.overrides, found.needs)
    except InputError as error:
        return Checked(ok=False, errors={_field(kind): str(error)}), found
    if wrong:
        return Checked(ok=False, errors=_placed(wrong, kind, form, found.overrides)), found
    titles = listed(list(dict.fromkeys(f"{case.benchmark} {case.title}".strip() for case in cases)), most=3)
    message = f"{counted(len(cases), 'case')}: {titles}. {_who_can(leader, found.needs)}"
    return Checked(ok=True, cases=len(cases), message=message), found


def _read_work(form: Form, found: Read) -> None:
    kind = form.get("kind")
    if kind == "benchmark":
        name = form.get("benchmark")
        benchmark = registry().entries.get(name)
        if benchmark is None:
            found.errors["benchmark"] = str(unknown("benchmark", name[:100], registry().entries))
            return
        typed = {
            key.removeprefix(PREFIX): value.strip()
            for key, value in form.values.items()
            if key.startswith(PREFIX) and value.strip()
        }
        values, errors = read_parameters(typed, benchmark.Parameters)
        found.errors |= {PREFIX + key: message for key, message in errors.items()}
        found.suite = {"name": name, "cases": [{"benchmark": name} | values]}
    elif kind == "yaml":
        document = _kept(found, "yaml", lambda: read_text(form.values.get("yaml", ""), "the suite"), None)
        if not isinstance(document, dict) and "yaml" not in found.errors:
            found.errors["yaml"] = "a suite is a mapping with 'name' and 'cases'"
        found.suite = document if isinstance(document, dict) else None
    else:
        found.suite = form.get("suite")
        found.overrides = _kept(found, "set", lambda: read_settings(form.get("set")), {})


def _kept(found: Read, field: str, made: Any, otherwise: Any) -> Any:
    """What a field gives, or otherwise its error at the field."""
    try:
        return made()
    except InputError as error:
        found.errors[field] = str(error)
    except ValidationError as error:
        found.errors[field] = in_words(error.errors()[0])
    except ValueError:
        found.errors[field] = "this is not a whole number"
    return otherwise


def _needs(known: MachineNeeds, name: str, value: Any) -> MachineNeeds:
    return MachineNeeds.model_validate(known.model_dump() | {name: value})


def _sent(name: str, value: Any) -> Any:
    """A field as the API takes it."""
    return getattr(JobRequest.model_validate({"id": "a", "suite": "quick", name: value}), name)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def _field(kind: str) -> str:
    return kind if kind in get_args(Kind) else ""


def _placed(problems: list[InputError], kind: str, form: Form, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Each problem at the field that it is about, or at the field of the whole suite."""
    errors: dict[str, list[str]] = {}
    for problem in problems:
        own = f"{PREFIX}{problem.key}"
        if kind == "benchmark" and own in form.values:
            field, message = own, problem.message
        elif _is_overridden(problem.key, overrides):
            field, message = "set", problem.message
        else:
            where = f"entry {problem.case}: " if problem.case and kind != "benchmark" and len(problems) > 1 else ""
            field, message = _field(kind), f"{where}{submissions.message_of(problem)}"
        errors.setdefault(field, []).append(message)
    return {field: "; ".join(messages) for field, messages in errors.items()}


def _is_overridden(key: str | None, overrides: Mapping[str, Any]) -> bool:
    return key is not None and any(path == key or path.endswith(f".{key}") for path in overrides)


def _who_can(leader: Leader, needs: MachineNeeds) -> str:
    """How many of the machines that are here could run it."""
    followers = leader.followers()
    able = sum(could_run(state, needs) for state in followers)
    if not followers:
        return "No machine is here yet; the job will wait for one."
    told = f"{able} of the {counted(len(followers), 'machine')} here can run it"
    if len(followers) == 1:
        told = f"{followers[0].id} can run it" if able else f"{followers[0].id}, the only machine here, cannot run it"
    return f"{told}; the job will wait for {'more' if able else 'another'}." if able < needs.nodes else f"{told}."


def routes(router: APIRouter, site: Site) -> None:
    """`/submit`: the form, what is wrong with it as one types, and the job."""

    def show(request: Request, submission: Submission, status: int = 200) -> Response:
        return site.answer(request, "submit.html", submission, scripts=["submit.js"], status=status)

    @router.get("/submit")
    def form(request: Request, kind: Kind = "suite", name: str = "") -> Response:
        known = {key: value for key, value in request.query_params.items() if key in ("suite", "benchmark")}
        return show(request, empty(site, kind, name, known, secrets.token_hex(6)))

    @router.post("/submit/check")
    def checked(request: Request, form: Filled) -> Response:
        site.check_form(request, form, Scope.SUBMIT)
        return JSONResponse(check(form, site.leader)[0].model_dump(mode="json"))

    @router.post("/submit")
    def submit(request: Request, form: Filled) -> Response:
        visitor = site.check_form(request, form, Scope.SUBMIT)
        result, found = check(form, site.leader)
        if result.ok and found.suite is not None:
            try:
                job = _submitted(site, found, str(_sent("id", form.get("id"))), visitor.name)
            except StoreError as error:  # nothing was taken: what was typed must not be lost, too
                result = Checked(ok=False, errors={"": str(error)})
            else:
                request.state.subject = job.id
                return RedirectResponse(f"/jobs/{job.id}", 303)
        kind: Any = form.get("kind")
        values = {key: value for key, value in form.values.items() if key not in ("token", "id", "kind")}
        submission = empty(site, kind if kind in get_args(Kind) else "suite", "", values, form.get("id"))
        return show(request, _marked(submission, result), 503 if "" in result.errors else 422)


def _submitted(site: Site, found: Read, job_id: str, by: str) -> Job:
    """The job that the leader took; a form that was sent, changed and sent again is another one."""
    assert found.suite is not None
    if site.leader.trouble:
        raise StoreError(site.leader.trouble)
    request = JobRequest(
        id=job_id,
        suite=found.suite,
        overrides=found.overrides,
        needs=found.needs,
        priority=found.priority,
        tags=found.tags,
    )
    job = submissions.new_job(request, by)
    try:
        return site.leader.submit(job)[0]
    except InputError:
        return site.leader.submit(job.model_copy(update={"id": secrets.token_hex(6)}))[0]


def _marked(submission: Submission, checked: Checked) -> Submission:
    submission.checked = checked
    for group in submission.groups:
        for entry in group.entries:
            entry.error = checked.errors.get(PREFIX + entry.name, "")
            group.is_folded = group.is_folded and not entry.error
    return submission


PAGE = Page("/submit", routes, title="Submit", order=20)
