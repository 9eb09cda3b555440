"""Two runs, or two tags, side by side."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.compare import Side, compare
from paceline.core.errors import InputError
from paceline.report import answer_page, compare_data
from paceline.report import compare as report
from paceline.web.embed import embedded
from paceline.web.pages import Page
from paceline.web.site import Site, primary_metrics, templates, wants_json

MOST_RUNS = 50  # of one side


class Sides(BaseModel):
    """What is compared."""

    a: str
    b: str


def routes(router: APIRouter, site: Site) -> None:
    """`/compare?a=REFERENCE&b=NEW`; each is a run, the beginning of one, or a tag."""

    def side(text: str) -> Side:
        ids = site.store.find_runs(text)
        if len(ids) > MOST_RUNS:
            raise InputError(f"'{text}' names {len(ids)} runs, and at most {MOST_RUNS} are compared here")
        return Side(text if len(ids) > 1 else ids[0], tuple(site.store.load(one) for one in ids))

    @router.get("/compare")
    def show(request: Request, a: str = "", b: str = "") -> Response:
        if not a or not b:
            return site.answer(request, "compare.html", Sides(a=a, b=b))
        if a == b:
            raise InputError(f"'{a}' is compared with itself: choose another run")
        made = compare([side(a), side(b)], primary=primary_metrics())
        if wants_json(request):
            return Response(compare_data.json_text(made), media_type="application/json")
        above = Markup(templates().get_template("compare_ask.html").render(view=Sides(a=a, b=b)))
        return embedded(site, request, answer_page.html(report.page(made, full=True)), above=above)


PAGE = Page("/compare", routes, title="Compare", order=40)
