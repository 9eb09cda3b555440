"""The cases of a suite one after the other: what becomes a record, and what is kept of a case in flight."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import registry
from paceline.core.case import Case
from paceline.core.errors import StoreError
from paceline.core.interrupt import catch_interrupts
from paceline.core.record import Cause, CauseKind, Outcome, Record, Result
from paceline.core.run import Run
from paceline.runner import run as run_module
from paceline.runner.execute import CaseEnd, Failure
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import PARTIAL_SECONDS, Listener, SuiteRun, execute_here, imports_of
from support.probing import PROVIDER, probing_case
from support.scripted_ranks import ScriptedRank, result, scripted

Tell = Callable[[dict[str, Any]], None]
CASES = [probing_case(index) for index in range(3)]
RUN = Run(
    id="r",
    name="probing",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    version="0",
    command=[],
    environment={},
    cases=CASES,
)


class Remembered(Listener):
    """A sink and a listener that remember."""

    def __init__(self, broken: Sequence[int] = ()) -> None:
        self.records: list[Record] = []
        self.partial: list[tuple[str, int, int, str, str, list[float]]] = []
        self.heard: list[tuple[str, Any]] = []
        self.samples: list[list[float]] = []
        self._broken = broken

    def add(self, record: Record) -> None:
        if record.case.index in self._broken:
            raise StoreError("the disk is full")
        self.records.append(record)

    def keep_partial(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        if case_index in self._broken:
            raise StoreError("the disk is full")
        self.partial.append((run_id, case_index, attempt, metric, unit, list(samples)))

    def started(self, run: Run, todo: Sequence[Case]) -> None:
        self.heard.append(("started", len(todo)))

    def case_started(self, case: Case) -> None:
        self.heard.append(("case", case.index))

    def case_progress(self, case: Case, progress: Mapping[str, Any], samples: Sequence[float]) -> None:
        self.samples.append(list(samples))

    def case_ended(self, record: Record) -> None:
        self.heard.append(("ended", record.case.index))

    def trouble(self, message: str) -> None:
        self.heard.append(("trouble", message))


def progress(*samples: float, metric: str = "step_time") -> dict[str, Any]:
    return {"phase": "measuring", "metric": metric, "unit": "s", "samples": samples, "work": None, "rate_unit": ""}


def failing(outcome: Outcome, message: str = "it broke", detail: str = "") -> CaseEnd:
    cause = Cause(kind=CauseKind.ERROR, message=message, detail=detail)
    return CaseEnd(failure=Failure(0, outcome, cause, 0.0))


def suite_run(
    ends: Sequence[CaseEnd | None], broken: Sequence[int] = (), **more: Any
) -> tuple[bool, Remembered, SuiteRun]:
    """All cases, each with its end."""

    def execute(_server: WarmServer, case: Case, _tell: Tell) -> CaseEnd | None:
        return ends[case.index]

    remembered = Remembered(broken)
    run = SuiteRun(run=RUN, todo=CASES[: len(ends)], sink=remembered, listener=remembered, execute=execute, **more)
    return run.go(), remembered, run


def ok() -> CaseEnd:
    return CaseEnd(results={0: result(0.5, conditions={"load": 1.0}, batch_size=4)})


def test_every_case_becomes_a_record() -> None:
    all_ok, remembered, _ = suite_run([ok(), ok()], attempts={1: 2})
    assert all_ok
    first, second = remembered.records
    assert (first.run_id, first.case, first.attempt, second.attempt) == ("r", CASES[0], 1, 3)
    assert (first.outcome, first.cause) == (Outcome.OK, None)
    assert (first.facts, first.conditions) == ({"batch_size": 4}, {"load": 1.0})
    assert first.measurements[0].samples == [0.5]
    assert 0.0 <= first.seconds < 60.0
    assert remembered.heard == [("started", 2), ("case", 0), ("ended", 0), ("case", 1), ("ended", 1)]


@pytest.mark.parametrize(
    ("outcome", "expected"), [(Outcome.FAILED, False), (Outcome.TIMEOUT, False), (Outcome.UNSUPPORTED, True)]
)
def test_one_case_that_fails_is_a_run_that_is_not_ok(outcome: Outcome, expected: bool) -> None:
    all_ok, remembered, _ = suite_run([ok(), failing(outcome), ok()])
    assert all_ok is expected
    assert [record.outcome for record in remembered.records] == [Outcome.OK, outcome, Outcome.OK]


def test_repetitions_are_copies_of_different_processes() -> None:
    servers: list[WarmServer] = []

    def execute(server: WarmServer, _case: Case, _tell: Tell) -> CaseEnd:
        servers.append(server)
        return ok()

    todo = [case.model_copy(update={"repeat": repeat}) for repeat in (1, 2) for case in CASES[:2]]
    remembered = Remembered(())
    SuiteRun(run=RUN, todo=todo, sink=remembered, listener=remembered, execute=execute).go()
    assert servers[0] is servers[1]
    assert servers[2] is servers[3]
    assert servers[1] is not servers[2]


def test_text_of_a_case_is_clean_in_its_record() -> None:
    unclean = os.fsdecode(b"d\xff") + "\x1b[2J\x00"
    good = CaseEnd(results={0: result(0.5, conditions={"load": unclean}, **{unclean: [unclean]})})
    _, remembered, _ = suite_run([failing(Outcome.FAILED, unclean, unclean), good])
    clean = r"d\udcff\x1b[2J\x00"
    failed, measured = remembered.records
    assert failed.cause is not None
    assert (failed.cause.message, failed.cause.detail) == (clean, clean)
    assert (measured.facts, measured.conditions) == ({clean: [clean]}, {"load": clean})


def test_a_cause_names_no_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _, remembered, _ = suite_run([failing(Outcome.FAILED, f"no {tmp_path}/a", f"in {tmp_path}/b.py")])
    (record,) = remembered.records
    assert record.cause is not None
    assert str(tmp_path) not in record.cause.message + record.cause.detail
    assert record.cause.message.endswith("/a")
    assert record.cause.detail.endswith("/b.py")


def test_a_case_whose_record_another_process_keeps_is_none_here() -> None:
    all_ok, remembered, _ = suite_run([None, ok()])
    assert all_ok
    assert [record.case.index for record in remembered.records] == [1]
    assert remembered.heard == [("started", 2), ("case", 0), ("case", 1), ("ended", 1)]


def test_a_record_that_cannot_be_stored_is_put_aside_and_the_run_goes_on() -> None:
    all_ok, remembered, run = suite_run([ok(), ok()], broken=[0])
    assert not all_ok
    assert [record.case.index for record in run.put_aside] == [0]
    assert [record.case.index for record in remembered.records] == [1]
    assert ("trouble", "the disk is full") in remembered.heard
    assert ("ended", 0) in remembered.heard


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 5000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def told(
    play: Callable[[Tell], None], broken: Sequence[int] = (), attempts: Mapping[int, int] | None = None
) -> Remembered:
    """What is heard of a case that reports its progress so, and then ends well."""

    def execute(_server: WarmServer, _case: Case, tell: Tell) -> CaseEnd:
        play(tell)
        return ok()

    remembered = Remembered(broken)
    SuiteRun(
        run=RUN,
        todo=CASES[:1],
        sink=remembered,
        listener=remembered,
        execute=execute,
        attempts=attempts or {},
    ).go()
    return remembered


def test_new_samples_are_kept_once_a_second(clock: Clock) -> None:
    def play(tell: Tell) -> None:
        tell(progress(1.0))
        clock.now += PARTIAL_SECONDS - 0.25
        tell(progress(2.0))
        clock.now += 0.25
        tell(progress(3.0))
        clock.now += PARTIAL_SECONDS / 2
        tell(progress(4.0))
        clock.now += PARTIAL_SECONDS / 2
        tell(progress())
        clock.now += PARTIAL_SECONDS
        tell(progress())

    remembered = told(play, attempts={0: 1})
    assert remembered.partial == [
        ("r", 0, 2, "step_time", "s", [1.0, 2.0, 3.0]),
        ("r", 0, 2, "step_time", "s", [4.0]),
    ]
    assert remembered.samples[-1] == [1.0, 2.0, 3.0, 4.0]


def test_seconds_are_those_of_the_case(clock: Clock) -> None:
    def play(_tell: Tell) -> None:
        clock.now += 12.5

    assert told(play).records[0].seconds == 12.5


def test_of_the_next_point_of_a_sweep_all_samples_are_kept_again(clock: Clock) -> None:
    def play(tell: Tell) -> None:
        clock.now += PARTIAL_SECONDS
        tell(progress(1.0, 2.0, metric="a"))
        tell(progress(metric=""))
        tell(progress(3.0, metric="a"))
        tell(progress(4.0, metric="b"))
        clock.now += PARTIAL_SECONDS
        tell(progress(5.0, metric="b"))

    remembered = told(play)
    assert [(one[3], one[5]) for one in remembered.partial] == [("a", [1.0, 2.0]), ("a", [3.0]), ("b", [4.0, 5.0])]
    assert remembered.samples == [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.0], [4.0], [4.0, 5.0]]


def test_samples_that_cannot_be_kept_end_no_case(clock: Clock) -> None:
    def play(tell: Tell) -> None:
        clock.now += PARTIAL_SECONDS
        tell(progress(1.0))
        tell(progress(2.0))

    heard = told(play, broken=[0]).heard
    assert heard.count(("trouble", "the disk is full")) == 2, "once for the sample, once for the record"


def test_an_interrupt_while_samples_are_stored_stores_them_once(
    clock: Clock,
) -> None:
    class Interrupting(Remembered):
        def keep_partial(self, *part: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            super().keep_partial(*part)

    def execute(_server: WarmServer, _case: Case, tell: Tell) -> CaseEnd:
        clock.now += PARTIAL_SECONDS
        tell(progress(1.0, 2.0))
        raise AssertionError("the interrupt was lost")

    sink = Interrupting()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    catch_interrupts()
    try:
        with pytest.raises(KeyboardInterrupt):
            SuiteRun(run=RUN, todo=CASES[:1], sink=sink, execute=execute).go()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [one[5] for one in sink.partial] == [[1.0, 2.0]]


def test_a_case_of_this_machine_imports_its_benchmark_and_runs_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(ranks: Sequence[ScriptedRank]) -> None:
        for rank in ranks:
            rank.tell(progress=progress(0.5))
            rank.measured()
            rank.exit()

    monkeypatch.setattr(registry, "providers", lambda: ("paceline", PROVIDER))
    heard: list[dict[str, Any]] = []
    case = probing_case(ranks=2)
    assert imports_of(case) == (PROVIDER,)
    with scripted(2, play) as server:
        end = execute_here(server.warm, case, heard.append)
        orders = [rank.order for rank in server.ranks]
    assert server.imported == [PROVIDER]
    assert [(order["rank"], order["local_rank"], order["world_size"]) for order in orders] == [(0, 0, 2), (1, 1, 2)]
    assert (sorted(end.results), end.failure, len(heard)) == ([0, 1], None, 1)


def test_what_may_run_at_once_is_handed_over_together_and_the_rest_one_by_one() -> None:
    def of_device(index: int, number: int, **more: Any) -> Case:
        return CASES[0].model_copy(update={"index": index, "target": f"cuda:{number}", "at_once": True, **more})

    todo = [of_device(0, 0), of_device(1, 1), of_device(2, 0, at_once=False), of_device(3, 1, benchmark="other")]
    alone: list[int] = []
    together: list[list[int]] = []

    def execute(_server: WarmServer, case: Case, _tell: Tell) -> CaseEnd:
        alone.append(case.index)
        return CaseEnd(results={0: Result()})

    def several(_server: WarmServer, cases: Sequence[tuple[Case, Tell]]) -> list[CaseEnd]:
        together.append([case.index for case, _ in cases])
        return [CaseEnd(results={0: Result()}) for _ in cases]

    remembered = Remembered(())
    run = SuiteRun(run=RUN, todo=todo, sink=remembered, listener=remembered, execute=execute, several=several)
    assert run.go()
    assert (together, alone) == ([[0, 1]], [2, 3])
    assert [record.case.index for record in remembered.records] == [0, 1, 2, 3]
