"""The application: routes behind the guard, and the pages beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import APIRouter, FastAPI

from paceline.benchmarks import registry
from paceline.core.run import RunRecords
from paceline.service.api import admin, catalogue, errors, jobs, runs
from paceline.service.api.guard import PREFIX, Door, Guard
from paceline.service.api.served import Served
from paceline.service.api.tokens import Tokens
from paceline.service.leader import Leader
from paceline.store.store import Store
from paceline.version import VERSION

DESCRIPTION = """Submit benchmarks to a leader, follow them, and fetch what they measured.

Every request but the one for the leader's health carries `Authorization: Bearer TOKEN`, unless the leader is bound to
its own machine and nobody has made a token yet."""


@dataclass(frozen=True)
class Pages:
    """What people look at: routes outside /api, which use the same tokens by a cookie."""

    router: APIRouter
    open_paths: frozenset[str] = frozenset()  # may be asked without a token: the page to sign in, and its style
    sign_in: str = ""  # where a browser without a token is sent


def create_app(
    leader: Leader,
    store: Store,
    door: Door,
    *,
    report: Callable[[RunRecords], str],
    pages: Pages | None = None,
) -> FastAPI:
    """The application for one leader."""
    app = FastAPI(
        title="Paceline leader",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=errors.declared(400, 401, 403, 408, 413, 415, 422, 429, 503),
    )
    registry()  # reading every benchmark takes a second, which nobody who submits should wait for
    served = Served(leader, store, Tokens(store), report)
    app.state.served = served
    errors.install(app)
    for router in (jobs.router(served), runs.router(served), catalogue.router(), admin.router(served)):
        app.include_router(router, prefix=PREFIX)
    if pages is not None:
        app.include_router(pages.router, include_in_schema=False)
        door = replace(door, open_paths=door.open_paths | pages.open_paths, sign_in=pages.sign_in)
    app.add_middleware(Guard, store=store, tokens=served.tokens, door=door)
    return app
