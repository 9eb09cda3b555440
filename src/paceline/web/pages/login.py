"""Who is visiting: a token, typed once, and kept by the browser where no script can read it."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from paceline.service.api.guard import COOKIE, SIGN_IN
from paceline.service.api.tokens import find
from paceline.web.pages import Page
from paceline.web.site import SentForm, Site

_DAYS = 30


class Login(BaseModel):
    """The form."""

    after: str  # where to go then
    message: str = ""


def routes(router: APIRouter, site: Site) -> None:
    """`/login` and `/logout`."""

    @router.get("/login")
    def form(request: Request) -> Response:
        after = _within(request.query_params.get("next", "/"))
        return site.answer(request, "login.html", Login(after=after))

    @router.post("/login")
    def login(request: Request, form: SentForm) -> Response:
        after = _within(form.get("next", "/"))
        token = form.get("secret")
        row = find(site.store.queue.tokens(), token, datetime.now(UTC))
        if row is None:
            message = "This token is not known here, or has expired."
            return site.answer(request, "login.html", Login(after=after, message=message), status=403)
        request.state.subject = row.name
        answer = RedirectResponse(after, 303)
        is_https = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, _DAYS * 86_400, httponly=True, samesite="strict", secure=is_https)
        return answer

    @router.post("/logout")
    def logout() -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def _within(path: str) -> str:
    """A path of this site, whatever was asked for."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_ours else "/"


PAGE = Page(SIGN_IN, routes)
