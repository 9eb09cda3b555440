"""What a user may say of a server that speaks plain HTTP: the request, its secrets, and what a good answer is."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator

from paceline.core.errors import InputError, nearest
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
        """With what a curl line says in its place; given values win."""
        if values.get("from_curl") is None:
            return values
        found = read_curl(str(values["from_curl"]))
        given = {name: value for name, value in values.items() if name != "from_curl"}
        own = _headers(given.get("header"))
        names = {_name_of(header) for header in own}
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


_DATA = {"-d", "--data", "--data-ascii", "--data-raw", "--data-binary", "--json"}
_AS_HEADER = {"-A": "User-Agent", "--user-agent": "User-Agent", "-e": "Referer", "--referer": "Referer"}
_AS_HEADER |= {"-b": "Cookie", "--cookie": "Cookie"}
_TAKEN = {"-X", "--request", "-H", "--header", "--url", *_DATA, *_AS_HEADER}
# They say how curl itself shows or waits for an answer.
_IGNORED = {"-s", "--silent", "-S", "--show-error", "-v", "--verbose", "-i", "--include", "-f", "--fail", "-N"}
_IGNORED |= {"--no-buffer", "--compressed", "--http1.1", "-g", "--globoff", "--no-progress-meter", "-#"}
_IGNORED_WITH_VALUE = {"-o", "--output", "-w", "--write-out", "-m", "--max-time", "--connect-timeout", "--retry"}
_REFUSED = {
    "-u": "put user:password in base64 into a variable and write -H 'Authorization: Basic $NAME'",
    "-F": "write the parts into a file and send it with --data-binary @FILE and its Content-Type",
    "-k": "certificates are always checked; use http:// or a valid certificate",
    "-L": "redirects are not followed; name the address itself",
    "-G": "write the query into the address",
    "-T": "use --data-binary @FILE with -X PUT",
    "--data-urlencode": "write the encoded text with --data-raw",
}
_LONG = {"--user": "-u", "--form": "-F", "--insecure": "-k", "--location": "-L", "--get": "-G", "--upload-file": "-T"}
_DROPPED = ("accept-encoding", "content-length", "connection", "te")  # the load generator's own affair


def read_curl(given: str) -> dict[str, Any]:
    """Address, method, path, headers and body of `curl ...`, or of a file that holds it."""
    words = _curl_words(given)
    method, body, urls, headers = None, [], [], []
    kinds = set()
    while words:
        word = words.pop(0)
        option, value = _curl_option(word)
        if option in _IGNORED:
            continue
        if option in _IGNORED_WITH_VALUE or option in _TAKEN:
            if value is None and not words:
                raise _curl_refusal(f"'{option}' has no value")
            value = words.pop(0) if value is None else value
        if option in ("-X", "--request"):
            method = value
        elif option in ("-H", "--header"):
            headers.append(str(value))
        elif option in _AS_HEADER:
            headers.append(f"{_AS_HEADER[option]}: {value}")
        elif option in _DATA:
            body.append(str(value))
            kinds.add(option)
        elif option == "--url" or not option:
            urls.append(str(value if option else word))
        elif option not in _IGNORED_WITH_VALUE:
            raise _unknown_curl_option(option)
    if len(urls) != 1:
        raise _curl_refusal(f"it has {len(urls)} addresses, and must have one")
    return _settings_of_curl(urls[0], method, headers, body, kinds)


def _curl_words(given: str) -> list[str]:
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"from_curl = '{given}': the file cannot be read: {error}"
            raise InputError("unreadable-file", message, key="server.from_curl", value=given) from None
    if "$'" in text:
        raise _curl_refusal("$'...' is a form of one shell: write the text in plain quotes, or into a file (-d @FILE)")
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=given.startswith("@"))
    except ValueError as error:
        raise _curl_refusal(f"{error}".lower()) from None
    if words[:1] == ["$"]:
        words.pop(0)
    if not words or Path(words[0]).name != "curl":
        raise _curl_refusal("it does not begin with curl")
    return words[1:]


def _curl_option(word: str) -> tuple[str, str | None]:
    """The option and the value that is joined to it; no option for an address."""
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        return option, value if equals else None
    if not word.startswith("-") or word == "-":
        return "", None
    if len(word) > 2:
        if word[:2] in _TAKEN:  # -XPOST
            return word[:2], word[2:]
        for letter in word[1:]:  # -sS
            if f"-{letter}" not in _IGNORED:
                return f"-{letter}", None
        return word[:2], None
    return word, None


def _settings_of_curl(
    url: str, method: str | None, headers: list[str], body: list[str], kinds: set[str]
) -> dict[str, Any]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if "@" in parts.netloc:
        raise _curl_refusal("its address holds a password: write -H 'Authorization: Basic $NAME'")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    found: dict[str, Any] = {"url": f"{parts.scheme}://{parts.netloc}", "path": path}
    headers = [header for header in headers if header.partition(":")[0].strip().lower() not in _DROPPED]
    names = {header.partition(":")[0].strip().lower() for header in headers}
    if body:
        files = [part for part in body if part.startswith("@")] if kinds != {"--data-raw"} else []
        if len(body) > 1 and files:
            raise _curl_refusal("several bodies of which one is a file: put all of it into one file")
        found["body"] = "&".join(body)
        usual = "application/json" if "--json" in kinds else "application/x-www-form-urlencoded"  # as curl does it
        headers += [] if "content-type" in names else [f"Content-Type: {usual}"]
    found |= {"header": headers} if headers else {}
    return found | ({"method": method} if method is not None else {})


def _unknown_curl_option(option: str) -> InputError:
    option = _LONG.get(option, option)
    if option in _REFUSED:
        return _curl_refusal(f"'{option}' is not taken: {_REFUSED[option]}")
    known = sorted(_TAKEN | _IGNORED | _IGNORED_WITH_VALUE)
    guess = nearest(option, known)
    return _curl_refusal(
        f"'{option}' is not an option that is known here" + (f"; did you mean '{guess}'?" if guess else "")
    )


def _curl_refusal(reason: str) -> InputError:
    # The line itself may hold a secret: it is not shown.
    example = "curl -X POST http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{\"x\": 1}'"
    message = f"from_curl: {reason}; expected is a line like\n  {example}"
    return InputError("not-a-curl-line", message, key="server.from_curl")
