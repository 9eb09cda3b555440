"""One shape for everything that goes wrong: a code and fields for programs; a message and what to do for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from paceline.core.errors import InputError, PacelineError, StoreError
from paceline.core.parameters import in_words


class ErrorDetail(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="What is wrong, for programs: words joined by hyphens")
    message: str = Field(description="What is wrong, for people")
    remedy: str | None = None
    case: int | None = Field(default=None, description="Which case of the suite, from 1")
    key: str | None = Field(default=None, description="The parameter, as it is written in a suite")
    value: str | int | float | bool | None = Field(default=None, description="What it was given")
    suggestion: str | None = Field(default=None, description="What was most likely meant")


class ErrorBody(BaseModel):
    """Every answer that is not the one that was asked for."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


@dataclass(eq=False)
class Refused(PacelineError):
    """An answer with a status of its own."""

    status: int
    code: str
    message: str
    remedy: str | None = None
    headers: dict[str, str] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # more of an ErrorDetail

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: InputError, status: int = 422) -> Self:
        """The answer to input that was refused, with its details."""
        value: Any = error.value if isinstance(error.value, str | int | float | bool) else None
        if isinstance(value, float) and not math.isfinite(value):  # JSON has no form for it
            value = None
        fields = {"case": error.case, "key": error.key, "value": value, "suggestion": error.suggestion}
        return cls(status, error.code, str(error), fields=fields)

    def answer(self) -> JSONResponse:
        """The answer itself."""
        detail = ErrorDetail(code=self.code, message=self.message, remedy=self.remedy, **self.fields)
        return JSONResponse(ErrorBody(error=detail).model_dump(exclude_none=True), self.status, headers=self.headers)


EXPECTED = (Refused, InputError, StoreError, RequestValidationError, HTTPException)  # that have an answer of their own
NOT_FOUND = "not-found"
_INVALID = {"extra_forbidden": ("unknown-key", "is not a known key"), "missing": ("missing-key", "is missing")}
MEANINGS = {
    400: "The request cannot be read",
    401: "No token, or one that is not known here or has expired",
    403: "The token does not reach so far, or a browser was sent here by another site",
    404: "There is nothing of this name",
    405: "This cannot be done here",
    408: "The body did not arrive in time",
    409: "It contradicts what exists already",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "It was read, and is refused",
    429: "Too many requests; Retry-After says when to come again",
    503: "The leader cannot store anything just now",
}


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How these answers look, for the description of the API."""
    return {status: {"model": ErrorBody, "description": MEANINGS[status]} for status in statuses}


def not_found(kind: str, name: str) -> Refused:
    """The answer to an unknown name."""
    return Refused(404, NOT_FOUND, f"there is no {kind} '{name}'")


def install(app: FastAPI) -> None:
    """Answer every error in the one shape."""

    async def answer(_: Request, error: Exception) -> JSONResponse:
        return refused(error).answer()

    for kind in EXPECTED:
        app.add_exception_handler(kind, answer)


def refused(error: Exception) -> Refused:
    """The answer to an error."""
    match error:
        case Refused():
            return error
        case InputError():
            return Refused.of(error)
        case StoreError():
            return unavailable(str(error))
        case HTTPException():
            code = {404: NOT_FOUND, 405: "not-allowed"}.get(error.status_code, "refused")
            return Refused(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))
        case RequestValidationError():
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"][1:])
            if first["type"] == "json_invalid":
                reason = first.get("ctx", {}).get("error", in_words(first))
                return Refused(400, "unreadable", f"the body is not JSON: {reason}")
            code, message = _INVALID.get(first["type"], ("invalid-value", in_words(first)))
            return Refused(422, code, f"'{key}': {message}" if key else message, fields={"key": key or None})
    return defect(error)


def defect(error: Exception) -> Refused:
    """The answer when something here is wrong; why is for the log alone."""
    return Refused(500, "defect", f"the leader met a defect of its own: {type(error).__name__}", "its log says more")


def unavailable(message: str) -> Refused:
    """Nothing can be stored just now: a full disk, a lost database."""
    return Refused(503, "unavailable", message, "nothing was taken: send it again later", {"Retry-After": "5"})
