"""The pages of a leader, one module each: a module here that has a `PAGE` is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from fastapi import APIRouter

from paceline.core.registry import Kind
from paceline.core.run import RunRecords
from paceline.service.leader import Leader
from paceline.store.store import Store
from paceline.web.site import Site


@dataclass(frozen=True)
class Page:
    """A page: how it is reached, and the routes that it adds."""

    path: str
    routes: Callable[[APIRouter, Site], None]
    title: str = ""  # in the navigation; empty is left out
    order: int = 100


PAGES: Kind[Page] = Kind("page", "web.pages", Page, key=attrgetter("path"))


def pages_of(leader: Leader, store: Store, report: Callable[[RunRecords], str]) -> APIRouter:
    """The routes of all pages, behind the guard of the API; `report` makes the page of a run."""
    pages = sorted(PAGES.registry().entries.values(), key=lambda page: (page.order, page.path))
    site = Site(leader, store, report, [(page.path, page.title) for page in pages if page.title])
    router = APIRouter(route_class=site.route_class, include_in_schema=False)
    for page in pages:
        page.routes(router, site)
    return router
