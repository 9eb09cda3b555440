"""Turns runs, records and samples into rows and lines of JSON, and back: no bit of a number is lost, text is clean."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.record import Cause, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import Run, machine_key
from paceline.core.subject import Description
from paceline.core.text import check_depth, clean, clean_all

RUN = ("id", "name", "status", "started_at", "ended_at", "version", "session", "command", "tags", "environment")
RECORD = ("run_id", "case", "attempt", "outcome", "cause", "seconds", "facts", "warnings", "conditions", "description")
MEASUREMENT = ("metric", "scope", "at", "statistic", "summary", "derived_from", "work")

DESCRIPTION = tuple(Description.model_fields)  # of a record: its fields that describe it
_MEASUREMENT = TypeAdapter(Measurement)
_RECORD_FIELDS = set(Record.model_fields)
_OUTCOMES = {one.value: one for one in Outcome}
_set = object.__setattr__
_set_fields = vars(BaseModel)["__dict__"].__set__  # where a model keeps them
_Model = TypeVar("_Model", bound=BaseModel)
_FLOAT = "$float"  # JSON has no word for infinities and NaN
_SURROGATE = "\\ud"  # how the JSON of one begins; earlier versions stored halves of pairs, which are not text
_SIGNS = (_FLOAT, _SURROGATE)


def dumps(value: Any) -> str:
    """The value as strict JSON in ASCII, whatever it holds: what JSON has no form for becomes text."""
    return json.dumps(_plain(value))


def loads(text: str | bytes) -> Any:
    """The value that `dumps` was given."""
    if text in ("{}", "[]"):
        return {} if text == "{}" else []
    marked, unclean = (sign.encode() in text if isinstance(text, bytes) else sign in text for sign in _SIGNS)
    value = json.loads(text, object_hook=_restore if marked else None)
    return clean_all(value) if unclean else value


def pack(samples: Sequence[float] | NDArray[np.float64]) -> bytes:
    """Samples as `PackedSamples` has them."""
    return np.asarray(samples, dtype="<f8").tobytes()


def run_row(run: Run, runner: Mapping[str, Any]) -> dict[str, Any]:
    """A run as a row of `runs`; its cases are rows of their own."""
    return run.model_dump(exclude={"cases"}) | {"machine": machine_key(run.environment), "runner": runner}


def case_row(run_id: str, case: Case) -> dict[str, Any]:
    """A planned case as a row of `cases`."""
    return {"run_id": run_id, "case_index": case.index, "document": case.model_dump()}


def record_row(record: Record) -> dict[str, Any]:
    """A record as a row of `records`; its measurements are rows of their own."""
    row = record.model_dump(exclude={"measurements", *DESCRIPTION})
    return row | {
        "outcome": record.outcome.value,
        "case_index": record.case.index,
        "description": description_of(record),
    }


def description_of(record: Record) -> dict[str, Any]:
    """What a record says of itself, as a document; what it does not say is left out."""
    return record.model_dump(include=set(DESCRIPTION), exclude_defaults=True)


def measurement_rows(record_id: int, record: Record) -> list[dict[str, Any]]:
    """A record's measurements as rows of `measurements`."""
    return [
        _MEASUREMENT.dump_python(measurement, exclude={"samples"})
        | {
            "record_id": record_id,
            "position": position,
            "name": measurement.metric.name,
            "samples": pack(measurement.sample_array()),
        }
        for position, measurement in enumerate(record.measurements)
    ]


def to_record(measurements: list[Measurement], started_at: datetime, row: Mapping[str, Any]) -> Record:
    """The record of its measurements, its time and the columns `RECORD`, whose documents are still text.

    There may be a hundred thousand, so it is put together as `model_construct` does it, and without looking at each
    field: the columns have types and the documents were read, so that nothing is left to check. All fields are set and
    none can be added, so that all records may share the set of their names.
    """
    description = _description(row["description"])
    fields = {
        "run_id": row["run_id"],
        "case": case(row["case"]),
        "attempt": row["attempt"],
        "outcome": _OUTCOMES[row["outcome"]],
        "cause": read(Cause, row["cause"]) if row["cause"] is not None else None,
        "started_at": started_at,
        "seconds": row["seconds"],
        "measurements": measurements,
        "facts": loads(row["facts"]),
        "warnings": [RecordWarning.model_validate(warning) for warning in loads(row["warnings"])],
        "conditions": loads(row["conditions"]),
        **{name: getattr(description, name) for name in DESCRIPTION},
    }
    record = Record.__new__(Record)
    _set_fields(record, fields)
    _set(record, "__pydantic_fields_set__", _RECORD_FIELDS)
    _set(record, "__pydantic_extra__", None)
    _set(record, "__pydantic_private__", None)
    return record


def to_line(record: Record) -> str:
    """A record as one line of JSON."""
    return dumps(record.model_dump())


def from_line(line: str | bytes) -> Record:
    """The record of a line; ValueError when it is not one."""
    try:
        document = loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    check_depth(document)
    return Record.model_validate(document)


def read(kind: type[_Model], text: str) -> _Model:
    """A model from its JSON in one go; the way through Python is for what JSON has no word for."""
    is_plain = not any(sign in text for sign in _SIGNS)
    return kind.model_validate_json(text) if is_plain else kind.model_validate(loads(text))


@lru_cache(maxsize=4096)
def _description(text: str) -> Description:
    """The cases of a sweep say the same of themselves."""
    return read(Description, text)


@lru_cache(maxsize=4096)
def metric(text: str) -> Metric:
    """Many measurements share few metrics."""
    return read(Metric, text)


@lru_cache(maxsize=32_768)
def case(text: str) -> Case:
    """A case is kept with its run and with each of its records."""
    return read(Case, text)


def _plain(value: Any) -> Any:
    match value:
        case float():
            return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
        case None | bool() | int():
            return value
        case str():
            return clean(value)
        case Mapping():
            return {clean(str(key)): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case np.generic() | np.ndarray():
            return _plain(value.tolist())
        case date():
            return value.isoformat()
        case _:
            return clean(str(value))


def _restore(document: dict[str, Any]) -> Any:
    if len(document) == 1 and document.get(_FLOAT) in ("inf", "-inf", "nan"):
        return float(document[_FLOAT])
    return document
