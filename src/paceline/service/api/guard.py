"""Checks every request before its route: who sends it, whether they may, how often, and how much.

Nothing passes that is not let through here, so that a new route is closed until it is listed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import SplitResult, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from paceline.core.errors import StoreError
from paceline.service.api.errors import Refused, defect, unavailable
from paceline.service.api.tokens import LOCAL, Caller, Scope, Tokens
from paceline.store.queue import AuditRow
from paceline.store.store import Store

PREFIX = "/api/v1"
HEALTH = f"{PREFIX}/health"
SIGN_IN = "/login"  # the page that a browser without a token is sent to
OPEN_PATHS = frozenset({HEALTH, SIGN_IN, "/logout"})  # served without a token
COOKIE = "paceline_token"  # for the pages, as a browser sends no header by itself
_SAFE = ("GET", "HEAD", "OPTIONS")
_ADMIN = re.compile(rf"{PREFIX}/(tokens|audit)(/.*)?")
_SUBMIT = re.compile(rf"{PREFIX}/(jobs|jobs/[^/]+/cancel|validate)")
_NOT_AUDITED = (f"{PREFIX}/validate", "/submit/check")  # they change nothing, and are sent with every key press
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MOST_KEYS = 10_000
_HARDENED = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "SAMEORIGIN", "Referrer-Policy": "same-origin"}
_HARDENED_API = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one client may use."""

    rate: float = 100.0  # requests per second
    burst: int = 500
    failures: float = 2.0  # per second and address, of requests with a wrong token or none
    failure_burst: int = 20
    body: int = 1 << 20  # bytes
    body_seconds: float = 30.0  # for a body to arrive


class Buckets:
    """A token bucket for each client; those who have sent nothing for longest are dropped first."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was so

    def take(self, key: str) -> float:
        """Take one; 0 if there was one, otherwise the seconds until there will be."""
        now = self._clock()
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        enough = level >= 1.0
        self._levels[key] = (level - 1.0 if enough else level, now)
        if len(self._levels) > _MOST_KEYS:
            self._levels.popitem(last=False)
        return 0.0 if enough else (1.0 - level) / self._rate


def needed(method: str, path: str) -> Scope:
    """The least scope for a request; what is not listed needs the highest."""
    if _ADMIN.fullmatch(path):
        return Scope.ADMIN
    if method in _SAFE:
        return Scope.READ
    is_page = not path.startswith("/api/")  # its forms say themselves what they need beyond this
    return Scope.SUBMIT if is_page or _SUBMIT.fullmatch(path) else Scope.ADMIN


class _Request(Request):
    """One request; the route shares its state."""

    @property
    def path(self) -> str:  # not that of the URL, which the sender makes up with the name of the host
        return str(self.scope["path"])

    @property
    def address(self) -> str:
        return self.client.host if self.client else "unknown"

    @property
    def is_write(self) -> bool:
        return self.method not in _SAFE

    @property
    def is_page(self) -> bool:
        return not self.path.startswith("/api/")


class Guard:
    """The middleware.

    A leader that `is_local` is bound to this machine alone: without tokens, whoever uses it may do everything.
    """

    def __init__(self, app: ASGIApp, store: Store, tokens: Tokens, is_local: bool, limits: Limits) -> None:
        self._app = app
        self._store = store
        self._tokens = tokens
        self._is_local = is_local
        self._limits = limits
        self._requests = Buckets(limits.rate, limits.burst)
        self._failures = Buckets(limits.failures, limits.failure_burst)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = _Request(scope, receive)
        is_begun = is_refused = False

        async def hardened(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HARDENED.items() if request.is_page else (_HARDENED | _HARDENED_API).items():
                    headers.setdefault(name, value)
                if request.is_write and request.path not in _NOT_AUDITED and not is_refused:
                    await self._audit(request, str(message["status"]))  # before anybody hears that it was done
            await send(message)

        try:
            await self._admit(request)
            body = await self._body(request)
            await self._app(scope, _replayed(body, receive), hardened)
        except Refused as refused:
            is_refused = True
            # Who was not let in, and which writes were refused; those who ask too often would fill the store.
            if refused.status in (401, 403) or (request.is_write and refused.status not in (429, 503)):
                await self._audit(request, f"{refused.status} {refused.code}")
            await refused.answer()(scope, receive, hardened)
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            if is_begun:
                raise
            await defect(error).answer()(scope, receive, hardened)

    async def _admit(self, request: _Request) -> None:
        """Find out who the caller is; Refused if they may not do this."""
        is_open = request.path in OPEN_PATHS
        try:
            caller = await self._caller(request)
        except StoreError as error:
            if not is_open:
                raise unavailable(str(error)) from None
            caller = None
        request.state.caller = caller
        wait = self._requests.take(caller.name if caller and caller is not LOCAL else request.address)
        if wait:
            raise _too_many(wait, "requests")
        if request.is_write:
            _refuse_other_sites(request.headers)
        if is_open:
            return
        if caller is None:
            raise self._unauthorized(request)
        scope = needed(request.method, request.path)
        if caller.scope < scope:
            raise Refused(
                403,
                "forbidden",
                f"the token '{caller.name}' has the scope {caller.scope.word}, and this needs {scope.word}",
                f"ask for another one: paceline token create NAME --scope {scope.word}",
            )

    async def _caller(self, request: _Request) -> Caller | None:
        token = _token(request)
        if token is not None:
            return await asyncio.to_thread(self._tokens.caller, token)
        has_tokens = bool(await asyncio.to_thread(self._tokens.rows))
        if has_tokens or not self._is_local or not is_loopback(request.address):
            return None
        _refuse_other_names(request.headers)
        return LOCAL

    def _unauthorized(self, request: _Request) -> Refused:
        wait = self._failures.take(request.address)
        if wait:
            return _too_many(wait, "requests without a valid token")
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if wants_page and request.is_page:
            location = f"{SIGN_IN}?next={quote(request.path, safe='')}"
            return Refused(303, "unauthorized", "sign in first", headers={"Location": location})
        token = _token(request)
        return Refused(
            401,
            "unauthorized",
            self._tokens.why_not(token) if token is not None else "this leader needs a token",
            "paceline token create NAME --scope submit, on the leader's machine; then --token-file or $PACELINE_TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )

    async def _body(self, request: _Request) -> bytes:
        """All of the body, if it is small enough and is JSON."""
        limits, body = self._limits, bytearray()
        size_message = f"the body has more than {limits.body:,} bytes"
        too_large = Refused(413, "too-large", size_message, headers={"Connection": "close"})
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limits.body:
            raise too_large
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limits.body:
                        raise too_large
        except ClientDisconnect:
            raise Refused(400, "unreadable", "the body ended too soon") from None
        except TimeoutError:
            raise Refused(408, "too-slow", "the body did not arrive in time", headers={"Connection": "close"}) from None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        allowed = (_JSON, _FORM) if request.is_page else (_JSON,)
        if body and request.is_write and kind not in allowed:
            raise Refused(415, "not-json", f"the body is '{kind[:60]}'", f"send it as {_JSON}")
        return bytes(body)

    async def _audit(self, request: _Request, outcome: str) -> None:
        caller = getattr(request.state, "caller", None)
        who = caller.name if caller else request.address
        what = f"{request.method} {request.path}"[:200]
        subject = str(getattr(request.state, "subject", ""))[:200]
        row = AuditRow(datetime.now(UTC), _printable(who), _printable(what), _printable(subject), outcome)

        def write() -> None:
            with self._store.queue.writing("note who did what") as writing:
                writing.note(row)

        try:
            await asyncio.to_thread(write)
        except StoreError as error:
            _log.error("not in the audit log: %s by %s, %s: %s", row.what, row.who, row.outcome, error)


def _token(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    return request.cookies.get(COOKIE) or None


def _refuse_other_names(headers: Mapping[str, str]) -> None:
    """Without tokens, a page on another site must not get here by giving its own name this machine's address."""
    host, remedy = headers.get("host", ""), "paceline token create NAME --scope submit"
    if not is_loopback(_split(f"//{host}").hostname or ""):
        message = f"without tokens the leader answers only at this machine's own names, not at '{host[:100]}'"
        raise Refused(403, "other-host", message, remedy)
    if any(header in headers for header in ("forwarded", "x-forwarded-for", "x-real-ip")):
        message = "without tokens the leader answers no proxy, as it could not tell who sends a request"
        raise Refused(403, "proxy", message, remedy)


def _refuse_other_sites(headers: Mapping[str, str]) -> None:
    """A page of another site may not make a browser write here, by the API or by a form."""
    origin, host = headers.get("origin"), headers.get("host", "").lower()
    is_other_origin = origin is not None and (not host or _split(origin).netloc.lower() != host)
    if is_other_origin or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "other-site", "a page of another site may not write here")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def is_loopback(name: str) -> bool:
    """Whether a name or address means this machine alone."""
    if name.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _too_many(seconds: float, what: str) -> Refused:
    return Refused(429, "too-many", f"too many {what}", headers={"Retry-After": str(max(1, round(seconds + 0.5)))})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the route; after it, whatever comes."""
    first = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(first, None) or await receive()

    return replay


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
