"""Two runs, or two tags, side by side."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.compare.matching import Side
from paceline.analysis.compare.verdicts import compare
from paceline.core.errors import InputError
from paceline.report.compare import data as compare_data
from paceline.report.compare import document as report
from paceline.report.render import html as render_html
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

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
            message = f"'{text}' names {len(ids)} runs, and at most {MOST_RUNS} are compared here"
            raise InputError("too-many-runs", message, value=text)
        return Side(text if len(ids) > 1 else ids[0], tuple(site.store.load(one) for one in ids))

    @router.get("/compare")
    def show(request: Request, a: str = "", b: str = "") -> Response:
        if not a or not b:
            return site.answer(request, "compare.html", Sides(a=a, b=b))
        if a == b:
            raise InputError("same-runs", f"'{a}' is compared with itself: choose another run", key="b", value=b)
        made = compare([side(a), side(b)])
        if wants_json(request):
            return Response(compare_data.json_text(made), media_type="application/json")
        above = Markup(templates().get_template("compare_ask.html").render(view=Sides(a=a, b=b)))
        return embedded(site, request, render_html.render(report.document(made, full=True)), above=above)


PAGE = Page("/compare", routes, title="Compare", order=40)
