"""The quarantine: items of reports that could not be stored, why, and the buttons that retry or drop one."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Request, Response
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from paceline.core.errors import InputError
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.store.queue import QuarantineRow
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.site import SentForm, Site

SHOWN = 200
LONGEST = 20_000  # characters of an item that a page shows; the API gives all of it

Number = Annotated[int, Path(ge=1, lt=2**31)]


class Quarantine(BaseModel):
    """What could not be stored, the newest first."""

    answer: str
    entries: list[QuarantineRow]


class QuarantinedItem(BaseModel):
    """One of it."""

    answer: str
    entry: QuarantineRow
    item: dict[str, Any]


def routes(router: APIRouter, site: Site) -> None:
    """`/quarantine`, `/quarantine/NUMBER`, and the forms that retry or drop an item."""

    @router.get("/quarantine")
    @needs(Scope.READ)
    def quarantine(request: Request) -> Response:
        items = counted(site.store.queue.quarantine_count(), "item")
        view = Quarantine(answer=f"{items} in quarantine.", entries=site.store.queue.quarantined(limit=SHOWN))
        return site.answer(request, "quarantine.html", view)

    @router.get("/quarantine/{number}")
    @needs(Scope.READ)
    def show_item(request: Request, number: Number) -> Response:
        return item_page(request, number)

    def item_page(request: Request, number: int, message: str = "") -> Response:
        quarantined = site.store.queue.quarantined_item(number)
        if quarantined is None:
            raise HTTPException(404, f"there is no item {number} in quarantine")
        entry, item = quarantined
        view = QuarantinedItem(answer=f"Item {number} could not be stored.", entry=entry, item=item)
        text = json.dumps(item, indent=2, ensure_ascii=False)
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... and {len(text) - LONGEST:,} characters more"
        may_administer = request.state.caller.scope >= Scope.ADMIN
        more = {"text": shown, "may_administer": may_administer, "message": message}
        return site.answer(request, "quarantined.html", view, status=409 if message else 200, **more)

    @router.post("/quarantine/{number}/{action}")
    @needs(Scope.ADMIN)
    def act(request: Request, number: Number, action: str, form: SentForm) -> Response:
        site.check_form(request, form)
        request.state.subject = str(number)
        actions = {"retry": site.leader.retry_quarantined, "drop": site.leader.drop_quarantined}
        if action not in actions:
            raise HTTPException(404, f"an item can be retried or dropped, not '{action}'")
        try:
            actions[action](number)
        except InputError as error:
            return item_page(request, number, str(error))
        return RedirectResponse("/quarantine", 303)


PAGE = Page("/quarantine", routes)
