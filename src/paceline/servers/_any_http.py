"""What a user may say of a server that speaks plain HTTP: the request, its secrets, and what a good answer is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import field_validator

from paceline.core.errors import InputError
from paceline.core.network import FromNetwork
from paceline.load.expected import Expected, read_condition, read_status
from paceline.servers.base import ServerSettings

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
MOST_INLINE = 16_384  # characters of a body that is kept with the results
_PERSONAL = FromNetwork(never="says what is sent, which only a person at the machine may", is_one_value=True)
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEADER = re.compile(rf"({_NAME}):[ \t]*(.*?)[ \t]*")
_SECRET_NAME = re.compile("auth|cookie|key|token|secret|passw|credential|session|signature", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_REFERENCE = r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)"
# A scheme, the names of cookies, and references: no secret itself.
_WITHOUT_SECRET = re.compile(rf"(?:[A-Za-z-]{{1,20}} )?(?:[\w.-]+=)?{_REFERENCE}(?:; ?[\w.-]+={_REFERENCE})*")
_QUERY = re.compile(r"([?&])([^=&]*)=([^&]*)")
_OWN = {"content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}


class AnyHttpSettings(ServerSettings):
    """The request of wire http, and what counts as a good answer to it."""

    method: Method | None = None
    """http: the method; unset is POST with a body and GET without one"""
    path: Annotated[str | None, _PERSONAL] = None
    """http: what follows the address, with a query if there is one, like /predict?top=5"""
    header: Annotated[tuple[str, ...], _PERSONAL] = ()
    """http: a header, like 'X-Team: vision'; repeat it for more; $NAME is read from the environment by what sends it"""
    body: Annotated[str | None, _PERSONAL] = None
    """http: what is sent, or @FILE; {{index}}, {{random}}, {{text}} and {{input}} are filled in before the load"""
    order: Literal["random", "in-turn"] = "random"
    """http: how the lines of requests.dataset follow each other"""
    expect_status: Annotated[tuple[str, ...], _PERSONAL] = Expected.status
    """http: statuses of good answers, like 200 or 200-299"""
    expect_json: Annotated[tuple[str, ...], _PERSONAL] = ()
    """http: a JSON path that good answers have, like scores[0].name, or with its value, like label=cat"""
    expect_text: Annotated[str | None, _PERSONAL] = None
    """http: a regular expression that is found in good answers"""
    from_curl: Annotated[str | None, _PERSONAL] = None
    """http: a curl command line to take the address and all of the above from, or @FILE"""
    openapi: Annotated[str | None, _PERSONAL] = None
    """http: an OpenAPI document, a file or an address, to take them from"""
    operation: Annotated[str | None, _PERSONAL] = None
    """http: which operation of it: its operationId, or like 'POST /predict'"""

    IMPORTED: ClassVar[tuple[str, ...]] = ("from_curl", "openapi", "operation")

    @classmethod
    def read(cls, values: Mapping[str, Any], *, is_typed: bool = False) -> Self:
        try:
            return super().read(values, is_typed=is_typed)
        except InputError as error:
            error.value = None if error.key in ("header", "path") else error.value  # it may be a secret
            raise

    @field_validator("header", "expect_status", "expect_json", mode="before")
    @classmethod
    def _one_or_several(cls, given: object) -> object:
        if isinstance(given, Mapping):
            return _headers(given)
        several = given if isinstance(given, list | tuple) else (given,)
        return tuple(str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in several)

    @field_validator("path")
    @classmethod
    def _is_path(cls, path: str | None) -> str | None:
        if path is None:
            return None
        for _, name, value in _QUERY.findall(path):
            if _SECRET_NAME.search(name) and _VARIABLE.fullmatch(value) is None:
                message = f"{name} in the query is a secret, and would be kept with the results"
                raise ValueError(f"{message}: put it into an environment variable and write {name}=$NAME")
        if not path.startswith("/") or "#" in path or not (path.isascii() and path.isprintable()) or " " in path:
            raise ValueError(f"'{path}' is not a path; write it like /predict or /predict?top=5, without spaces")
        return path

    @field_validator("header")
    @classmethod
    def _are_headers(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        for header in headers:  # whose value may be a secret: no message shows it
            parts = _HEADER.fullmatch(header)
            if parts is None or not (parts[2].isascii() and parts[2].isprintable()):
                shown = header.partition(":")[0][:40] if ":" in header else "one without a colon"
                raise ValueError(f"{shown!r} is not a header; write it like 'X-Team: vision', in ASCII")
            name, value = parts.groups()
            if name.lower() in _OWN:
                raise ValueError(f"{name} is set by the load generator; leave it out")
            if _SECRET_NAME.search(name) and _WITHOUT_SECRET.fullmatch(value) is None:
                scheme = "Bearer " if name.lower() == "authorization" else ""
                raise ValueError(
                    f"the value of {name} is a secret, and would be kept with the results: put it into an environment "
                    f"variable and write '{name}: {scheme}$NAME', in single quotes"
                )
        return headers

    @field_validator("body")
    @classmethod
    def _is_short(cls, body: str | None) -> str | None:
        if body is not None and len(body) > MOST_INLINE:
            raise ValueError(f"a body of {len(body):,} characters belongs into a file: write @FILE")
        return body

    @field_validator("expect_status")
    @classmethod
    def _are_statuses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            read_status(one)
        return given

    @field_validator("expect_json")
    @classmethod
    def _are_conditions(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            read_condition(one)
        return given

    @field_validator("expect_text")
    @classmethod
    def _is_pattern(cls, given: str | None) -> str | None:
        try:
            re.compile(given or "")
        except re.error as error:
            raise ValueError(f"'{given}' is not a regular expression: {error}") from None
        return given

    @classmethod
    def written_out(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """With what a curl line or an OpenAPI document says in the place of its name; given values win."""
        curl, document = values.get("from_curl"), values.get("openapi")
        given = {name: value for name, value in values.items() if name not in cls.IMPORTED}
        if curl is None and document is None:
            if values.get("operation") is not None:
                raise InputError("missing-key", "operation goes with openapi", key="server.operation")
            return values
        if curl is not None and document is not None:
            message = "from_curl and openapi say the same thing; give one of them"
            raise InputError("conflicting-keys", message, key="server.from_curl")
        own = _headers(given.get("header"))
        names = {_name_of(header) for header in own}
        if curl is not None:
            from paceline.servers._curl import read_curl

            found = read_curl(str(curl))
        else:
            from paceline.servers._openapi import read_operation

            found = read_operation(str(document), values.get("operation"), given, names)
        headers = [*(one for one in found.get("header", ()) if _name_of(one) not in names), *own]
        return {**found, **given, **({"header": headers} if headers else {})}

    @property
    def used(self) -> list[str]:
        """The settings among these that were given."""
        return sorted(self.model_fields_set & AnyHttpSettings.model_fields.keys() - ServerSettings.model_fields.keys())

    @property
    def effective_method(self) -> str:
        return self.method or ("GET" if self.body is None else "POST")

    @property
    def headers(self) -> dict[str, str]:
        """By their names in lower case, without the values of variables."""
        return {_name_of(header): header.partition(":")[2].strip() for header in self.header}

    @property
    def is_json(self) -> bool:
        """Whether what is sent says of itself that it is JSON."""
        return "json" in self.headers.get("content-type", "application/json").lower()

    def expected(self, hidden: tuple[str, ...] = ()) -> Expected:
        """What counts as a good answer."""
        return Expected(self.expect_status, self.expect_json, self.expect_text or "", hidden)

    def check_request(self) -> None:
        """Refuse, before anything starts, what single settings do not show to be wrong."""
        for name in (*_variables(self.path or ""), *(one for header in self.header for one in _variables(header))):
            if not os.environ.get(name):
                message = f"${name} is empty or not set, and a header or the path needs it: export {name}=..."
                raise InputError("missing-variable", message, key="server.header", value=f"${name}")
        if "accept-encoding" in self.headers and self.expected().needs_body:
            message = "answers are read as they come: leave out Accept-Encoding, or expect_json and expect_text"
            raise InputError("conflicting-keys", message, key="server.header")


def _headers(given: object) -> tuple[str, ...]:
    """What a user wrote of headers: one, several, or a mapping."""
    if isinstance(given, Mapping):
        return tuple(f"{name}: {value}" for name, value in given.items())
    return tuple(map(str, given)) if isinstance(given, list | tuple) else () if given is None else (str(given),)


def _name_of(header: str) -> str:
    return header.partition(":")[0].strip().lower()


def _variables(text: str) -> Iterator[str]:
    query = "".join(value for _, name, value in _QUERY.findall(text) if _SECRET_NAME.search(name))
    for braced, plain in _VARIABLE.findall(query if text.startswith("/") else text):
        yield braced or plain


def resolved(settings: AnyHttpSettings) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """Headers and path with the values of variables, in the process that sends, and what must not be shown."""
    hidden: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = os.environ.get(name, "").strip()
        if not value or not (value.isascii() and value.isprintable()):
            message = f"${name} is empty, not set, or not a single line of ASCII"
            raise InputError("missing-variable", message, key="server.header", value=f"${name}")
        hidden.append(value)
        return value

    headers = {name: _VARIABLE.sub(value_of, value) for name, value in settings.headers.items()}

    def query(match: re.Match[str]) -> str:
        start, name, value = match.groups()
        return f"{start}{name}={_VARIABLE.sub(value_of, value) if _SECRET_NAME.search(name) else value}"

    path = _QUERY.sub(query, settings.path or "")
    return headers, path, tuple(hidden)
