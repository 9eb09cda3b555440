"""The form that submits a job: a suite that ships, one benchmark with its parameters, or a suite as YAML."""

from __future__ import annotations

import re
import secrets
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from starlette.responses import JSONResponse, RedirectResponse

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import is_micro
from paceline.core.errors import InputError, StoreError, unknown
from paceline.core.parameters import MeasuringParameters, in_words, refusal
from paceline.core.quantity import show_count
from paceline.core.suite import CaseKeys, parts_of, takes_list
from paceline.report.text import humanize, one_line
from paceline.runner.suite_file import load_suite, shipped
from paceline.service import admission
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Caller, Scope
from paceline.service.jobs import Job, JobRequest, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.placement import could_run
from paceline.service.quotas import OVER_QUOTA
from paceline.web.job_history import counted, listed
from paceline.web.pages import Page
from paceline.web.site import Form, SentForm, Site

PREFIX = "p."  # before the name of a parameter, so that it cannot be taken for a field of the form itself
_SETTING = re.compile(r"\s*\w+=")
_CASE_KEYS = ("target", "ranks", "repeat", "timeout")


class Entry(BaseModel):
    """One field of the form."""

    name: str  # of the parameter; a part of one is `load.rate`
    title: str
    help: str
    default: str
    choices: list[str]
    is_switch: bool = False
    is_required: bool = False
    value: str = ""
    error: str = ""


class Group(BaseModel):
    """Fields that belong together; those of a parameter with parts have its name."""

    title: str
    entries: list[Entry]
    is_folded: bool = False


def groups_of(parameters: type[BaseModel]) -> list[Group]:
    """The fields of a benchmark: its own, those of its parameters that have parts, and how it is measured."""
    plain, nested, measuring = [], [], []
    for name, field in parameters.model_fields.items():
        parts = parts_of(field.annotation, {})
        if parts is not None:
            nested.append(
                Group(title=humanize(name), entries=[_entry(f"{name}.{part}", one) for part, one in parts.items()])
            )
        elif name in MeasuringParameters.model_fields:
            measuring.append(_entry(name, field))
        else:
            plain.append(_entry(name, field))
    where = [_entry(name, CaseKeys.model_fields[name]) for name in _CASE_KEYS]
    groups = [
        Group(title="", entries=plain),
        *nested,
        Group(title="How long and how exactly", entries=measuring, is_folded=True),
        Group(title="Where and how often", entries=where, is_folded=True),
    ]
    return [group for group in groups if group.entries]


def read_parameters(typed: Mapping[str, str], parameters: type[BaseModel]) -> tuple[dict[str, Any], dict[str, str]]:
    """What was typed, as an entry of a suite, and what is wrong with each field."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, text in typed.items():
        try:
            value = read_value(text)
        except InputError as error:
            errors[name] = str(error)
            continue
        whole, _, part = name.partition(".")
        if problem := _problem(whole, part, value, CaseKeys if name in _CASE_KEYS else parameters):
            errors[name] = problem
        if not part:
            values[name] = value
        elif isinstance(parts := values.setdefault(whole, {}), dict):
            parts[part] = value
        else:
            errors[name] = f"'{whole}' is given as a whole as well: leave one of them out"
    return values, errors


def read_value(text: str) -> Any:
    """One value, or a list where there are several; brackets and braces are YAML."""
    if len(text) > admission.LONGEST_TEXT:
        message = f"it has {len(text):,} characters; at most {admission.LONGEST_TEXT:,} are taken"
        raise InputError("too-many-characters", message)
    if text.lstrip().startswith(("[", "{")):
        return admission.read_document(text, "the value")
    parts = [part.strip() for part in split_values(text) if part.strip()]
    return parts[0] if len(parts) == 1 else parts


def split_values(text: str) -> list[str]:
    """The texts between commas, but for commas within brackets and before a setting, as in fc:layers=2,width=64.

    From the end, so that whether a comma is within brackets is known when it is met.
    """
    parts: list[str] = []
    end, is_within = len(text), False
    for at in range(len(text) - 1, -1, -1):
        letter = text[at]
        if letter in ")]}([{":
            is_within = letter in ")]}"
        elif letter == "," and not is_within and not _SETTING.match(text, at + 1):
            parts.append(text[at + 1 : end])
            end = at
    return [text[:end], *reversed(parts)]


def read_settings(text: str) -> dict[str, Any]:
    """Lines of `key=value`, as overrides of a suite."""
    settings = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or not value.strip():
            message = f"'{one_line(line)[:60]}': write it as key=value or benchmark.key=value"
            raise InputError("not-a-setting", message, key="set", value=line)
        settings[key.strip().replace("-", "_")] = read_value(value.strip())
    return settings


def _problem(whole: str, part: str, value: Any, model: type[BaseModel]) -> str:
    """What is wrong with a field, or a part of it, by itself; of a list that makes several cases, with each value."""
    field = model.model_fields.get(whole)
    if field is None:
        return ""  # the suite as a whole is checked, too, and knows the nearest name
    if part:
        field = (parts_of(field.annotation, {}) or {}).get(part)
    # A part that only some alternatives have is left to the check of the whole suite.
    is_several = isinstance(value, list) and field is not None and not takes_list(field.annotation)
    for one in value if is_several else [value]:
        try:
            model.model_validate({whole: {part: one} if part else one})
        except ValidationError as error:
            complaints = [one for one in error.errors() if one["loc"][:1] == (whole,)]
            complaints = [one for one in complaints if not part or part in one["loc"]]
            if complaints:
                return refusal(complaints, model).message
    return ""


def _entry(name: str, field: FieldInfo) -> Entry:
    is_switch = field.annotation is bool
    default = "" if field.is_required() or field.default is None else field.default
    return Entry(
        name=name,
        title=humanize(name.rpartition(".")[2]),
        help=one_line(field.description or ""),
        default=_default_text(default),
        choices=["yes", "no"] if is_switch else _choices(field.annotation),
        is_switch=is_switch,
        is_required=field.is_required(),
    )


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return show_count(default)
    if isinstance(default, BaseModel):
        return ""
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return "" if "object at 0x" in str(default) or str(default) == "PydanticUndefined" else str(default)


def _choices(annotation: Any) -> list[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin in (Union, types.UnionType, list, tuple):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


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
    followers = site.leader.followers()
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
        gpus_here=sorted({name for state in followers for name in state.gpus}),
        labels_here=sorted({label for state in followers for label in state.labels}),
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


def routes(router: APIRouter, site: Site) -> None:
    """`/submit`: the form, what is wrong with it as one types, and the job."""

    def show(request: Request, submission: Submission, status: int = 200) -> Response:
        return site.answer(request, "submit.html", submission, scripts=["submit.js"], status=status)

    @router.get("/submit")
    @needs(Scope.READ)
    def form(request: Request, kind: Kind = "suite", name: str = "") -> Response:
        values = {key: value for key, value in request.query_params.items() if key in ("suite", "benchmark")}
        return show(request, form_page(site, kind, name, values, secrets.token_hex(6)))

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
