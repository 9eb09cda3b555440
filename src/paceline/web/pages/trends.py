"""One metric over time, and where it changed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.trend.series import history
from paceline.report.render import html as render_html
from paceline.report.trend import document as report
from paceline.store.dashboard_queries import metrics
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

MOST_RUNS = 500


class Asked(BaseModel):
    """Which metric, of those that there are."""

    metric: str
    tag: str
    metrics: list[str]
    message: str = ""


def routes(router: APIRouter, site: Site) -> None:
    """`/trends?metric=NAME`."""

    @router.get("/trends")
    def show(request: Request, metric: str = "", tag: str = "") -> Response:
        asked = Asked(metric=metric, tag=tag, metrics=metrics(site.store))
        if not metric:
            return site.answer(request, "trends.html", asked)
        found = history(site.store.history(metric, tag=tag, limit=MOST_RUNS), metric)
        if wants_json(request):
            return Response(report.to_json(found), media_type="application/json")
        if not found.series:
            asked.message = f"No case was measured for '{metric}' in two runs on the same machine yet."
            return site.answer(request, "trends.html", asked)
        above = Markup(templates().get_template("trends_ask.html").render(view=asked))
        return embedded(site, request, render_html.render(report.document(found)), above=above)


PAGE = Page("/trends", routes, title="Trends", order=50)
