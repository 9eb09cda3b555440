"""One case on this machine at one moment: who is waited for, who is late, and how an end is told to others."""

from __future__ import annotations

import json
import selectors
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.record import Cause, CauseKind, Outcome, Result
from paceline.runner import execute, stacks
from paceline.runner.control_group import MemoryWatch
from paceline.runner.execute import (
    AFTERMATH_SECONDS,
    LINGER_SECONDS,
    CaseEnd,
    CaseExecution,
    Failure,
    _Rank,
    local_ranks,
    rank_environment,
)
from support.probing import probing_case
from support.scripted_ranks import PATIENCE_SECONDS, Play, ScriptedServer, progress, result, scripted


@pytest.mark.parametrize(("left", "expected"), [(600.0, 0.2), (0.199, 0.2), (0.05, 0.051), (0.0, 0.001), (-5.0, 0.001)])
def test_a_wait_ends_soon_after_the_deadline_and_otherwise_a_few_times_a_second(
    monkeypatch: pytest.MonkeyPatch, left: float, expected: float
) -> None:
    waits: list[float] = []

    class Recorded(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            assert timeout is not None
            waits.append(timeout)
            return super().select(0.01)

    monkeypatch.setattr(selectors, "DefaultSelector", Recorded)
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.0)
    with standing(1, lambda ranks: ranks[0].exit()) as stood:
        monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: 1000.0))
        stood.execution.deadline = 1000.0 + left
        execute._watch(stood.server.warm, [stood.execution], stood.memory)
    assert waits == [pytest.approx(expected)] * len(waits)
    assert waits


class standing:
    """An execution whose ranks were started, for a look at what it does at one moment."""

    def __init__(self, size: int, play: Play = lambda _ranks: None, abort: Callable[[], bool] = lambda: False) -> None:
        self._server = scripted(size, play)
        self._size = size
        self._abort = abort

    def __enter__(self) -> standing:
        self.server: ScriptedServer = self._server.__enter__()
        case = probing_case(ranks=self._size, timeout=60.0)
        environments: dict[int, dict[str, str]] = {rank: {} for rank in range(self._size)}
        self.execution = CaseExecution(
            self.server.warm,
            case,
            ranks=environments,
            world_size=self._size,
            on_progress=lambda _progress: None,
            abort=self._abort,
        )
        self._folder = tempfile.TemporaryDirectory()
        self.memory = MemoryWatch(self.server.warm.group, None)
        self.execution.deadline = time.monotonic() + PATIENCE_SECONDS
        self.execution.start(Path(self._folder.name), self.memory)
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.channel.close()
        self._server.__exit__(None, None, None)
        self._folder.cleanup()

    @property
    def ranks(self) -> list[_Rank]:
        return self.execution._ranks

    def enforce(self, now: float, deadline: float) -> None:
        self.execution.deadline = deadline
        self.execution._enforce(now, takes_too_much=False)

    def killed(self) -> list[int]:
        """Which ranks were killed, as the execution has it and as their processes have it."""
        marked = [rank.rank for rank in self.ranks if rank.killed]
        for number in marked:
            if not self.ranks[number].ended:
                self.server.ranks[number]._reaper.join(PATIENCE_SECONDS)
        gone = [number for number, rank in enumerate(self.server.ranks) if not rank.is_alive]
        assert gone == marked
        return marked


def a_failure(rank: int, at: float) -> Failure:
    return Failure(rank, Outcome.FAILED, Cause(kind=CauseKind.ERROR, message="it broke"), at)


@pytest.mark.parametrize(("since", "killed"), [(0.5, []), (AFTERMATH_SECONDS, [0, 1, 2])])
def test_after_the_first_failure_the_others_have_a_moment_to_report_theirs(since: float, killed: list[int]) -> None:
    with standing(3) as stood:
        stood.ranks[0].failure = a_failure(0, at=1000.0)
        stood.ranks[1].failure = a_failure(1, at=1000.25)
        stood.enforce(1000.0 + since, 2000.0)
        assert stood.killed() == killed


def test_who_is_told_to_stop_stops() -> None:
    with standing(2, abort=lambda: True) as stood:
        stood.ranks[0].ended = True
        stood.enforce(1000.0, 2000.0)
        assert stood.killed() == [1], "what has ended is not killed again"


@pytest.mark.parametrize(("since", "killed"), [(LINGER_SECONDS - 0.5, []), (LINGER_SECONDS, [1])])
def test_a_rank_that_has_its_result_may_take_a_while_to_leave(since: float, killed: list[int]) -> None:
    with standing(2) as stood:
        stood.ranks[1].result, stood.ranks[1].result_at = Result(), 1000.0
        stood.enforce(1000.0 + since, 2000.0)
        assert stood.killed() == killed


@pytest.mark.parametrize("late", [0.0, LINGER_SECONDS - 1.0, LINGER_SECONDS])
def test_at_the_deadline_all_are_killed_and_what_cannot_be_killed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.0)
    with standing(3) as stood:
        stood.ranks[1].result = Result()
        stood.ranks[2].ended = True
        stood.enforce(2000.0 + late, 2000.0)
        assert [rank.killed for rank in stood.ranks] == [True, True, False]
        assert [rank.ended for rank in stood.ranks] == [late == LINGER_SECONDS] * 2 + [True]
        failures = [rank.failure for rank in stood.ranks]
        assert failures[1] is None
        assert failures[0] is not None
        assert failures[2] is not None
        remedy = "raise it with --timeout, or make the case smaller"
        assert failures[0].cause.message == f"not done after 60 s: the process does not react; {remedy}"
        assert failures[2].cause.message == f"not done after 60 s; {remedy}", "nobody is there to be asked"
        assert {failures[0].at, failures[2].at} == {2000.0 + late}
        assert failures[0].cause.detail == ""


def test_before_the_deadline_nobody_is_late() -> None:
    with standing(1) as stood:
        stood.enforce(1999.9, 2000.0)
        assert (stood.killed(), stood.ranks[0].failure) == ([], None)


def test_a_failure_is_told_to_another_process_by_how_long_ago_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    words = json.loads(json.dumps(CaseEnd(failure=a_failure(3, at=990.0)).words()))
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: 50.0))
    assert CaseEnd.of_words(words).failure == a_failure(3, at=40.0)
    assert CaseEnd.of_words(words, at=0.0).failure == a_failure(3, at=0.0)


@pytest.mark.parametrize("message", [*execute._CONSEQUENCES, "[Rank 1] Connection RESET by 10.0.0.1"])
def test_a_consequence_comes_after_every_cause(message: str) -> None:
    cause = Cause(kind=CauseKind.ERROR, message=message)
    consequence, later = Failure(0, Outcome.FAILED, cause, 1.0), a_failure(1, at=2.0)
    assert sorted([consequence, later], key=lambda failure: failure.order) == [later, consequence]


@pytest.mark.parametrize("failure", [None, a_failure(1, at=5.0)])
def test_an_end_is_the_same_in_another_process(failure: Failure | None) -> None:
    end = CaseEnd(results={1: result(0.5), 0: result(0.25)}, failure=failure, startup_seconds=1.5)
    again = CaseEnd.of_words(json.loads(json.dumps(end.words())), at=5.0)
    assert again == end


def test_ranks_are_merged_in_their_order() -> None:
    end = CaseEnd(results={1: result(0.5), 0: result(0.25)})
    merged = end.result()
    assert merged.measurements[0].samples == [0.25], "of this metric, the first rank's counts"
    assert "startup_seconds" not in merged.facts


@pytest.mark.parametrize(("metric", "samples"), [("", (1.0,)), ("step_time", ())])
def test_only_samples_of_a_metric_are_kept(metric: str, samples: tuple[float, ...]) -> None:
    end = CaseEnd(failure=a_failure(0, at=1.0))
    end.keep(progress(*samples, metric=metric))
    assert end.samples == {}


def test_ranks_of_one_machine_meet_on_its_loopback() -> None:
    assert local_ranks(1) == {0: {}}
    pair = local_ranks(2)
    port = pair[0]["MASTER_PORT"]
    assert pair == {rank: rank_environment(rank, rank, 2, 2, "127.0.0.1", port) for rank in (0, 1)}
    assert list(rank_environment(3, 1, 4, 2, "first", "29").items()) == [
        ("RANK", "3"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "first"),
        ("MASTER_PORT", "29"),
    ]
