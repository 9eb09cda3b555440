"""Checks every request before its route: who sends it, whether they may, how often, and how much.

Which scope a request needs, the route that will answer it says; one that says nothing needs the highest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from paceline.core.errors import StoreError
from paceline.service.api.errors import Refused, defect, unavailable
from paceline.service.api.tokens import IDLE, LOCAL, Caller, Scope, Sessions, Tokens
from paceline.service.credentials import is_followers
from paceline.store.queue import AuditRow
from paceline.store.store import Store

PREFIX = "/api/v1"
HEALTH = f"{PREFIX}/health"
SIGN_IN = "/login"  # the page that a browser without a token is sent to
COOKIE = "paceline_session"  # for the pages, as a browser sends no header by itself
AUDIT_AGE = timedelta(days=90)  # of what is deleted from the audit log
MOST_AUDITED = 100_000  # entries of the audit log
_PRUNED_EVERY = 500  # entries
_SAFE = ("GET", "HEAD", "OPTIONS")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_AUDITED = (f"{PREFIX}/validate", "/submit/check")  # they change nothing, and are sent with every key press
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MOST_KEYS = 10_000
_NEEDED = "needed_scope"  # attribute of an endpoint
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
    notes: float = 0.01  # per second and address, of such requests that the audit log has
    note_burst: int = 20
    body: int = 1 << 20  # bytes
    open_body: int = 4096  # bytes where no token is needed
    body_seconds: float = 30.0  # for a body to arrive
    at_once: int = 2  # requests that are worked on; the next one waits


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


class Turns:
    """So many requests of each client at once: whoever asks for much waits for themselves, not others for them."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._of_client: dict[str, tuple[asyncio.Semaphore, int]] = {}  # with how many have it or wait for it

    @property
    def clients(self) -> int:
        """How many have requests here."""
        return len(self._of_client)

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn; it is over when what this yields is called, or at the end."""
        semaphore, users = self._of_client.get(key, (asyncio.Semaphore(self._at_once), 0))
        self._of_client[key] = semaphore, users + 1
        is_mine = False

        def end() -> None:
            nonlocal is_mine
            if is_mine:
                is_mine = False
                semaphore.release()

        try:
            is_mine = await semaphore.acquire()
            yield end
        finally:
            end()
            users = self._of_client[key][1] - 1
            if users:
                self._of_client[key] = semaphore, users
            else:
                del self._of_client[key]


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Found = TypeVar("Found")


def needs(scope: Scope | None) -> Callable[[Endpoint], Endpoint]:
    """Declares the least scope of who may use a route; None is open to everybody."""

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEEDED, scope)
        return endpoint

    return declare


def needed(routes: Iterable[BaseRoute], scope: AsgiScope) -> Scope | None:
    """The least scope for a request, as the route says that the router will choose.

    Where none answers, but for an error, any token will do.
    """
    for route in routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            declared: Scope | None = getattr(found.get("endpoint"), _NEEDED, Scope.ADMIN)
            return declared
    return Scope.READ


class _Request(Request):
    """One request; the route shares its state."""

    @property
    def path(self) -> str:  # not that of the URL, which the sender makes up with the name of the host
        return str(self.scope["path"])

    @property
    def peer(self) -> str:
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

    def __init__(
        self,
        app: ASGIApp,
        store: Store,
        tokens: Tokens,
        sessions: Sessions,
        routes: Sequence[BaseRoute],
        is_local: bool,
        limits: Limits,
        proxies: Collection[str] = (),
    ) -> None:
        self._app = app
        self._store = store
        self._tokens = tokens
        self._sessions = sessions
        self._routes = routes
        self._is_local = is_local
        self._limits = limits
        self._proxies = frozenset(proxies)
        self._requests = Buckets(limits.rate, limits.burst)
        self._failures = Buckets(limits.failures, limits.failure_burst)
        self._notes = Buckets(limits.notes, limits.note_burst)
        self._turns = Turns(limits.at_once)
        self._audited = 0

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = _Request(scope, receive)
        request.state.address = self._address(request)
        request.state.is_https = self._is_https(request)
        is_begun = is_refused = False
        end_turn: Callable[[], None] = lambda: None  # noqa: E731

        async def hardened(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                end_turn()  # whoever reads slowly holds up nobody
                headers = MutableHeaders(scope=message)
                for name, value in _HARDENED.items() if request.is_page else (_HARDENED | _HARDENED_API).items():
                    headers.setdefault(name, value)
                if renewed := getattr(request.state, "renewed", None):
                    headers.append("Set-Cookie", session_cookie(request, renewed))
                is_done = request.is_write and request.path not in _NOT_AUDITED and not is_refused
                if is_done and (message["status"] < 400 or self._may_note(request)):
                    await self._audit(request, str(message["status"]))  # before anybody hears that it was done
            await send(message)

        try:
            await self._admit(request)
            body = await self._body(request)
            async with self._turns.turn(request.state.client_key) as end_turn:
                await self._app(scope, _replayed(body, receive), hardened)
        except Refused as refused:
            is_refused = True
            # Who was not let in, and which writes were refused; those who ask too often would fill the store.
            is_noted = refused.status in (401, 403) or (request.is_write and refused.status not in (429, 503))
            if is_noted and self._may_note(request):
                await self._audit(request, f"{refused.status} {refused.code}")
            await refused.answer()(scope, receive, hardened)
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            if is_begun:
                raise
            await defect(error).answer()(scope, receive, hardened)

    async def _admit(self, request: _Request) -> None:
        """Find out who the caller is; Refused if they may not do this."""
        request.state.caller = None
        if _CONTROL.search(request.path):
            raise Refused(400, "unreadable", "the path has control characters", headers={"Connection": "close"})
        scope = needed(self._routes, request.scope)
        request.state.is_open = scope is None
        try:
            caller = await self._caller(request)
        except StoreError as error:
            if scope is not None:
                raise unavailable(str(error)) from None
            caller = None
        request.state.caller = caller
        request.state.client_key = caller.name if caller and caller is not LOCAL else request.state.address
        if wait := self._requests.take(request.state.client_key):
            raise _too_many(wait, "requests")
        if request.is_write:
            _refuse_other_sites(request.headers)
        if scope is None:
            request.state.failed = lambda: self._failed(request)
            return
        if caller is None:
            raise self._unauthorized(request)
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
            return await self._look_up(self._tokens.caller, token)
        if cookie := request.cookies.get(COOKIE):
            session = self._sessions.read(cookie)
            caller = await self._look_up(self._tokens.of_session, session) if session else None
            request.state.renewed = self._sessions.renewed(session) if session and caller else None
            return caller
        had_tokens = any(not is_followers(row) for row in await self._look_up(self._tokens.rows))
        if had_tokens or not self._is_local or not is_loopback(request.peer):
            return None
        _refuse_other_names(request.headers)
        return LOCAL

    async def _look_up(self, find: Callable[..., Found], *what: Any) -> Found:
        """What the tokens say: at once if they were read a moment ago, otherwise in a thread."""
        return find(*what) if self._tokens.is_fresh else await asyncio.to_thread(find, *what)

    def _address(self, request: _Request) -> str:
        """Whose request it is: who is connected, or who a proxy that is trusted says is."""
        if request.peer in self._proxies:
            return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:45] or request.peer
        return request.peer

    def _is_https(self, request: _Request) -> bool:
        """Whether a browser got here by TLS; who pretends so on this machine only makes their own cookie stricter."""
        is_believed = request.peer in self._proxies or is_loopback(request.peer)
        forwarded = request.headers.get("x-forwarded-proto", "") if is_believed else ""
        return request.scope.get("scheme") == "https" or forwarded.strip().lower() == "https"

    def _failed(self, request: _Request) -> None:
        """Count a request that showed no valid token; Refused if there were too many from its address."""
        if wait := self._failures.take(request.state.address):
            raise _too_many(wait, "requests without a valid token")

    def _may_note(self, request: _Request) -> bool:
        """Whether the audit log takes what somebody failed to do; of those without a token, only so much."""
        return request.state.caller is not None or not self._notes.take(request.state.address)

    def _unauthorized(self, request: _Request) -> Refused:
        self._failed(request)
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
        most = min(limits.body, limits.open_body) if request.state.is_open else limits.body
        size_message = f"the body has more than {most:,} bytes"
        too_large = Refused(413, "too-large", size_message, headers={"Connection": "close"})
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise too_large
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
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
        who = caller.name if caller else request.state.address
        what = f"{request.method} {request.path}"[:200]
        subject = str(getattr(request.state, "subject", ""))[:200]
        row = AuditRow(datetime.now(UTC), _printable(who), _printable(what), _printable(subject), outcome)

        def write() -> None:
            with self._store.queue.writing("note who did what") as writing:
                writing.note(row)
                if self._audited % _PRUNED_EVERY == 0:
                    writing.prune_audit(row.at - AUDIT_AGE, MOST_AUDITED)
            self._audited += 1

        try:
            await asyncio.to_thread(write)
        except StoreError as error:
            _log.error("not in the audit log: %s by %s, %s: %s", row.what, row.who, row.outcome, error)


def _token(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    return None


def session_cookie(request: Request, value: str) -> str:
    """The header that makes a browser keep a session, or drop it if there is no value."""
    lasts = int(IDLE.total_seconds()) if value else 0
    secure = "; Secure" if request.state.is_https else ""
    return f"{COOKIE}={value}; HttpOnly; Max-Age={lasts}; Path=/; SameSite=strict{secure}"


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
    is_name = name.lower() in ("localhost", "localhost.")
    return is_name or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


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
