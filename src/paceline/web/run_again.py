"""What to type into the form to run something again that a run has measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from paceline.core.benchmark import BENCHMARKS
from paceline.core.case import Case, current_names
from paceline.core.grouping import group_by
from paceline.core.quantity import parse_duration, read_latency
from paceline.core.run import Run
from paceline.core.suite import parts_of

Values = Mapping[str, Any]


def needs_of(run: Run, cases: list[Case]) -> dict[str, str]:
    """The machine that these cases were measured on, as far as the form asks for it."""
    ranks = [case.ranks for case in cases if not case.target.startswith("cpu")]
    if not ranks:
        return {}
    names = {gpu.name for gpu in run.environment.gpus if gpu.name}
    return {"gpus": str(max(ranks))} | ({"gpu": names.pop()} if len(names) == 1 else {})


def suite_text(run: Run, cases: list[Case]) -> str:
    """These cases as a suite, without what is a default."""
    entries = []
    for same in group_by(cases, lambda case: case.key).values():
        repeat = {"repeat": len(same)} if len(same) > 1 else {}
        entries.append(_entry(same[0]) | repeat)
    document = {"name": run.name, "cases": entries}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))


def form_values(case: Case) -> dict[str, str]:
    """The parameters of a case that are not defaults, by field of the form."""
    benchmark = BENCHMARKS.registry().entries[case.benchmark]
    values: dict[str, str] = {}
    for name, value in _changed(case).items():
        field = benchmark.Parameters.model_fields.get(name)
        is_whole = field is None or parts_of(field.annotation, {}) is None or not isinstance(value, dict)
        parts = {name: value} if is_whole else {f"{name}.{part}": one for part, one in value.items()}
        values |= {part: _text(one) for part, one in parts.items() if one is not None}
    return values


def _entry(case: Case) -> dict[str, Any]:
    ranks = {"ranks": case.ranks} if case.ranks > 1 else {}
    return {"benchmark": case.benchmark} | _changed(case) | ranks


def _changed(case: Case) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    benchmark = BENCHMARKS.registry().entries.get(case.benchmark)
    given = current_names(case.benchmark, case.parameters)
    defaults = _defaults(benchmark.Parameters) if benchmark is not None else {}
    fields = benchmark.Parameters.model_fields if benchmark is not None else {}
    return _differing(given, defaults, fields)


def _differing(given: Values, defaults: Values, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """What differs from its default, also among the parts of a parameter; a time has its unit."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        field, default = fields.get(name), defaults.get(name)
        if value is None or (name in defaults and value == default):
            continue
        if isinstance(value, dict):
            parts = parts_of(field.annotation, value) if field is not None else None
            found[name] = _differing(value, default if isinstance(default, dict) else {}, parts or {})
        else:
            is_time = isinstance(value, int | float) and field is not None and _is_time(field)
            found[name] = f"{value!r}s" if is_time else value
    return found


def _is_time(field: FieldInfo) -> bool:
    """Whether it reads text like 5ms."""
    inner = [one for part in get_args(field.annotation) for one in getattr(part, "__metadata__", ())]
    validators = [one for one in (*field.metadata, *inner) if isinstance(one, BeforeValidator)]
    return any(one.func in (parse_duration, read_latency) for one in validators)


def _defaults(parameters: type[BaseModel]) -> dict[str, Any]:
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True), fallback=str)
        for name, field in parameters.model_fields.items()
        if not field.is_required()
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).strip()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
