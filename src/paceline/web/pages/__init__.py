"""The pages of a leader, one module each: a module here that has a `PAGE` is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Depends, Request

from paceline.core.registry import Kind
from paceline.core.run import RunRecords
from paceline.report.run.document import to_html
from paceline.service.api.app import Pages
from paceline.service.leader import Leader
from paceline.store import Store
from paceline.web.site import NavigationItem, Site, caller

SIGN_IN = "/login"
OPEN_PATHS = frozenset({SIGN_IN, "/logout"})  # for those who are not known yet


@dataclass(frozen=True)
class Page:
    """A page: how it is reached, and the routes that it adds."""

    path: str
    routes: Callable[[APIRouter, Site], None]
    title: str = ""  # in the navigation; empty is not there
    order: int = 100
    is_public: bool = False  # also for those who are not known yet


PAGES: Kind[Page] = Kind("page", "web.pages", Page, key=attrgetter("path"))


def router(
    leader: Leader, store: Store, who: Callable[..., Any], report: Callable[[RunRecords], str] | None = None
) -> APIRouter:
    """All pages; `who` is the dependency that tells the Caller, or refuses with 401; `report` makes a run's page."""
    site = Site(leader, store, report or to_html)
    found = sorted(PAGES.registry().entries.values(), key=lambda page: (page.order, page.path))
    site.places = [NavigationItem(page.path, page.title) for page in found if page.title]

    asked = Depends(who)

    async def remember(request: Request, visitor: Any = asked) -> None:
        request.state.visitor = visitor

    whole = APIRouter()
    for page in found:
        guards = [] if page.is_public else [Depends(remember)]
        mine = APIRouter(route_class=site.route_class, dependencies=guards, include_in_schema=False)
        page.routes(mine, site)
        whole.include_router(mine)
    return whole


def pages_of(leader: Leader, store: Store, report: Callable[[RunRecords], str]) -> Pages:
    """All pages for the application of the API, which knows already who asks."""
    return Pages(router(leader, store, caller, report), OPEN_PATHS, SIGN_IN)
