"""Routes of what a job can name, and of what is wrong with a suite as somebody types it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import APIRouter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from paceline.benchmarks import registry
from paceline.core.errors import InputError
from paceline.runner.suite_file import read_yaml, shipped
from paceline.service import admission
from paceline.service.api import documents as d
from paceline.service.api import submissions

_TITLES = 20


def router() -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["catalogue"])

    @made.get("/benchmarks")
    def benchmarks() -> d.BenchmarksPage:
        """What a case can be, with the schema of its parameters."""
        return d.BenchmarksPage(benchmarks=list(_benchmarks()))

    @made.get("/suites")
    def suites() -> d.SuitesPage:
        """Suites that ship with Paceline, and those of other packages here."""
        return d.SuitesPage(suites=list(_suites()))

    @made.post("/validate")
    def validate(sent: d.ValidateSent) -> d.Verdict:
        """Whether a suite would be taken, and what is wrong with it, entry by entry."""
        try:
            document = _document(sent)
        except InputError as error:
            return _verdict([submissions.Problem(str(error))], [])
        problems, cases = submissions.problems(document, sent.overrides, sent.needs)
        return _verdict(problems, [case.title or case.benchmark for case in cases])

    return made


def _document(sent: d.ValidateSent) -> dict[str, Any]:
    if (sent.suite is None) == (sent.text is None):
        raise InputError("give the suite either as 'suite' or, as YAML, as 'text'")
    if sent.suite is not None:
        return submissions.document_of(sent.suite)
    admission.check_yaml(sent.text or "")
    found = read_yaml(sent.text or "", "the suite")
    if not isinstance(found, dict):
        raise InputError("a suite is a mapping with 'name' and 'cases'")
    return found


def _verdict(problems: list[submissions.Problem], titles: list[str]) -> d.Verdict:
    views = [
        d.ProblemView(message=one.message, case=one.case, key=one.key, suggestion=one.suggestion) for one in problems
    ]
    return d.Verdict(ok=not problems, problems=views, cases=len(titles), titles=titles[:_TITLES])


@lru_cache(maxsize=1)
def _benchmarks() -> tuple[d.BenchmarkView, ...]:
    return tuple(
        d.BenchmarkView(
            name=name,
            summary=benchmark.summary,
            category=benchmark.category,
            primary=benchmark.primary,
            metrics=[metric.model_dump(mode="json") for metric in benchmark.metrics],
            parameters=benchmark.Parameters.model_json_schema(schema_generator=_Schema),
            refused=admission.never_taken(name, benchmark.Parameters),
        )
        for name, benchmark in sorted(registry().entries.items())
    )


@lru_cache(maxsize=1)
def _suites() -> tuple[d.SuiteView, ...]:
    found = []
    for name in sorted(shipped()):
        document = submissions.document_of(name)
        found.append(d.SuiteView(name=name, description=str(document.get("description", "")), suite=document))
    return tuple(found)


class _Schema(GenerateJsonSchema):
    """A type that cannot be described takes anything."""

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}
