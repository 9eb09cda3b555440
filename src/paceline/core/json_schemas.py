"""JSON schemas of what people write and programs read: suites, for completion in editors, and records.

They are made from the definitions that check the values, so that a new parameter is in them by itself. A suite that a
schema takes may still be refused: what depends on several values, or on the machine, only `--dry-run` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from paceline.core.benchmark import Benchmark
from paceline.core.case import RENAMED
from paceline.core.parameters import EachPart, Parameters
from paceline.core.quantity import PATTERNS, read_latency
from paceline.core.record import Record
from paceline.core.run import Run
from paceline.core.suite import CaseKeys, part_of

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"  # that editors know
_SHOWN = ("title", "description", "default", "deprecated")  # what says something to people, and checks nothing


def suite_schema(benchmarks: Mapping[str, type[Benchmark[Any]]]) -> Schema:
    """Suites of these benchmarks."""
    definitions: Schema = {}
    chosen: list[Schema] = []
    for name, benchmark in benchmarks.items():
        definitions[name] = _case_schema(name, benchmark, definitions)
        chosen.append({"if": _has("benchmark", name), "then": {"$ref": f"#/$defs/{name}"}})
    words = [{"const": name, "description": one.summary} for name, one in benchmarks.items()]
    case: Schema = {
        "type": "object",
        "required": ["benchmark"],
        "properties": {"benchmark": {"description": "Which benchmark to run", "oneOf": words}},
        "allOf": chosen,
    }
    return {
        "$schema": DIALECT,
        "title": "A suite of Paceline",
        "type": "object",
        "required": ["name", "cases"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "description": "What the suite is called"},
            "description": {"type": "string", "description": "What it is for"},
            "cases": {"type": "array", "minItems": 1, "items": case, "description": "What is measured, in this order"},
        },
        "$defs": definitions,
    }


def record_schema() -> Schema:
    """One line of `paceline report --jsonl`: a record, with the run that it belongs to."""
    made = Record.model_json_schema(mode="serialization", schema_generator=_WrittenSchema)
    run = Run.model_json_schema(mode="serialization", schema_generator=_WrittenSchema)
    definitions = made.pop("$defs") | run.pop("$defs")
    del run["properties"]["cases"]
    run["required"] = [name for name in run["required"] if name != "cases"]
    made["properties"]["run"] = run
    made["required"].append("run")
    return {"$schema": DIALECT, **made, "title": "A record of Paceline", "$defs": definitions}


def _case_schema(name: str, benchmark: type[Benchmark[Any]], definitions: Schema) -> Schema:
    """An entry of a suite for one benchmark: its parameters, and the keys that every entry takes."""
    made = _matrix_schema(benchmark.Parameters, name, definitions)
    keys = _matrix_schema(CaseKeys, "case", definitions)
    earlier = {
        old: {**made["properties"][new], "description": f"The earlier name of '{new}'", "deprecated": True}
        for old, new in RENAMED.get(name, {}).items()
    }
    named = {"benchmark": {"const": name, "description": benchmark.summary}}
    return {
        **made,
        "description": benchmark.summary,
        "properties": {**keys["properties"], **made["properties"], **earlier, **named},
        "required": ["benchmark", *made.get("required", [])],
    }


def _matrix_schema(model: type[BaseModel], prefix: str, definitions: Schema) -> Schema:
    """The fields of a model, each of which may also be a list of values, which stands for several cases."""
    made = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}", schema_generator=TypedSchema)
    inner = {f"{prefix}.{name}": one for name, one in made.pop("$defs", {}).items()}
    definitions |= inner
    for name, field in model.model_fields.items():
        part = part_of(field.annotation)
        if part is not None:
            place = f"{prefix}.{part.__name__}"
            whole = _choice_schema(part, _matrix_schema(part, prefix, definitions), prefix, definitions)
            definitions[place] = _with_word(part, whole)
        one = made["properties"][name]
        shown = {key: one[key] for key in _SHOWN if key in one and key != "title"}
        value = {key: content for key, content in one.items() if key not in _SHOWN}
        if any(isinstance(mark, EachPart) for mark in field.metadata):
            value = {"anyOf": [value, {"const": "each"}]}
        made["properties"][name] = {**shown, "anyOf": [value, {"type": "array", "minItems": 1, "items": value}]}
    return made


def _choice_schema(model: type[BaseModel], made: Schema, prefix: str, definitions: Schema) -> Schema:
    """A model that takes the fields of others, too, by what it has chosen."""
    others = model.choices() if issubclass(model, Parameters) else {}
    if not others:
        return made
    (key,) = model.model_fields  # what is chosen by
    default = model.model_fields[key].default
    chosen: list[Schema] = []
    for name, other in others.items():
        whole = _matrix_schema(other, f"{prefix}.{name}", definitions)
        known = {**whole, "properties": {**whole["properties"], key: True}}
        condition = _has(key, name)
        if name == default:
            condition = {"anyOf": [condition, {"not": {"required": [key]}}]}
        chosen.append({"if": condition, "then": known})
    names = {"enum": list(others)}
    choice = {**made["properties"][key], "anyOf": [names, {"type": "array", "minItems": 1, "items": names}]}
    return {**made, "properties": {key: choice}, "allOf": chosen}


def _with_word(model: type[BaseModel], made: Schema) -> Schema:
    """A model, or the one word that may stand for it."""
    word = model.shorthand if issubclass(model, Parameters) else ""
    if not word:
        return made
    return {"if": {"type": "string"}, "then": made["properties"][word], "else": made}


def _has(key: str, value: str) -> Schema:
    return {"properties": {key: {"const": value}}, "required": [key]}


class TypedSchema(GenerateJsonSchema):
    """Values as a person writes them: `30s`, `64MiB`, a word where a list of words is meant."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if "properties" in inner:  # a whole model
            return inner
        reader: Callable[..., Any] = schema["function"]["function"]
        if reader in PATTERNS:
            text = {"type": "string", "pattern": PATTERNS[reader]}
            return text if reader is read_latency else {"anyOf": [inner, text]}
        if inner.get("type") == "array":  # one of its values instead of a list, or a text that is divided
            items = inner.get("items") or next(iter(inner.get("prefixItems", [{}])))
            return {"anyOf": [inner, items, {"type": "string"}]}
        return {"anyOf": [inner, {"type": "boolean"}]}  # YAML reads `on` and `off` so

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}  # a type of somebody else's that cannot be described takes anything

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return {"type": ["string", "number", "object"]}


class _WrittenSchema(GenerateJsonSchema):
    """Values as a record is written."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # a default may be a function

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"type": ["number", "null"]}  # NaN and infinity are null
