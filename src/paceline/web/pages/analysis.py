"""Reports over several runs, each with a form above it: a comparison, a trend, a leaderboard."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from paceline.analysis.compare.sides import compare, require_different
from paceline.analysis.compare.verdicts import Side
from paceline.analysis.cost import Prices
from paceline.analysis.leaderboard import Board, boards
from paceline.analysis.trend.series import TrendSeries, history, leading_series, standing
from paceline.core.errors import InputError
from paceline.machine.profile import price_table
from paceline.report import trend as trend_report
from paceline.report.compare import document as compare_report
from paceline.report.document import Document
from paceline.report.recommend import leaderboard as leaderboard_report
from paceline.report.render import html as render_html
from paceline.report.text import one_line, show_value, when
from paceline.service.api.answer_cache import AnswerCache
from paceline.service.api.guard import needs
from paceline.service.api.tokens import Scope
from paceline.store.dashboard_queries import edition, headlines, metrics
from paceline.web.job_history import counted
from paceline.web.pages import Page
from paceline.web.site import Site, SmallChart, embedded, small_chart, templates, wants_json

MOST_COMPARED = 50  # runs of one side
MOST_SIDES = 12
CHOICES = 200  # runs that a form lists
DRAWN = 60  # runs of a small chart
QUIET = 8.0  # deviations of the noise that a small chart spans at least
AT_ONCE = 100  # runs that are read together
MOST_IN_TREND = 500  # runs


class CompareQuery(BaseModel):
    """The sides of a comparison, the reference first; each is a run, the beginning of one, or a tag."""

    sides: list[str]
    known: list[tuple[str, str]] = []  # runs and tags to choose among, with what they are


class TrendLine(BaseModel):
    """One case on one kind of machine, by the metric that leads it."""

    case: str
    benchmark: str
    metric: str
    machine: str
    runs: int
    standing: str
    state: str
    level: str
    now: str
    noise: str
    better: str
    since: str  # the run that its last change began with
    chart: SmallChart
    address: str

    @classmethod
    def of(cls, series: TrendSeries) -> TrendLine:
        """The line of a series."""
        points, unit = series.points[-DRAWN:], series.metric.unit
        title = f"{series.case.benchmark} {series.case.title}".strip()
        # Noise alone does not fill the height, so that a step looks like one.
        quiet = QUIET * series.noise * (abs(series.level) if trend_report.is_ratio(series) else 1.0)
        chosen = {"metric": series.metric.name, "case": title, "machine": series.machine}
        return cls(
            case=trend_report.name_of(series),
            benchmark=series.case.benchmark,
            metric=series.metric.name,
            machine=series.machine,
            runs=len(series.points),
            standing=standing(series).name.lower(),
            state=trend_report.state_of(series),
            level=show_value(series.level, unit),
            now=show_value(series.now, unit),
            noise=trend_report.noise_of(series),
            better=series.metric.better.value,
            since=series.shifts[-1].first.run_id if series.shifts else "",
            chart=small_chart([[one.value for one in points], list(series.levels[-DRAWN:])], least=quiet),
            address=f"/trends?{urlencode(chosen)}",
        )


class TrendQuery(BaseModel):
    """Which metric, of those that there are; without one, what leads each case."""

    metric: str
    tag: str
    case: str
    machine: str
    metrics: list[str]
    machines: list[str] = []
    tags: list[str] = []
    message: str = ""
    lines: list[TrendLine] = []

    def of(self, standing: str) -> list[TrendLine]:
        """The lines that stand so."""
        return [line for line in self.lines if line.standing == standing]

    def matches(self, series: TrendSeries) -> bool:
        """Whether it is of such a case, on such a machine."""
        title = f"{series.case.benchmark} {series.case.title}".casefold()
        return self.case.casefold() in title and self.machine.casefold() in series.machine.casefold()


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
    """`/compare?run=A&run=B...`, or `?a=REFERENCE&b=NEW`; each is a run, the beginning of one, or a tag."""

    def side(text: str) -> Side:
        ids = site.store.find_runs(text)
        if len(ids) > MOST_COMPARED:
            message = f"'{text}' names {len(ids)} runs, and at most {MOST_COMPARED} are compared here"
            raise InputError("too-many-runs", message, value=text)
        return Side(text if len(ids) > 1 else ids[0], tuple(site.store.load(one) for one in ids))

    def known() -> list[tuple[str, str]]:
        rows = site.store.runs(CHOICES)
        tags = Counter(tag for row in rows for tag in row.tags)
        named = [(tag, f"tag of {counted(count, 'run')}") for tag, count in sorted(tags.items())]
        return named + [(row.id, one_line(f"{row.name}, {when(row.started_at)}")) for row in rows]

    @router.get("/compare")
    @needs(Scope.READ)
    def show(
        request: Request,
        run: Annotated[list[str], Query(default_factory=list)],
        reference: str = "",
        a: str = "",
        b: str = "",
        tags: str | None = None,
    ) -> Response:
        names = list(dict.fromkeys(filter(None, [*run, a, b])))
        if tags is not None:  # the form of the list has a field that has nothing to do with it
            return RedirectResponse(f"/compare?{urlencode([('run', name) for name in names])}", 303)
        if a and a == b:
            raise InputError("same-runs", f"'{a}' is compared with itself: choose another run", key="b", value=b)
        if len(names) > MOST_SIDES:
            message = f"{len(names)} were ticked, and at most {MOST_SIDES} are compared here"
            raise InputError("too-many-runs", message, key="run")
        if len(names) < 2:
            return site.answer(request, "compare.html", CompareQuery(sides=names, known=known()))
        sides = [side(name) for name in names]
        if run:  # ticked in no order: what came later is compared with what came first
            sides.sort(key=lambda one: (one.name != reference, min(part.run.started_at for part in one.runs), one.name))
        require_different(sides)
        comparison = compare(sides, earlier=site.store.earlier)
        if wants_json(request):
            return Response(compare_report.json_text(comparison), media_type="application/json")
        document = compare_report.document(comparison, full=True)
        query = CompareQuery(sides=[one.name for one in sides], known=known())
        return _report(site, request, "compare_ask.html", query, document)


def trend_routes(router: APIRouter, site: Site) -> None:
    """`/trends`, and `/trends?metric=NAME`."""
    cache = AnswerCache[list[TrendSeries]](lambda: edition(site.store))

    def leading(tag: str) -> list[TrendSeries]:
        rows = [row for row in site.store.runs(None if tag else MOST_IN_TREND) if not tag or tag in row.tags]
        ids = [row.id for row in rows[:MOST_IN_TREND]]
        parts = [site.store.glances(ids[start : start + AT_ONCE]) for start in range(0, len(ids), AT_ONCE)]
        return leading_series(records for part in parts for records in part.values())

    @router.get("/trends")
    @needs(Scope.READ)
    def show(request: Request, metric: str = "", tag: str = "", case: str = "", machine: str = "") -> Response:
        query = TrendQuery(metric=metric, tag=tag, case=case.strip(), machine=machine, metrics=metrics(site.store))
        tags = {one for row in site.store.runs(CHOICES) for one in row.tags} | ({tag} - {""})
        query.tags = sorted(filter(str.isprintable, tags))
        series = cache.get(tag, lambda: leading(tag))
        query.machines = sorted(filter(str.isprintable, {one.machine for one in series} | ({machine} - {""})))
        if not metric:
            query.lines = [TrendLine.of(one) for one in series if query.matches(one)]
            query.message = _trend_answer(query)
            return site.answer(request, "trends.html", query)
        trend = history(site.store.history(metric, tag=tag, limit=MOST_IN_TREND), metric)
        trend = replace(trend, series=tuple(filter(query.matches, trend.series)))
        if wants_json(request):
            return Response(trend_report.to_json(trend), media_type="application/json")
        if not trend.series:
            of_case = f" with '{query.case}'" if query.case else ""
            query.message = f"No case{of_case} was measured for '{metric}' in two runs on the same machine yet."
            return site.answer(request, "trends.html", query)
        return _report(site, request, "trends_ask.html", query, trend_report.document(trend))


def _trend_answer(query: TrendQuery) -> str:
    words = {
        "worse": "got worse",
        "changed": "changed",
        "undecided": "undecided",
        "steady": "steady",
    }
    parts = [f"{count:,} {word}" for name, word in words.items() if (count := len(query.of(name)))]
    return f"{counted(len(query.lines), 'series', 'series')} of what leads each case: {', '.join(parts)}."


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
