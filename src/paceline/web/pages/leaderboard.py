"""Who is best at a piece of work."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.cost import Prices
from paceline.analysis.leaderboard import Board, boards
from paceline.machine.prices import price_table
from paceline.report.recommend import leaderboard as report
from paceline.report.render import html as render_html
from paceline.store import Store
from paceline.store.headlines import edition, headlines
from paceline.web.embed import embedded
from paceline.web.kept import Kept
from paceline.web.pages import Page
from paceline.web.site import Site, templates, wants_json


class Asked(BaseModel):
    """Which boards."""

    case: str
    metric: str
    top: int
    message: str = ""


def routes(router: APIRouter, site: Site) -> None:
    """`/leaderboard?case=TEXT&metric=NAME`."""
    kept = Kept[list[Board]](lambda: edition(site.store))

    @router.get("/leaderboard")
    def show(request: Request, case: str = "", metric: str = "", top: int = Query(10, ge=1, le=1000)) -> Response:
        asked = Asked(case=case, metric=metric, top=top)
        found = kept.get((case, metric), lambda: _boards(site.store, case, metric))
        if wants_json(request):
            return Response(report.to_json(found, top), media_type="application/json")
        if not found:
            asked.message = f"No result has '{case}' in its name." if case else "There is no result to rank yet."
            return site.answer(request, "leaderboard.html", asked)
        above = Markup(templates().get_template("leaderboard_ask.html").render(view=asked))
        return embedded(site, request, render_html.render(report.document(found, top)), above=above)


def _boards(store: Store, case: str, metric: str) -> list[Board]:
    prices = Prices(price_table(), ())
    return boards(headlines(store), prices, metric=metric or None, text=case)


PAGE = Page("/leaderboard", routes, title="Leaderboard", order=60)
