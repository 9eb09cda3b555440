"""The sentences of a recommendation: as sure as the intervals behind them, and with what would decide the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import Budget, HourlyPrice
from paceline.analysis.recommend.choice import AGAIN, COST_HOUR, Miss, OptionStanding, Recommendation, recommend
from paceline.analysis.recommend.evidence import Evidence, MeasuredLoad, Question, read_bounds
from paceline.analysis.summary import Reading
from paceline.report.recommend import document as report
from paceline.report.recommend.words import headline, missed, what_if, why
from paceline.report.render import markdown

NEVER = Reading(0.0, 0.0, 0.001, count=4000)  # failed


def load(name: str, rate: float, p99: Reading | None, errors: Reading = NEVER, requests: int = 1000) -> MeasuredLoad:
    readings = {"p99": p99, "error_rate": errors} if p99 is not None else {"error_rate": errors}
    return MeasuredLoad(
        configuration=Configuration("serve m", {"machine": name, "target": "cpu"}),
        throughput=Reading(rate, 0.98 * rate, 1.02 * rate),
        readings=readings,
        load=rate,
        requests=requests,
    )


def seconds(value: float, low: float, high: float) -> Reading:
    """Milliseconds as a reading of a thousand requests."""
    return Reading(value / 1000, low / 1000, high / 1000, count=1000)


def advise(*points: MeasuredLoad, slo: str = "p99=50ms", strict: bool = False, **more: object) -> Recommendation:
    question = Question(bounds=read_bounds([slo]), strict=strict, **more)  # type: ignore[arg-type]
    return recommend(Evidence("serve m", True, points=list(points)), question)


SURE = load("sure", 100, seconds(20, 19, 22))
WITHIN = load("within", 200, seconds(40, 38, 60))
BEYOND = load("beyond", 300, seconds(60, 40, 70))
BROKEN = load("broken", 400, seconds(80, 70, 95))


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        (
            (SURE, WITHIN, BROKEN),
            "Take sure: 100 ± 2.0 % requests/s, p99 20 ms (19 to 22 ms); meets p99 ≤ 50 ms with 95 % confidence.",
        ),
        (
            (WITHIN, BEYOND, BROKEN),
            "Nothing meets p99 ≤ 50 ms with 95 % confidence; within perhaps does: 200 ± 2.0 % requests/s, "
            "p99 40 ms (38 to 60 ms); not decidable yet: 3,000 more requests.",
        ),
        (
            (BEYOND, BROKEN),
            "Nothing meets p99 ≤ 50 ms with 95 % confidence; beyond cannot be ruled out: 300 ± 2.0 % requests/s, "
            "p99 60 ms (40 to 70 ms); not decidable yet: 3,000 more requests.",
        ),
        (
            (load("few", 50, None, requests=380),),
            "Nothing meets p99 ≤ 50 ms with 95 % confidence; few cannot be ruled out: 50 ± 2.0 % requests/s; "
            "not decidable yet: 120 more requests.",
        ),
        (
            (BROKEN,),
            "No configuration meets p99 ≤ 50 ms; the nearest is broken at 400/s: p99 is 80 ms, 60.0 % above 50 ms.",
        ),
        ((), "There is nothing to recommend: no case gave a figure to rest on."),
    ],
)
def test_the_answer_is_as_sure_as_the_intervals(points: tuple[MeasuredLoad, ...], sentence: str) -> None:
    assert headline(advise(*points)) == sentence


def test_a_strict_question_takes_nothing_that_is_open() -> None:
    assert headline(advise(WITHIN, strict=True)) == (
        "No configuration meets p99 ≤ 50 ms with 95 % confidence; the nearest is within at 200/s: "
        "p99 is 40 ms, but may be as high as 60 ms; not decidable yet: 3,000 more requests."
    )


@pytest.mark.parametrize(
    ("miss", "sentence"),
    [
        (Miss("p99", 0.05, Reading(0.08), OptionStanding.BROKEN), "p99 is 80 ms, 60.0 % above 50 ms"),
        (Miss("p99", 0.05, Reading(6.0), OptionStanding.BROKEN), "p99 is 6 s, above 50 ms"),
        (
            Miss("p99", 0.05, Reading(0.04, 0.03, 0.06), OptionStanding.UNCERTAIN, undecided="X"),
            "p99 is 40 ms, but may be as high as 60 ms; X",
        ),
        (
            Miss("p99", 0.05, Reading(0.06, 0.04, 0.07), OptionStanding.DOUBTFUL, undecided="X"),
            "p99 is 60 ms, but may be as low as 40 ms; X",
        ),
        (
            Miss("p99", 0.05, Reading(0.04), OptionStanding.UNCERTAIN, undecided="X"),
            "p99 is 40 ms, but how high it may be is not known; X",
        ),
        (
            Miss("p99", 0.05, Reading(0.06), OptionStanding.DOUBTFUL, undecided="X"),
            "p99 is 60 ms, but how low it may be is not known; X",
        ),
        (
            Miss("p99", 0.05, Reading(0.04, 0.03, 0.045), OptionStanding.UNCERTAIN, lighter=100.0, undecided="X"),
            "p99 is 40 ms, but a lighter load of 100/s broke 50 ms; X",
        ),
        (Miss("p99", 0.05, None, OptionStanding.DOUBTFUL, undecided="X"), "p99 is not known: X"),
        (
            Miss("p99", 0.05, None, OptionStanding.BROKEN, why="it was not measured"),
            "p99 is not known: it was not measured",
        ),
        (
            Miss("p99", 0.03, Reading(0.05, None, 0.05, is_limit=True), OptionStanding.BROKEN),
            "its search was for p99 ≤ 50 ms and says nothing of 30 ms",
        ),
        (
            Miss("p99", 0.05, Reading(0.05, is_limit=True), OptionStanding.UNCERTAIN, undecided="X"),
            "its search was for p99 ≤ 50 ms; X",
        ),
        (
            Miss("error_rate", 0.01, Reading(0.012, 0.008, 0.02), OptionStanding.DOUBTFUL, undecided="X"),
            "the error rate is 1.2 %, but may be as low as 0.8 %; X",
        ),
        (
            Miss(COST_HOUR, 4.0, Reading(4.0, 4.0, 6.0), OptionStanding.UNCERTAIN, undecided="X"),
            "the cost is 4 USD per hour, but may be as high as 6 USD per hour; X",
        ),
        (
            Miss(COST_HOUR, 4.0, None, OptionStanding.BROKEN, why="its price is not known"),
            "its price is not known",
        ),
    ],
)
def test_a_bound_that_is_broken_or_open_is_said_with_its_figures(miss: Miss, sentence: str) -> None:
    assert missed(miss) == sentence


def test_the_reasons_claim_no_more_than_is_sure() -> None:
    assert why(advise(SURE, WITHIN, BEYOND, BROKEN))[0] == (
        "1 of 4 configurations meet the SLO with 95 % confidence, 2 more perhaps; of the sure ones, this one "
        "meets it at the highest rate."
    )
    assert why(advise(WITHIN, BEYOND, BROKEN))[0] == (
        "0 of 3 configurations meet the SLO with 95 % confidence, 2 more perhaps; of the uncertain ones, this one "
        "has the highest rate."
    )
    assert why(advise(BEYOND))[0] == (
        "0 of 1 configurations meet the SLO with 95 % confidence, 1 more perhaps; of the doubtful ones, this one "
        "has the highest rate."
    )


def test_what_would_win_says_what_would_decide() -> None:
    lines = what_if(advise(SURE, WITHIN))
    lacking = "p99 is 40 ms, but may be as high as 60 ms; not decidable yet: 3,000 more requests."
    assert (
        lines[0]
        == f"within at 200/s would be better (200 ± 2.0 % requests/s) if it met the SLO with 95 % confidence: {lacking}"
    )
    slower = load("slower", 50, seconds(40, 38, 60))
    assert what_if(advise(SURE, slower))[0] == (
        f"Next is slower, of which it is open whether it meets the SLO: {lacking}"
    )
    assert "With p99 ≤ 60 ms the choice is within." in lines
    (line,) = [one for one in what_if(advise(BROKEN)) if "qualify" in one]
    assert line == "With p99 ≤ 70 ms broken might qualify."


def test_a_budget_that_is_open_is_no_answer() -> None:
    priced = replace(SURE, price=HourlyPrice(2.0, "stated"))
    advice = advise(priced, rate=200.0, budget=Budget(4.0, "hour"))
    assert headline(advice) == (
        "Nothing meets p99 ≤ 50 ms and at most 4 USD per hour with 95 % confidence; 2 replicas of sure perhaps do: "
        f"100 ± 2.0 % requests/s, p99 20 ms (19 to 22 ms), 4 USD/h together; {AGAIN}."
    )


def test_the_table_and_the_warnings_name_each_standing() -> None:
    text = markdown.render(report.document([advise(SURE, WITHIN, BEYOND, BROKEN)], 5))
    rows = [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if line.startswith(("| 1", "| 2", "| 3"))]
    assert rows == ["yes", "uncertain", "doubtful"]
    assert "within at 200/s is uncertain: p99 is 40 ms, but may be as high as 60 ms" in text
    assert "beyond at 300/s is doubtful: p99 is 60 ms, but may be as low as 40 ms" in text
    assert "broken at 400/s: p99 is 80 ms, 60.0 % above 50 ms." in text
