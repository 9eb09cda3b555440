"""The recommendation is what trying everything finds, meets the SLO, and is no worse where less is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import Budget, Derived, HourlyPrice
from paceline.analysis.recommend.choice import Option, OptionStanding, Ranking, changes, rank
from paceline.analysis.recommend.evidence import MeasuredLoad, Question, SloLimit
from paceline.analysis.summary import Reading

BY = ("goodput", "cost", "energy", "latency")


@dataclass(frozen=True)
class Cell:
    """One line of a random table."""

    name: str
    load: float
    rate: float
    p99: float
    highest: float | None  # that p99 may be
    price: float | None
    joules: float | None

    @property
    def point(self) -> MeasuredLoad:
        low, high = 0.95 * self.rate, 1.05 * self.rate
        return MeasuredLoad(
            configuration=Configuration("work", {"engine": self.name, "machine": "m", "target": "cpu"}),
            throughput=Reading(self.rate, low, high),
            readings={"p99": Reading(self.p99, 0.9 * self.p99, self.highest)},
            load=self.load,
            price=HourlyPrice(self.price, "stated") if self.price else None,
            energy=Derived(Reading(self.joules), ()) if self.joules else None,
        )


numbers = st.integers(1, 400).map(lambda number: number / 10)


@st.composite
def tables(draw: st.DrawFn) -> list[Cell]:
    cells = []
    for place in range(draw(st.integers(1, 5))):
        price = draw(st.none() | numbers)
        for load in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True)):
            p99 = draw(numbers)
            highest = draw(st.none() | st.integers(0, 30).map(lambda more, p99=p99: p99 * (1 + more / 10)))
            cells.append(Cell(f"c{place}", load, draw(numbers), p99, highest, price, draw(st.none() | numbers)))
    return cells


def scored(cell: Cell, question: Question) -> float | None:
    """Less is better."""
    if question.by == "goodput":
        return -cell.rate
    if question.by == "energy":
        return cell.joules
    if question.by == "latency":
        return cell.p99
    if cell.price is None:
        return None
    if question.rate is None:
        return cell.price / 3600 / cell.rate * 1000
    return math.ceil(question.rate / cell.rate - 1e-9) * cell.price


def standing(cell: Cell, table: list[Cell], question: Question) -> OptionStanding:
    limit = question.bounds[0].limit
    lighter = [other for other in table if other.name == cell.name and other.load < cell.load]
    least, value, most = ([0.9 * cell.p99 > limit], [cell.p99 > limit], [cell.highest is None or cell.highest > limit])
    most += [0.9 * other.p99 > limit for other in lighter]
    if question.budget is not None:
        if cell.price is None:
            return OptionStanding.BROKEN
        rates = (1.05 * cell.rate, cell.rate, 0.95 * cell.rate)
        counts = [max(1, math.ceil((question.rate or 0) / rate - 1e-9)) for rate in rates]
        for beyond, count in zip((least, value, most), counts, strict=True):
            beyond.append((count if question.rate else 1) * cell.price > question.budget.usd * (1 + 1e-9))
    standings = (OptionStanding.BROKEN, OptionStanding.DOUBTFUL, OptionStanding.UNCERTAIN)
    return next((one for one, beyond in zip(standings, (least, value, most), strict=True) if any(beyond)),
                OptionStanding.SURE)  # fmt: skip


def brute_force(table: list[Cell], question: Question) -> list[tuple[OptionStanding, float]]:
    """Standing and score of every configuration that may be recommended, best first."""
    best: dict[str, tuple[OptionStanding, float]] = {}
    for cell in table:
        found, value = standing(cell, table, question), scored(cell, question)
        if value is None or found is OptionStanding.BROKEN or (question.strict and found is not OptionStanding.SURE):
            continue
        best[cell.name] = min(best.get(cell.name, (OptionStanding.BROKEN, math.inf)), (found, value))
    return sorted(best.values())


def told(ranking: Ranking, question: Question) -> list[tuple[OptionStanding, float]]:
    return [(option.standing, _less(option, question)) for option in ranking.options]


def _less(option: Option, question: Question) -> float:
    assert option.score is not None
    return -option.score.value if question.by == "goodput" else option.score.value


def asked(limit: float, by: str, rate: float | None, budget: float | None, strict: bool) -> Question:
    bounds = (SloLimit("p99", limit),)
    return Question(bounds, by, rate, Budget(budget, "hour") if budget else None, strict)  # type: ignore[arg-type]


questions = st.builds(asked, numbers, st.sampled_from(BY), st.none() | numbers, st.none() | numbers, st.booleans())


@given(tables(), questions)
def test_it_is_what_trying_everything_finds(table: list[Cell], question: Question) -> None:
    found = told(rank([cell.point for cell in table], question), question)
    wanted = brute_force(table, question)
    assert [place for place, _ in found] == [place for place, _ in wanted]
    assert all(math.isclose(a, b, rel_tol=1e-9) for (_, a), (_, b) in zip(found, wanted, strict=True))


@given(tables(), questions)
def test_it_never_breaks_the_promise(table: list[Cell], question: Question) -> None:
    limit = question.bounds[0].limit
    for option in rank([cell.point for cell in table], question).options:
        reading = option.point.readings["p99"]
        assert reading.low is not None and reading.low <= limit
        assert option.standing is OptionStanding.DOUBTFUL or reading.value <= limit
        assert option.standing is not OptionStanding.SURE or (reading.high is not None and reading.high <= limit)
        assert not question.strict or option.standing is OptionStanding.SURE
        if question.budget is not None:
            cost = option.per_hour
            assert cost is not None and cost.low is not None and cost.low <= question.budget.usd * (1 + 1e-9)


@given(tables(), questions, numbers)
def test_a_looser_promise_never_makes_the_best_worse(table: list[Cell], question: Question, more: float) -> None:
    points = [cell.point for cell in table]
    looser = question.with_limit("p99", question.bounds[0].limit + more)
    before, after = (told(rank(points, one), one) for one in (question, looser))
    assert not before or (after and after[0] <= before[0])


@given(tables(), questions)
def test_the_bounds_at_which_the_choice_flips_are_where_it_does(table: list[Cell], question: Question) -> None:
    points = [cell.point for cell in table]
    ranking = rank(points, question)
    found = changes(points, ranking, question)
    chosen = ranking.best.label if ranking.best else ""
    for flip in found.tighter:
        at, below = (rank(points, question.with_limit("p99", limit)).best
                     for limit in (flip.limit, math.nextafter(flip.limit, 0)))  # fmt: skip
        assert at is not None and at.label == chosen
        assert (below.label if below else "") == flip.label != chosen
    for flip in found.looser:
        at, below = (rank(points, question.with_limit("p99", limit)).best
                     for limit in (flip.limit, math.nextafter(flip.limit, 0)))  # fmt: skip
        assert at is not None and at.label == flip.label
        assert (below.label if below else "") == chosen != flip.label
    if not found.looser:
        best = rank(points, question.with_limit("p99", 1e9)).best
        assert best is None or best.label == chosen
