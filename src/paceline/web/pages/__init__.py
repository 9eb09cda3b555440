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
from paceline.web.site import Site, caller

SIGN_IN = "/login"
OPEN_PATHS = frozenset({SIGN_IN, "/logout"})  # for those who have not logged in yet


@dataclass(frozen=True)
class Page:
    """A page: how it is reached, and the routes that it adds."""

    path: str
    routes: Callable[[APIRouter, Site], None]
    title: str = ""  # in the navigation; empty is left out
    order: int = 100
    is_public: bool = False  # also for those who have not logged in yet


PAGES: Kind[Page] = Kind("page", "web.pages", Page, key=attrgetter("path"))


def router(
    leader: Leader, store: Store, who: Callable[..., Any], report: Callable[[RunRecords], str] | None = None
) -> APIRouter:
    """All pages; `who` is the dependency that gives the Caller, or refuses with 401; `report` makes a run's page."""
    site = Site(leader, store, report or to_html)
    pages = sorted(PAGES.registry().entries.values(), key=lambda page: (page.order, page.path))
    site.navigation = [(page.path, page.title) for page in pages if page.title]
    identified = Depends(who)

    async def remember(request: Request, visitor: Any = identified) -> None:
        request.state.visitor = visitor

    all_routes = APIRouter()
    for page in pages:
        guards = [] if page.is_public else [Depends(remember)]
        page_router = APIRouter(route_class=site.route_class, dependencies=guards, include_in_schema=False)
        page.routes(page_router, site)
        all_routes.include_router(page_router)
    return all_routes


def pages_of(leader: Leader, store: Store, report: Callable[[RunRecords], str]) -> Pages:
    """All pages for the application of the API, which has identified the caller already."""
    return Pages(router(leader, store, caller, report), OPEN_PATHS, SIGN_IN)
