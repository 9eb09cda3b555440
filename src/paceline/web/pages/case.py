"""One case of a run: its samples, what the same case came to in other runs, and the form that runs it again."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from starlette.responses import JSONResponse

from paceline.report.render import html as render_html
from paceline.report.run.case_page import CasePage, case_of, document, same_case
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

MOST_RUNS = 500  # among which the history of a case is looked for


def routes(router: APIRouter, site: Site) -> None:
    """`/runs/ID/cases/N`."""

    @router.get("/runs/{run_id}/cases/{index}")
    @needs(Scope.READ)
    def show_case(request: Request, run_id: str, index: int) -> Response:
        whole = site.store.load(site.store.find_run(run_id))
        page = CasePage(case_of(whole, index), ())
        if page.metric:
            runs = site.store.history(page.metric, limit=MOST_RUNS)
            page = CasePage(page.records, same_case(page.records, runs))
        if wants_json(request):
            return JSONResponse(page.record.model_dump(mode="json"))
        indices = [record.case.index for record in whole.records]
        place = indices.index(index)
        values = {
            "run": whole.run,
            "record": page.record,
            "metric": page.metric,
            "before": indices[place - 1] if place else None,
            "after": indices[place + 1] if place + 1 < len(indices) else None,
            "place": place + 1,
            "of": len(indices),
        }
        above = Markup(templates().get_template("case.html").render(**values, **site.shared_values(request)))
        made = document(page, every="/runs/{run}/cases/{case}")
        return embedded(site, request, render_html.render(made), above=above)


PAGE = Page("/runs/ID/cases", routes)
