"""Who is visiting: a token, typed once, begins a session that the browser keeps where no script can read it."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from paceline.service.api.guard import SIGN_IN, needs, session_cookie
from paceline.service.api.tokens import find
from paceline.service.credentials import is_followers
from paceline.web.pages import Page
from paceline.web.site import SentForm, Site, inside


class Login(BaseModel):
    """The form."""

    after: str  # where to go then
    message: str = ""


def routes(router: APIRouter, site: Site) -> None:
    """`/login` and `/logout`."""

    @router.get("/login")
    @needs(None)
    def form(request: Request) -> Response:
        after = inside(request.query_params.get("next", "/"))
        return site.answer(request, "login.html", Login(after=after))

    @router.post("/login")
    @needs(None)
    def login(request: Request, form: SentForm) -> Response:
        after = inside(form.get("next", "/"))
        token = form.get("secret")
        row = find(site.store.queue.tokens(), token, datetime.now(UTC))
        if row is None or is_followers(row):
            request.state.failed()
            message = "This token is not known here, has expired, or is that of a follower."
            return site.answer(request, "login.html", Login(after=after, message=message), status=403)
        request.state.subject = row.name
        session = request.app.state.context.sessions.begin(row)
        return RedirectResponse(after, 303, {"Set-Cookie": session_cookie(request, session)})

    @router.post("/logout")
    @needs(None)
    def logout(request: Request) -> Response:
        request.state.renewed = None
        return RedirectResponse("/login", 303, {"Set-Cookie": session_cookie(request, "")})


PAGE = Page(SIGN_IN, routes)
