"""A worker with real processes: what it starts, tells, adopts, stops and cleans up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.runner.channel import Channel
from paceline.runner.execute import MemoryKills
from paceline.service.engines.base import Assignment, Item
from paceline.service.follower.spool import Spool
from paceline.service.follower.warm_start import ForkedProcess, _Forker
from paceline.service.follower.worker import Worker
from paceline.service.jobs import FailureKind, JobFailure
from support.cli import MARK, PLUGIN
from support.scripted_followers import naps
from support.workers import end_all

PATIENCE = 60.0  # seconds; only what hangs takes so long
pytestmark = pytest.mark.slow
LONG = naps("300s", steps=3000)


class Bench:
    """A worker that may be thrown away, and what it told so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = Worker(folder, "here", ["fast"])
        self.told: dict[tuple[str, int], list[Item]] = {}

    def begin(self, suite: dict[str, Any], name: str = "job", **more: Any) -> Assignment:
        assignment = Assignment(job_id=name, attempt=1, run_id=f"run-{name}", suite=suite, **more)
        self.worker.begin(assignment)
        self.told[name, 1] = []
        return assignment

    def poll(self) -> None:
        """Hear what there is to tell, and acknowledge it next time."""
        heard = {attempt: len(items) for attempt, items in self.told.items()}
        for report in self.worker.poll(heard):
            items = self.told[report.job_id, report.attempt]
            assert [item.number for item in report.items] == list(
                range(len(items) + 1, len(items) + 1 + len(report.items))
            )
            items += report.items

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, self.why_not()
            self.poll()
            time.sleep(0.02)

    def why_not(self) -> str:
        """What was told, what still runs, and where: every process writes its stack as it aborts."""
        lines = [f"{job}: {[item.kind for item in items]}" for (job, _), items in self.told.items()]
        living = self.processes()
        for one in living:
            with suppress(psutil.NoSuchProcess):
                wait = Path(f"/proc/{one.pid}/wchan").read_text()
                lines.append(f"{one.pid} of {one.ppid()} {one.status()} in {wait}: {' '.join(one.cmdline())}")
                one.send_signal(signal.SIGABRT)
        psutil.wait_procs(living, timeout=5)
        lines += [output.read_text(errors="replace") for output in self.folder.glob("*/output.txt")]
        return "\n".join(lines)

    def kinds(self, name: str = "job") -> list[str]:
        return [item.kind for item in self.told[name, 1]]

    def last(self, name: str = "job") -> Item | None:
        items = self.told[name, 1]
        return items[-1] if items and items[-1].kind == "ended" else None

    def runner(self) -> int:
        """The process that measures, once it has begun."""
        self.until(lambda: "began" in self.kinds())
        runner = self.spool().process
        assert runner is not None
        return int(runner["pid"])

    def failure(self) -> JobFailure:
        """Why the attempt failed, once it has ended."""
        self.until(self.last)
        last = self.last()
        assert last is not None
        assert last.failure is not None
        return last.failure

    def spool(self, name: str = "job") -> Spool:
        return Spool(self.folder / f"{name}.1")

    def processes(self) -> list[psutil.Process]:
        """Everything alive that measures here."""
        forker = self.worker._warm._forker
        measuring = [one for one in psutil.process_iter() if _environment(one).get(MARK) == str(self.folder)]
        return [one for one in measuring if forker is None or one.pid != forker._process.pid]

    def shown_devices(self) -> set[str]:
        """Those that processes which measure here were started with."""
        environments = map(_environment, self.processes())
        return {one["CUDA_VISIBLE_DEVICES"] for one in environments if "CUDA_VISIBLE_DEVICES" in one}

    def forker(self) -> _Forker:
        """What forks jobs, once it is ready."""
        forker = self.worker._warm._forker
        assert forker is not None

        def is_ready() -> bool:
            forker.hear()
            return forker.is_ready

        self.until(is_ready)
        return forker


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except psutil.Error:
        return {}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    monkeypatch.setenv(MARK, str(tmp_path / "spool"))
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    made = Bench(tmp_path / "spool")
    yield made
    end_all(made.worker)


def test_of_a_suite_only_the_wanted_cases_are_measured(bench: Bench) -> None:
    bench.begin(naps("10ms", "20ms", "30ms"), only=("0.02", "nap 0.03"))
    bench.until(bench.last)
    assert bench.kinds().count("record") == 2


def test_an_attempt_is_measured_told_once_and_dropped(bench: Bench) -> None:
    assignment = bench.begin(naps("10ms", "20ms"))
    bench.worker.begin(assignment)  # the leader may say so twice
    bench.until(bench.last)
    assert bench.kinds()[0] == "began"
    assert bench.kinds().count("record") == 2
    assert bench.kinds().count("ended") == 1
    last = bench.last()
    assert last is not None
    assert last.failure is None
    assert bench.processes() == [], "its devices are free when it says that it has ended"
    bench.poll()
    assert bench.worker.poll({}) == []
    assert list(bench.folder.iterdir()) == []


def test_a_suite_that_is_refused_says_so(bench: Bench) -> None:
    bench.begin({"name": "odd", "cases": [{"benchmark": "no-such-thing"}]})
    failure = bench.failure()
    assert failure.kind is FailureKind.REFUSED
    assert "no-such-thing" in failure.message


def test_a_case_sees_the_devices_that_it_was_given(bench: Bench) -> None:
    bench.begin(LONG, "two", devices=(2, 0))
    bench.begin(LONG, "none")
    # Of a forked process the system shows what the one had that forked it; of the servers of cases, what they have.
    bench.until(lambda: len(bench.shown_devices()) == 2)
    assert bench.shown_devices() == {"2,0", ""}


def test_cancelling_ends_all_processes_and_keeps_what_was_measured(bench: Bench) -> None:
    bench.begin(naps("10ms", "300s", steps=3000))
    bench.until(lambda: "samples" in bench.kinds() and "record" in bench.kinds())
    assert len(bench.processes()) > 1
    bench.worker.cancel("job", 1)
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert bench.processes() == []


def test_cancelling_what_has_hardly_started(bench: Bench) -> None:
    bench.begin(LONG)
    bench.worker.cancel("job", 1)
    bench.until(bench.last)
    assert "record" not in bench.kinds()


def test_a_process_that_was_killed_is_spoken_for(bench: Bench) -> None:
    bench.begin(LONG)
    runner = bench.runner()
    (bench.spool().folder / "output.txt").write_text("one\nthe last words\n")
    os.kill(runner, signal.SIGKILL)
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert "ended by signal 9; its last words: one / the last words" in failure.message
    bench.until(lambda: not bench.processes())


@pytest.mark.parametrize(
    ("before", "after", "kind", "words"),
    [
        (MemoryKills(0, 0), MemoryKills(1, 1), FailureKind.MEMORY, "the kernel killed the process that measured"),
        (MemoryKills(None, 0), MemoryKills(None, 1), FailureKind.MEMORY, "probably the kernel killed the process that"),
        (MemoryKills(0, 0), MemoryKills(0, 1), FailureKind.LOST, "the process that measured ended by signal 9"),
    ],
    ids=["of this group", "somewhere", "of others"],
)
def test_a_process_that_the_kernel_killed_for_memory_says_so(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    before: MemoryKills,
    after: MemoryKills,
    kind: FailureKind,
    words: str,
) -> None:
    counted = [before]
    monkeypatch.setattr("paceline.service.follower.worker.kills_for_memory", lambda: counted[-1])
    bench.begin(LONG)
    runner = bench.runner()
    counted.append(after)
    os.kill(runner, signal.SIGKILL)
    failure = bench.failure()
    assert failure.kind is kind
    assert failure.message.startswith(words)


@pytest.mark.parametrize(
    ("cases", "kind"),
    [
        ([{"benchmark": "nap", "duration": "300s", "timeout": "1s"}, {"benchmark": "nap"}], FailureKind.TIMEOUT),
        ([{"benchmark": "hungry"}], FailureKind.MEMORY),
        ([{"benchmark": "hungry"}, {"benchmark": "raises"}], FailureKind.CASES),
    ],
)
def test_what_all_that_failed_ran_out_of_is_the_cause(
    bench: Bench, cases: list[dict[str, Any]], kind: FailureKind
) -> None:
    bench.begin({"name": "too-much", "cases": cases})
    failure = bench.failure()
    assert failure.kind is kind
    assert bench.kinds().count("record") == len(cases)


@pytest.mark.parametrize("when", ["at once", "while it measures"])
def test_a_new_worker_adopts_what_runs(bench: Bench, when: str) -> None:
    bench.begin(naps("1s"))
    if when == "while it measures":
        bench.until(lambda: "began" in bench.kinds())
    bench.worker = Worker(bench.folder, "here")
    bench.until(bench.last)
    last = bench.last()
    assert last is not None
    assert last.failure is None, "the worker's end is no reason to measure again"
    assert bench.kinds().count("began") == bench.kinds().count("record") == 1
    bench.poll()
    assert bench.worker.poll({}) == []


def test_a_new_worker_speaks_for_what_died_meanwhile(bench: Bench) -> None:
    bench.begin(LONG)
    bench.until(lambda: "began" in bench.kinds())
    end_all(bench.worker)
    bench.worker = Worker(bench.folder, "here")
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST


def test_without_a_word_from_the_leader_it_ends_by_itself(bench: Bench) -> None:
    bench.begin(LONG, lease_seconds=1.0)
    deadline = time.monotonic() + PATIENCE
    gone = 0
    while gone < 10:  # one that is just being started shows no environment
        assert time.monotonic() < deadline
        gone = 0 if bench.spool().process is None or bench.processes() else gone + 1
        time.sleep(0.1)
    (report,) = bench.worker.poll({})
    assert report.items[-1].kind == "ended"


def test_half_a_line_is_no_item_and_is_mended(tmp_path: Path) -> None:
    spool = Spool.make(tmp_path / "job.1", Assignment(job_id="job", attempt=1, run_id="run", suite={}))
    spool.append("log", text="one")
    with (tmp_path / "job.1" / "items.jsonl").open("ab") as file:
        file.write(b'{"number": 2, "kind": "lo')
    assert [item.text for item in Spool(tmp_path / "job.1").items()] == ["one"]
    after = Spool(tmp_path / "job.1")
    after.append("log", text="two")
    assert [(item.number, item.text) for item in spool.items()] == [(1, "one"), (2, "two")]


def test_a_damaged_line_keeps_no_other_back(tmp_path: Path) -> None:
    spool = Spool.make(tmp_path / "job.1", Assignment(job_id="job", attempt=1, run_id="run", suite={}))
    for text in ("one", "two", "three"):
        spool.append("log", text=text)
    items = tmp_path / "job.1" / "items.jsonl"
    items.write_bytes(items.read_bytes().replace(b'"two"', b'"t\xff\x00\r'))
    found = Spool(tmp_path / "job.1").items()
    assert [(item.number, item.kind) for item in found] == [(1, "log"), (2, "unreadable"), (3, "log")]
    assert r"t\xff\x00\r" in found[1].text


def test_one_process_speaks_at_a_time(tmp_path: Path) -> None:
    spool = Spool.make(tmp_path / "job.1", Assignment(job_id="job", attempt=1, run_id="run", suite={}))
    with spool.exclusively() as is_mine:
        assert is_mine
        child = os.fork()
        if child == 0:
            with spool.exclusively() as is_childs:
                os._exit(int(is_childs))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_spool_that_takes_nothing_more_is_named(bench: Bench) -> None:
    bench.begin(naps("10ms", "300s", steps=3000))
    bench.until(lambda: "began" in bench.kinds())
    told = bench.spool().folder / "items.jsonl"
    kept = told.with_suffix(".kept")
    child = bench.worker._children["job", 1]
    child.send_signal(signal.SIGSTOP)  # or it makes the file anew before there is something in its place
    told.rename(kept)
    told.mkdir()  # not even root can write into it
    child.send_signal(signal.SIGCONT)
    child.wait(PATIENCE)
    told.rmdir()
    kept.rename(told)
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert f"could not write to its folder {bench.spool().folder}: is the disk full?" in failure.message
    assert bench.told["job", 1][-1].text == f"{failure.message}\n", "it is in the log as well"


def test_later_jobs_are_forked_and_go_on_when_the_process_that_forked_them_is_killed(bench: Bench) -> None:
    bench.begin(naps("10ms"), "first")
    bench.begin(naps("10ms"), "second")
    bench.until(lambda: bench.last("first") and bench.last("second"))
    forker = bench.forker()
    bench.begin(naps("10ms", "1s"))
    assert isinstance(bench.worker._children["job", 1], ForkedProcess)
    bench.until(lambda: "record" in bench.kinds())
    forker._process.kill()
    bench.until(bench.last)
    last = bench.last()
    assert last is not None
    assert last.failure is None
    assert bench.kinds().count("record") == 2
    bench.poll()
    bench.begin(naps("10ms"), "after")
    bench.until(lambda: bench.last("after"))
    assert bench.worker._warm._forker is not forker


def test_the_end_of_what_forks_is_seen_while_something_holds_its_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Channel] = []
    pair = Channel.pair

    def holding() -> tuple[Channel, Channel]:
        ours, theirs = pair()
        held.append(Channel.of_descriptor(os.dup(theirs.fileno())))
        return ours, theirs

    monkeypatch.setattr(Channel, "pair", holding)
    for name in ("first", "second"):
        bench.begin(naps("10ms"), name)
    forker = bench.forker()
    bench.begin(naps("1s"))
    bench.until(lambda: "began" in bench.kinds())
    forker._process.kill()
    bench.until(bench.last)
    for one in held:
        one.close()
    assert bench.kinds().count("record") == 1


def test_the_death_of_a_forked_job_is_told_with_its_signal(bench: Bench) -> None:
    for name in ("first", "second"):
        bench.begin(naps("10ms"), name)
    bench.forker()
    bench.begin(LONG)
    bench.until(lambda: "began" in bench.kinds())
    bench.worker._children["job", 1].send_signal(signal.SIGKILL)
    assert "ended by signal 9" in bench.failure().message
