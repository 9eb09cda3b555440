"""Reports over several runs, each with a form above it: a comparison, a trend, a leaderboard."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.compare.matching import Side
from paceline.analysis.compare.sides import compare
from paceline.analysis.cost import Prices
from paceline.analysis.leaderboard import Board, boards
from paceline.analysis.trend.series import history
from paceline.core.errors import InputError
from paceline.machine.profile import price_table
from paceline.report.compare import document as compare_report
from paceline.report.document import Document
from paceline.report.recommend import leaderboard as leaderboard_report
from paceline.report.render import html as render_html
from paceline.report.trend import document as trend_report
from paceline.service.api.answer_cache import AnswerCache
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.store.dashboard_queries import edition, headlines, metrics
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

MOST_COMPARED = 50  # runs of one side
MOST_IN_TREND = 500  # runs


class CompareQuery(BaseModel):
    """The two sides of a comparison."""

    a: str
    b: str


class TrendQuery(BaseModel):
    """Which metric, of those that there are."""

    metric: str
    tag: str
    metrics: list[str]
    message: str = ""


class LeaderboardQuery(BaseModel):
    """Which boards."""

    case: str
    metric: str
    top: int
    message: str = ""


def _report(site: Site, request: Request, form: str, view: BaseModel, document: Document) -> Response:
    """A report with the form that asks for another one above it."""
    above = Markup(templates().get_template(form).render(view=view))
    return embedded(site, request, render_html.render(document), above=above)


def compare_routes(router: APIRouter, site: Site) -> None:
    """`/compare?a=REFERENCE&b=NEW`; each is a run, the beginning of one, or a tag."""

    def side(text: str) -> Side:
        ids = site.store.find_runs(text)
        if len(ids) > MOST_COMPARED:
            message = f"'{text}' names {len(ids)} runs, and at most {MOST_COMPARED} are compared here"
            raise InputError("too-many-runs", message, value=text)
        return Side(text if len(ids) > 1 else ids[0], tuple(site.store.load(one) for one in ids))

    @router.get("/compare")
    @needs(Scope.READ)
    def show(request: Request, a: str = "", b: str = "") -> Response:
        query = CompareQuery(a=a, b=b)
        if not a or not b:
            return site.answer(request, "compare.html", query)
        if a == b:
            raise InputError("same-runs", f"'{a}' is compared with itself: choose another run", key="b", value=b)
        comparison = compare([side(a), side(b)], earlier=site.store.earlier)
        if wants_json(request):
            return Response(compare_report.json_text(comparison), media_type="application/json")
        document = compare_report.document(comparison, full=True)
        return _report(site, request, "compare_ask.html", query, document)


def trend_routes(router: APIRouter, site: Site) -> None:
    """`/trends?metric=NAME`."""

    @router.get("/trends")
    @needs(Scope.READ)
    def show(request: Request, metric: str = "", tag: str = "") -> Response:
        query = TrendQuery(metric=metric, tag=tag, metrics=metrics(site.store))
        if not metric:
            return site.answer(request, "trends.html", query)
        trend = history(site.store.history(metric, tag=tag, limit=MOST_IN_TREND), metric)
        if wants_json(request):
            return Response(trend_report.to_json(trend), media_type="application/json")
        if not trend.series:
            query.message = f"No case was measured for '{metric}' in two runs on the same machine yet."
            return site.answer(request, "trends.html", query)
        return _report(site, request, "trends_ask.html", query, trend_report.document(trend))


def leaderboard_routes(router: APIRouter, site: Site) -> None:
    """`/leaderboard?case=TEXT&metric=NAME`."""
    cache = AnswerCache[list[Board]](lambda: edition(site.store))

    @router.get("/leaderboard")
    @needs(Scope.READ)
    def show(request: Request, case: str = "", metric: str = "", top: int = Query(10, ge=1, le=1000)) -> Response:
        query = LeaderboardQuery(case=case, metric=metric, top=top)

        def compute() -> list[Board]:
            return boards(headlines(site.store), Prices(price_table(), ()), metric=metric or None, text=case)

        ranked = cache.get((case, metric), compute)
        if wants_json(request):
            return Response(leaderboard_report.to_json(ranked, top), media_type="application/json")
        if not ranked:
            query.message = f"No result has '{case}' in its name." if case else "There is no result to rank yet."
            return site.answer(request, "leaderboard.html", query)
        return _report(site, request, "leaderboard_ask.html", query, leaderboard_report.document(ranked, top))


ANALYSES = [
    Page("/compare", compare_routes, title="Compare", order=40),
    Page("/trends", trend_routes, title="Trends", order=50),
    Page("/leaderboard", leaderboard_routes, title="Leaderboard", order=60),
]
