"""What all pages share: the look, small charts, who visits, the answer as a page or as JSON, and safe forms."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import HTMLResponse, JSONResponse

from paceline.core.errors import StoreError
from paceline.core.run import RunRecords
from paceline.report.render.html import page_templates
from paceline.service.api.errors import EXPECTED, refused
from paceline.service.api.tokens import Caller, Scope
from paceline.service.leader import STALE, Leader
from paceline.store.store import Store
from paceline.version import VERSION
from paceline.web.job_history import STATES, counted, span


class SmallChart(BaseModel):
    """Lines in a box, as paths of SVG; y grows downwards."""

    width: int
    height: int
    paths: list[str]
    last: tuple[float, float] | None = None  # where the first line ends
    low: float = 0.0
    high: float = 0.0


def small_chart(
    lines: Sequence[Sequence[float | None]],
    *,
    width: int = 150,
    height: int = 30,
    floor: float | None = None,
    least: float = 0.0,
) -> SmallChart:
    """Lines over the same places, from left to right; what is None interrupts one.

    The height spans what there is, down to the `floor` if there is one, and never less than `least`.
    """
    pad, known = 3.0, [value for line in lines for value in line if value is not None]
    if not known:
        return SmallChart(width=width, height=height, paths=[])
    low = min(known) if floor is None else min(floor, *known)
    high = max(known)
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    span = high - low or abs(high) or 1.0
    longest = max(len(line) for line in lines)
    step = (width - 2 * pad) / max(1, longest - 1)

    def place(at: int, value: float) -> tuple[float, float]:
        across = pad + at * step if longest > 1 else width / 2
        return round(across, 1), round(height - pad - (value - low) / span * (height - 2 * pad), 1)

    paths, ends = [], []
    for line in lines:
        parts, is_pen_up = [], True
        for at, value in enumerate(line):
            if value is not None:
                x, y = place(at, value)
                parts.append(f"{'M' if is_pen_up else 'L'}{x:g} {y:g}")
                if line is lines[0]:
                    ends.append((x, y))
            is_pen_up = value is None
        paths.append("".join(parts))
    return SmallChart(width=width, height=height, paths=paths, last=ends[-1] if ends else None, low=low, high=high)


LARGEST_FORM = 256 * 1024  # bytes
_TITLES = {400: "That cannot be shown", 403: "Not allowed", 404: "Not found", 503: "The leader cannot answer just now"}


@dataclass
class Site:
    """The pages of one leader."""

    leader: Leader
    store: Store
    report: Callable[[RunRecords], str]
    navigation: list[tuple[str, str]]  # path and title of each entry
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _parts: dict[Hashable, tuple[BaseModel, str]] = field(default_factory=dict)  # the latest view of each, rendered

    def answer(
        self,
        request: Request,
        template: str,
        view: BaseModel,
        *,
        scripts: Iterable[str] = (),
        status: int = 200,
        is_shared: bool = False,
        **more: Any,
    ) -> Response:
        """The view as a page, as a part of one (`?part=live`), or as JSON.

        One that `is_shared` is the same object for all who ask, and so is the text of its part.
        """
        if wants_json(request):
            return JSONResponse(view.model_dump(mode="json"), status)
        is_part = request.query_params.get("part") == "live"
        loaded = [] if is_part else [rendered(name) for name in scripts]
        values = {"view": view, "is_part": is_part, "scripts": loaded, "now": datetime.now(UTC)}
        values |= self.shared_values(request) | more
        if is_shared and is_part and not values["trouble"] and values["age"] is None:
            text = self._shared_part(template, values)
        else:
            text = templates().get_template(template).render(**values)
        return secured(HTMLResponse(text, status), loaded)

    def _shared_part(self, template: str, values: dict[str, Any]) -> str:
        """The text of a part, rendered once for all who see the same of the same view."""
        view, key = values["view"], (template, values["may_submit"])
        earlier, text = self._parts.get(key, (None, ""))
        if earlier is not view:
            text = templates().get_template(template).render(**values)
            self._parts[key] = (view, text)
        return text

    def shared_values(self, request: Request) -> dict[str, Any]:
        """What every page needs in addition to its own values."""
        # A page that is open to all shows everybody the same.
        visitor: Caller | None = None if request.state.is_open else request.state.caller
        try:
            has_login = bool(request.app.state.context.tokens.rows())
        except StoreError:
            has_login = False
        here = request.url.path
        home = "/" if here.startswith("/jobs") else here
        menu = [
            (path, title, home == path or (path != "/" and here.startswith(f"{path}/")))
            for path, title in self.navigation
        ]
        return {
            "version": VERSION,
            "style": Markup("\n").join([rendered("report.css"), rendered("pages.css")]),
            "menu": menu,
            "visitor": visitor.name if visitor else "",
            "may_submit": visitor is not None and visitor.scope >= Scope.SUBMIT,
            "has_login": has_login,
            "token": self.form_token(visitor) if visitor else "",
            "trouble": self.leader.trouble if visitor else "",  # it may name what is only for those who are let in
            "age": self.leader.age if self.leader.age > STALE else None,
        }

    def error(self, request: Request, status: int, message: str) -> Response:
        """Why there is no page."""
        view = ErrorPage(status=status, title=_TITLES.get(status, _TITLES[400]), message=message)
        return self.answer(request, "error.html", view, status=status)

    def form_token(self, visitor: Caller) -> str:
        """What a form must carry, so that no other site can send it in a visitor's name."""
        return hmac.new(self._secret, visitor.name.encode(), hashlib.sha256).hexdigest()

    def check_form(self, request: Request, form: Form) -> Caller:
        """Who sent a form; refused unless it came from a page of this leader."""
        visitor: Caller = request.state.caller
        if not hmac.compare_digest(form.get("token").encode(), self.form_token(visitor).encode()):
            raise HTTPException(403, "the form is older than this leader: load the page again and send it once more")
        return visitor

    @property
    def route_class(self) -> type[APIRoute]:
        """Routes whose refusals are pages, too."""
        site = self

        class PageRoute(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handle = super().get_route_handler()

                async def guarded(request: Request) -> Response:
                    try:
                        return await handle(request)
                    except EXPECTED as error:
                        answer = refused(error)
                        unknown = 404 if request.path_params else 400
                        return site.error(request, unknown if answer.status == 422 else answer.status, str(answer))

                return guarded

        return PageRoute


class ErrorPage(BaseModel):
    """Why there is no page."""

    status: int
    title: str
    message: str


class Form:
    """The fields of a form as they were sent."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.values: dict[str, str] = {}
        for name, value in pairs:
            earlier = self.values.get(name)
            self.values[name] = value if not earlier else f"{earlier},{value}" if value else earlier

    def get(self, name: str, otherwise: str = "") -> str:
        """A field without the space around it."""
        return self.values.get(name, otherwise).strip()


async def read_form(request: Request) -> Form:
    """The body of a POST; a dependency."""
    body = await request.body()
    if len(body) > LARGEST_FORM:
        raise HTTPException(413, f"the form is larger than {LARGEST_FORM // 1024} KiB")
    try:
        return Form(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000, errors="strict"))
    except ValueError:
        raise HTTPException(400, "this is not a form as browsers send them") from None


SentForm = Annotated[Form, Depends(read_form)]


def inside(path: str, otherwise: str = "/") -> str:
    """A path of this site, whatever was asked for."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_ours else otherwise


def wants_json(request: Request) -> bool:
    """Whether a program asks."""
    if request.query_params.get("format") == "json":
        return True
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


@cache
def rendered(name: str) -> Markup:
    """A script or a style that ships."""
    return Markup(templates().get_template(name).render())


def secured(response: Response, scripts: Iterable[Markup], hashes: Iterable[str] = ()) -> Response:
    """A page that may load nothing, and run nothing but its own scripts, which are allowed by their hashes."""
    digests = [base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode() for script in scripts]
    allowed = " ".join([*(f"'sha256-{digest}'" for digest in digests), *hashes]) or "'none'"
    response.headers["Content-Security-Policy"] = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    response.headers["Cache-Control"] = "no-store"
    return response


@cache
def templates() -> Environment:
    """The templates of the reports and of the pages."""
    loader = ChoiceLoader([PackageLoader("paceline.web"), PackageLoader("paceline.report")])
    environment = page_templates().overlay(loader=loader)
    environment.filters = environment.filters | {
        "span": span,
        "counted": counted,
        "state": lambda state: STATES[state],
        "iso": lambda moment: moment.isoformat(timespec="seconds"),
        "clock": _clock,
        "path": lambda text: quote(str(text), safe=""),
    }
    return environment


def _clock(moment: datetime, now: datetime, exact: bool = False) -> str:
    """A moment of today as a time, any other with its day."""
    moment = moment.astimezone(UTC)
    day = "" if moment.date() == now.date() else "%Y-%m-%d "
    return moment.strftime(f"{day}%H:%M{':%S' if exact else ''} UTC")


_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')
_HASH = re.compile(r"'sha256-[A-Za-z0-9+/=]+'")


def embedded(site: Site, request: Request, report: str, *, above: Markup, scripts: Iterable[str] = ()) -> Response:
    """The report with the navigation, something above it, and scripts in addition to its own."""
    loaded = [rendered(name) for name in scripts]
    policy = _POLICY.search(report)
    hashes = _HASH.findall(policy.group(1)) if policy else []
    top = templates().get_template("above.html").render(above=above, **site.shared_values(request))
    more = "".join(f"<script>{script}</script>\n" for script in loaded)
    head, body, rest = _POLICY.sub("", report, count=1).partition("<body>\n")
    head = head.replace("</head>", f"<style>{rendered('pages.css')}</style>\n</head>", 1)
    before, end, after = rest.rpartition("</body>")
    return secured(HTMLResponse(f"{head}{body}{top}{before}{more}{end}{after}"), loaded, hashes)
