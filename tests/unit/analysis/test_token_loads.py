"""Loads of language models: those of a sweep and those of cases, and which of them no other one beats."""

from __future__ import annotations

import pytest

from paceline.analysis.serving import TOTAL, best_load, each_load, load_of, tail_of, token_curves
from paceline.analysis.summary import summarize_run
from support.records import run_of
from support.serving_records import rates_run
from support.token_records import at_rate, of_users, sweep_run, swept, users_run


def test_each_load_of_a_sweep_is_a_row_with_its_own_figures() -> None:
    (row,) = summarize_run(sweep_run()).rows
    rows = each_load([row])
    assert [one.record.load.users for one in rows if one.record.load] == [1, 2, 4, 8, 16, 32]
    for one, point in zip(rows, (1, 2, 4, 8, 16, 32), strict=True):
        measured = row.record.measurement(TOTAL, at={"users": point})
        assert measured is not None and one.headline is not None
        assert (one.headline.name, one.headline.value) == (TOTAL, measured.value)
    assert len({one.label for one in rows}) == 6


def test_rows_that_are_no_sweep_stay_as_they_are() -> None:
    rows = summarize_run(rates_run()).rows
    assert each_load(rows) == list(rows)
    assert token_curves(rows) == []


def test_a_sweep_and_cases_of_their_own_give_the_same_curve() -> None:
    (one,) = token_curves(summarize_run(sweep_run()).rows)
    (other,) = token_curves(summarize_run(users_run()).rows)
    assert [load.name for load in other] == ["1 user", "4 users", "16 users"]
    by_users = {load.amount: load for load in one}
    for load in other:
        assert load.value(TOTAL) == pytest.approx(by_users[load.amount].value(TOTAL))


def test_the_front_holds_what_no_other_load_beats() -> None:
    (curve,) = token_curves(summarize_run(sweep_run()).rows)
    front = {load.amount for load in curve if load.on_front}
    assert 1.0 in front and len(front) > 2
    for load in curve:
        others = [one for one in curve if one is not load]
        beaten = any(
            (one.value("tokens_per_user") or 0) >= (load.value("tokens_per_user") or 0)
            and (one.per_device or 0) > (load.per_device or 0)
            for one in others
        )
        assert load.on_front is not beaten


def test_throughput_is_of_one_device() -> None:
    record = of_users(0, 4)
    assert record.load is not None
    several = record.model_copy(update={"load": record.load.model_copy(update={"devices": 4})})
    (one,), (other,) = (token_curves(summarize_run(run_of([each])).rows) for each in (record, several))
    assert one[0].per_device == pytest.approx(4 * (other[0].per_device or 0.0))


def test_an_open_loop_is_so_many_requests_a_second() -> None:
    (row,) = summarize_run(run_of([at_rate(0, 12.5)])).rows
    load = load_of(row)
    assert load is not None and (load.name, load.is_users) == ("12.5/s", False)


def test_the_tail_is_the_highest_percentile_that_most_loads_have() -> None:
    rows = each_load(summarize_run(sweep_run()).rows)  # 60 requests for each user: most have 500 and more
    assert tail_of(rows) == "p95"
    assert tail_of(rows[-1:]) == "p99"
    assert tail_of(each_load(summarize_run(run_of([of_users(0, 1, each=12)])).rows)) == "p50"


def test_the_most_of_something_names_its_load() -> None:
    (curve,) = token_curves(summarize_run(run_of([swept(users=(1, 4))])).rows)
    best = best_load(curve, TOTAL)
    assert best is not None and best[0].name == "4 users"
