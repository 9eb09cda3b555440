"""One case on this machine: what its ranks say, how they end, and what is made of it."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.core.record import Cause, CauseKind, Outcome
from paceline.runner import case_log, execute
from paceline.runner.channel import Channel
from paceline.runner.execute import (
    AFTERMATH_SECONDS,
    CaseEnd,
    CaseExecution,
    Failure,
    MemoryKills,
)
from paceline.runner.fork_client import WarmServer
from support.probing import probing_case
from support.scripted_ranks import PATIENCE_SECONDS, Play, ScriptedRank, progress, result, scripted

STACK = 'Stack (most recent call first):\n  File "/src/model.py", line 7 in forward'
Ranks = Sequence[ScriptedRank]


def failed(message: str, at: float, outcome: Outcome = Outcome.FAILED) -> dict[str, Any]:
    """What a rank says that failed."""
    cause = Cause(kind=CauseKind.ERROR, message=message, detail="a traceback")
    return {"outcome": outcome, "cause": cause.model_dump(mode="json"), "at": at}


class Executed:
    """A case that was run, and what others heard of it."""

    def __init__(self, play: Play, size: int = 1, timeout: float = PATIENCE_SECONDS, ignored: str = "") -> None:
        self.progress: list[dict[str, Any]] = []
        self.failures = 0
        with scripted(size, play, ignored) as self.server:
            execution = CaseExecution(
                self.server.warm,
                probing_case(ranks=size, timeout=timeout),
                ranks={rank + 4: {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)},
                world_size=size,
                on_progress=self.progress.append,
                on_failure=self.note_failure,
            )
            self.end = execution.run(("json",))
            self.alive = [rank.is_alive for rank in self.server.ranks]

    def note_failure(self) -> None:
        self.failures += 1

    @property
    def failure(self) -> Failure:
        assert self.end.failure is not None
        return self.end.failure


def test_ranks_are_ordered_as_they_are_to_be() -> None:
    def play(ranks: Ranks) -> None:
        for rank in ranks:
            rank.measured()
            rank.exit()

    done = Executed(play, size=2)
    assert done.server.imported == ["json"]
    first, second = (dict(rank.order) for rank in done.server.ranks)
    logs = [Path(order.pop("log")) for order in (first, second)]
    assert [log.name for log in logs] == ["rank4.log", "rank5.log"]
    assert logs[0].parent.name.startswith("paceline-")
    assert not logs[0].parent.exists(), "the folder goes with the case"
    assert first == {
        "do": "fork",
        "case": probing_case(ranks=2, timeout=PATIENCE_SECONDS).model_dump(mode="json"),
        "rank": 4,
        "world_size": 2,
        "local_rank": 0,
        "environment": {"RANK": "0", "LOCAL_RANK": "0"},
        "folder": str(Path.cwd()),
    }
    assert (second["rank"], second["local_rank"]) == (5, 1)


def test_all_results_are_there_and_nothing_has_failed() -> None:
    def play(ranks: Ranks) -> None:
        ranks[1].measured(2.0)
        ranks[1].exit()
        ranks[0].measured(1.0)
        ranks[0].exit()

    done = Executed(play, size=2)
    assert {rank: one.measurements[0].samples for rank, one in done.end.results.items()} == {4: [1.0], 5: [2.0]}
    assert (done.end.failure, done.failures) == (None, 0)


def test_messages_of_another_form_are_passed_over_and_are_a_warning() -> None:
    odd: list[dict[str, Any]] = [
        {"progress": {"metric": 1}},
        {"progress": []},
        {"result": {"measurements": 7}},
        {"kept": "x"},
        {"failed": {"outcome": "odd"}},
        {"started": "now"},
        {"surprise": 1},
    ]

    def play(ranks: Ranks) -> None:
        for message in odd:
            ranks[0].tell(**message)
        os.write(ranks[0].channel.fileno(), b"rubbish")
        ranks[0].measured()
        ranks[0].exit()

    done = Executed(play)
    assert (done.end.failure, list(done.end.results), done.progress) == (None, [4], [])
    (warning,) = done.end.result().warnings
    assert (warning.kind, f"{len(odd) + 1} times" in warning.message) == ("stray-writes", True)
    assert CaseEnd.of_words(json.loads(json.dumps(done.end.words()))).warnings == [warning], "also of another host"


def test_a_message_counts_that_is_heard_of_after_the_end_of_its_process() -> None:
    def play(ranks: Ranks) -> None:
        (rank,) = ranks
        for number in range(20):
            rank.tell(progress=progress(float(number)))
        rank.measured()
        rank.say_ended()

    done = Executed(play)
    assert len(done.progress) == 20
    assert list(done.end.results) == [4]
    assert done.end.failure is None


def test_of_an_ended_process_nothing_is_waited_for_or_killed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = select.select

    def recorded(readers: Any, writers: Any, others: Any, timeout: float) -> Any:
        if any(reader in channels for reader in readers):
            waits.append(timeout)
        return real(readers, writers, others, timeout)

    channels: list[Channel] = []
    monkeypatch.setattr(select, "select", recorded)
    fork = WarmServer.fork

    def noted(self: WarmServer, *order: Any) -> tuple[int, Channel]:
        pid, channel = fork(self, *order)
        channels.append(channel)
        return pid, channel

    monkeypatch.setattr(WarmServer, "fork", noted)
    # Its number may belong to another process by now; and somebody else holds the other end of its channel.
    done = Executed(lambda ranks: ranks[0].say_ended(3 << 8))
    assert done.alive == [True]
    assert set(waits) == {0}
    assert done.failure.cause.message == "the process exited with code 3 before it had a result"


def test_a_rank_that_left_its_channel_open_or_closed_early_is_watched_until_it_ends() -> None:
    def play(ranks: Ranks) -> None:
        (rank,) = ranks
        rank.measured()
        rank.channel.close()
        time.sleep(0.02)
        rank.exit()

    done = Executed(play)
    assert (done.end.failure, done.alive) == (None, [False])


def test_progress_is_that_of_the_first_rank() -> None:
    def play(ranks: Ranks) -> None:
        for number, rank in enumerate(ranks):
            rank.tell(started=time.monotonic())
            rank.tell(progress=progress(float(number), 0.5))
            rank.tell(progress=progress(7.0, metric=""))
            rank.tell(failed=failed("it broke", at=time.monotonic()))
            rank.exit()

    done = Executed(play, size=2)
    assert [list(one["samples"]) for one in done.progress] == [[0.0, 0.5], [7.0]]
    (measurement,) = done.end.result().measurements
    assert (measurement.metric.name, measurement.metric.unit, measurement.samples) == ("step_time", "s", [0.0, 0.5])


def test_startup_is_from_the_order_of_a_rank_to_the_first_start_of_one() -> None:
    def play(ranks: Ranks) -> None:
        begun.append(time.monotonic())
        for rank in ranks:
            rank.tell(started=time.monotonic() + 5.0)
            rank.tell(started=time.monotonic() + 100.0)
            rank.measured()
            rank.exit()

    begun: list[float] = []
    before = time.monotonic()
    done = Executed(play, size=2)
    assert done.end.startup_seconds is not None
    assert 5.0 < done.end.startup_seconds < 5.0 + time.monotonic() - before
    assert done.end.result().facts["startup_seconds"] == done.end.startup_seconds


@pytest.mark.parametrize("ends", ["fails", "dies"])
def test_what_was_kept_stands_whatever_happens_after_it(ends: str) -> None:
    def play(ranks: Ranks) -> None:
        (rank,) = ranks
        rank.tell(kept=result(0.5, trace={}).model_dump(mode="json"))
        if ends == "fails":
            rank.tell(failed=failed("no space for the trace", at=time.monotonic()))
        rank.exit(1)

    done = Executed(play)
    (kept_result,) = done.end.results.values()
    message = "no space for the trace" if ends == "fails" else "the process exited with code 1 before it had a result"
    assert kept_result.facts == {"trace": {}, "cut_short": message}
    assert (done.end.failure, done.failures) == (None, 0)


def test_what_was_measured_stays_where_it_is_what_failed_the_case() -> None:
    def play(ranks: Ranks) -> None:
        (rank,) = ranks
        rank.tell(kept=result(0.5, wrong=3).model_dump(mode="json"))
        cause = Cause(kind=CauseKind.CORRUPTION, message="3 wrong elements").model_dump(mode="json")
        rank.tell(failed={"outcome": Outcome.FAILED, "cause": cause, "at": time.monotonic()})
        rank.exit()

    done = Executed(play)
    assert done.end.failure is not None and done.end.failure.cause.kind is CauseKind.CORRUPTION
    kept_result = done.end.result()
    assert kept_result.facts["wrong"] == 3 and "cut_short" not in kept_result.facts
    assert kept_result.measurements[0].value == 0.5


def test_a_result_counts_more_than_what_was_kept() -> None:
    def play(ranks: Ranks) -> None:
        (rank,) = ranks
        rank.tell(kept=result(0.5).model_dump(mode="json"))
        rank.measured(0.75, whole=True)
        rank.exit(1)

    assert Executed(play).end.results[4].facts == {"whole": True}


def test_the_failure_that_came_first_is_the_cause_and_is_heard_of_once() -> None:
    def play(ranks: Ranks) -> None:
        now = time.monotonic()
        ranks[0].tell(failed=failed("RuntimeError: Connection closed by peer [127.0.0.1]", at=now - 0.3))
        ranks[2].tell(failed=failed("a later one", at=now - 0.1))
        ranks[1].tell(failed=failed("the cause", at=now - 0.2, outcome=Outcome.OUT_OF_MEMORY))
        for rank in ranks:
            rank.tell(failed=failed("once more", at=now - 1.0))
            rank.exit()

    done = Executed(play, size=3)
    assert done.failure.cause == Cause(kind=CauseKind.ERROR, message="the cause", detail="a traceback", rank=5)
    assert (done.failure.rank, done.failure.outcome) == (5, Outcome.OUT_OF_MEMORY)
    assert done.failures == 1


def test_one_of_several_that_fails_ends_the_others_and_nothing_is_said_of_them() -> None:
    def play(ranks: Ranks) -> None:
        ranks[1].tell(failed=failed("the cause", at=time.monotonic() - AFTERMATH_SECONDS))
        ranks[1].exit()

    done = Executed(play, size=2)
    assert done.alive == [False, False]
    assert (done.failure.cause.message, done.end.results) == ("the cause", {})


@pytest.mark.parametrize(("size", "shown"), [(1, None), (2, 4)])
def test_a_cause_names_its_rank_where_there_are_several(size: int, shown: int | None) -> None:
    def play(ranks: Ranks) -> None:
        ranks[0].exit(9)
        for rank in ranks[1:]:
            rank.measured()
            rank.exit()

    done = Executed(play, size=size)
    assert (done.failure.rank, done.failure.cause.rank) == (4, shown)
    assert (done.failure.outcome, done.failure.cause.kind) == (Outcome.FAILED, CauseKind.CRASHED)


INTERRUPTED, CRASHED = CauseKind.INTERRUPTED, CauseKind.CRASHED


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (signal.SIGKILL, INTERRUPTED, "the process was ended by SIGKILL from outside; --resume measures it again"),
        (signal.SIGTERM, INTERRUPTED, "the process was ended by SIGTERM from outside; --resume measures it again"),
        (signal.SIGSEGV, CRASHED, "the process was ended by SIGSEGV: native code crashed; the last lines it wrote"),
        (signal.SIGALRM, CRASHED, "the process was ended by SIGALRM"),
    ],
)
def test_an_end_by_a_signal_is_explained(number: int, kind: CauseKind, says: str) -> None:
    def play(ranks: Ranks) -> None:
        ranks[0].log.write_bytes(b"a" * 3000 + b"\nthe last words\xff\n")
        ranks[0].die(number)

    done = Executed(play)
    assert (done.failure.outcome, done.failure.cause.kind) == (Outcome.FAILED, kind)
    assert done.failure.cause.message[: len(says)] == says
    assert (number != signal.SIGALRM) is (len(done.failure.cause.message) > len("the process was ended by SIGALRM"))
    assert done.failure.cause.detail == "a" * (case_log.SHOWN_TAIL - 17) + "\nthe last words\ufffd"


@pytest.mark.parametrize(("number", "is_memory"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_only_sigkill_may_be_for_lack_of_memory(monkeypatch: pytest.MonkeyPatch, number: int, is_memory: bool) -> None:
    counts = iter((MemoryKills(4, 7), MemoryKills(5, 8)))
    monkeypatch.setattr(execute, "kills_for_memory", lambda group: next(counts))
    done = Executed(lambda ranks: ranks[0].die(number))
    kind = CauseKind.HOST_MEMORY if is_memory else CauseKind.INTERRUPTED
    assert (done.failure.outcome is Outcome.OUT_OF_MEMORY, done.failure.cause.kind) == (is_memory, kind)
    assert (
        "the kernel killed the process because the host's memory ran out" in done.failure.cause.message
    ) is is_memory


@pytest.mark.parametrize(
    ("now", "before", "killer"),
    [
        (MemoryKills(5, 7), MemoryKills(4, 7), "the kernel"),
        (MemoryKills(4, 8), MemoryKills(4, 7), ""),
        (MemoryKills(None, 8), MemoryKills(4, 7), "probably the kernel"),
        (MemoryKills(5, 8), MemoryKills(None, 7), "probably the kernel"),
        (MemoryKills(None, 7), MemoryKills(None, 7), ""),
    ],
)
def test_the_group_counts_where_it_counted_before_and_after(now: MemoryKills, before: MemoryKills, killer: str) -> None:
    assert now.killer_since(before) == killer


@pytest.mark.parametrize("size", [1, 2])
def test_a_server_that_dies_takes_its_ranks_with_it(size: int) -> None:
    def play(ranks: Ranks) -> None:
        if size == 2:
            ranks[1].measured()
            time.sleep(0.02)
        ranks[0]._control.connection.shutdown(2)

    done = Executed(play, size=size)
    assert (done.failure.outcome, done.failure.cause.kind) == (Outcome.FAILED, CauseKind.INTERRUPTED)
    assert done.failure.rank == 4
    assert list(done.end.results) == [5][: size - 1]
    assert done.failures == 1


@pytest.mark.parametrize(("imports", "kind"), [(("json",), CRASHED), ((), INTERRUPTED)])
def test_a_server_that_dies_before_it_has_ranks_was_crashed_by_an_import_or_killed(
    imports: tuple[str, ...], kind: CauseKind
) -> None:
    server = WarmServer()
    heard: list[str] = []
    execution = CaseExecution(
        server,
        probing_case(ranks=2),
        ranks={6: {}, 5: {}},
        world_size=2,
        on_progress=lambda _progress: None,
        on_failure=lambda: heard.append("failure"),
    )
    server._control, theirs = Channel.pair()
    theirs.connection.shutdown(1)
    server.poll_ends = dict  # type: ignore[method-assign]  # it dies a moment later
    end = execution.run(imports)
    theirs.close()
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.rank) == (5, 5)
    assert (end.failure.outcome, end.failure.cause.kind) == (Outcome.FAILED, kind)
    assert heard == ["failure"]


def test_imports_that_take_longer_than_the_case_may_are_a_timeout() -> None:
    done = Executed(lambda _ranks: None, timeout=0.02, ignored="import")
    assert (done.failure.outcome, done.failure.cause.kind) == (Outcome.TIMEOUT, CauseKind.TIMEOUT)
    assert "--timeout" in done.failure.cause.message
    assert done.failures == 1


def test_what_is_late_is_asked_where_it_is_and_ended() -> None:
    def play(ranks: Ranks) -> None:
        ranks[0].log.write_text("what it printed")
        for rank in ranks:
            rank.log.with_suffix(".stack").write_text(STACK)
        ranks[1].measured()

    done = Executed(play, size=2, timeout=0.1)
    assert done.alive == [False, False]
    assert (done.failure.rank, done.failure.outcome) == (4, Outcome.TIMEOUT)
    says = "not done after 0.1 s: it was in forward (model.py:7); raise it with --timeout, or make the case smaller"
    cause = Cause(kind=CauseKind.TIMEOUT, message=says, detail=f"{STACK}\nwhat it printed", rank=4)
    assert done.failure.cause == cause
    assert list(done.end.results) == [5]


def test_a_folder_that_cannot_be_removed_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = os.rmdir

    def busy(path: Any, **more: Any) -> None:
        if "paceline-" in str(path):
            folders.append(Path(path))
            raise OSError(39, "Directory not empty")
        remove(path, **more)

    def play(ranks: Ranks) -> None:
        ranks[0].measured()
        ranks[0].exit()

    folders: list[Path] = []
    monkeypatch.setattr(os, "rmdir", busy)
    assert Executed(play).end.failure is None
    monkeypatch.undo()
    folders[0].rmdir()
