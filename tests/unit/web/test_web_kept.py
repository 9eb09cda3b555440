"""Answers that take long to work out are worked out when there is something new, and not too often."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from paceline.service.api import answer_cache
from paceline.service.api.answer_cache import AnswerCache
from paceline.store import dashboard_queries
from paceline.web.pages import analysis
from support.records import sample_run


class Worked:
    """An answer that takes a second of a clock that a test moves, and counts how often it was worked out."""

    def __init__(self) -> None:
        self.edition = 1
        self.time = 0.0
        self.times = 0
        self.kept = AnswerCache[int](lambda: self.edition, lambda: self.time)

    def ask(self, question: str = "") -> int:
        return self.kept.get(question, self._work_out)

    def _work_out(self) -> int:
        self.time += 1.0
        self.times += 1
        return self.times


def test_an_answer_holds_until_there_is_something_new() -> None:
    worked = Worked()
    assert [worked.ask(), worked.ask()] == [1, 1]
    worked.time += 30.0
    assert worked.ask() == 1, "nothing is new"
    worked.edition += 1
    assert worked.ask() == 2


def test_news_that_never_end_take_a_tenth_of_the_time_at_most() -> None:
    worked = Worked()
    for _ in range(1000):
        worked.edition += 1
        worked.ask()
        worked.time += 0.1
    assert worked.times <= worked.time / 10 + 1


def test_an_answer_is_worked_out_again_after_a_minute_whatever_the_edition_says() -> None:
    worked = Worked()
    worked.ask()
    worked.time += 61.0
    assert worked.ask() == 2


def test_only_the_latest_questions_are_remembered() -> None:
    worked = Worked()
    for number in range(answer_cache.MOST_ANSWERS + 1):
        worked.ask(f"question {number}")
    before = worked.times
    worked.ask(f"question {answer_cache.MOST_ANSWERS}")
    assert worked.times == before
    worked.ask("question 0")
    assert worked.times == before + 1


def test_those_who_ask_at_once_share_one_answer() -> None:
    begun, times, asked = threading.Event(), [], AnswerCache[int](lambda: 1)

    def work_out() -> int:
        times.append(1)
        begun.wait(30)
        return len(times)

    threads = [threading.Thread(target=asked.get, args=("", work_out)) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join(30)
    assert len(times) == 1


def test_what_was_raised_is_not_kept() -> None:
    asked = AnswerCache[int](lambda: 1)
    with pytest.raises(ZeroDivisionError):
        asked.get("", lambda: 1 // 0)
    assert asked.get("", lambda: 1) == 1


def test_the_leaderboard_reads_the_store_once_for_each_edition(visited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(store: Any) -> Any:
        read.append(1)
        return dashboard_queries.headlines(store)

    monkeypatch.setattr(analysis, "headlines", counted)
    monkeypatch.setattr(answer_cache, "_REST", 0.0)
    _keep(visited, "run-a")
    first = visited.json("/leaderboard")
    assert visited.json("/leaderboard?top=5")
    assert visited.page("/leaderboard")
    assert len(read) == 1
    _keep(visited, "run-b")
    second = visited.json("/leaderboard")
    assert len(read) == 2
    assert first != second, "the new run counts"


def test_every_record_that_is_kept_makes_another_edition(visited: Any) -> None:
    run = sample_run()
    begun = run.run.model_copy(update={"id": "run-a", "status": "running", "ended_at": None})
    visited.store.begin(begun)
    seen = {dashboard_queries.edition(visited.store)}
    for record in run.records:
        visited.store.add(record.model_copy(update={"run_id": "run-a"}))
        seen.add(dashboard_queries.edition(visited.store))
    assert len(seen) == 1 + len(run.records)


def _keep(visited: Any, run_id: str) -> None:
    run = sample_run()
    visited.store.begin(run.run.model_copy(update={"id": run_id, "status": "running", "ended_at": None}))
    for record in run.records:
        visited.store.add(record.model_copy(update={"run_id": run_id}))
    visited.store.finish(run_id)
