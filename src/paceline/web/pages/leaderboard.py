"""Who is best at a piece of work."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from pydantic import BaseModel

from paceline.analysis.cost import Prices
from paceline.analysis.leaderboard import Board, boards
from paceline.machine.profile import price_table
from paceline.report.recommend import leaderboard as report
from paceline.report.render import html as render_html
from paceline.store import Store
from paceline.store.dashboard_queries import edition, headlines
from paceline.web.pages import Page
from paceline.web.site import Site, embedded, templates, wants_json

_MOST = 16  # answers, of those that were asked for last
_REST = 10.0  # times as long as it took to work out an answer it is given again, whatever is new
_LONGEST = 60.0  # seconds that an answer is given without being worked out again

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Made(Generic[Answer]):
    answer: Answer
    edition: Hashable
    at: float
    seconds: float


class Kept(Generic[Answer]):
    """The latest answers to the latest questions.

    However many ask, at most one is worked out at any time; and whoever asks the same again and again, while results
    come in, makes the leader work a tenth of the time at most.
    """

    def __init__(self, edition: Callable[[], Hashable], clock: Callable[[], float] = time.monotonic) -> None:
        self._edition = edition
        self._clock = clock
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, _Made[Answer]] = OrderedDict()

    def get(self, question: Hashable, work_out: Callable[[], Answer]) -> Answer:
        """The answer to a question; what `work_out` raises is not kept."""
        with self._lock:
            known = self._made.get(question)
            edition = self._edition()
            begun = self._clock()
            if known is None or not self._holds(known, edition, begun):
                answer = work_out()
                ended = self._clock()
                known = self._made[question] = _Made(answer, edition, ended, ended - begun)
            self._made.move_to_end(question)
            while len(self._made) > _MOST:
                self._made.popitem(last=False)
            return known.answer

    def _holds(self, made: _Made[Answer], edition: Hashable, now: float) -> bool:
        age = now - made.at
        return age < made.seconds * _REST or (made.edition == edition and age < _LONGEST)


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
