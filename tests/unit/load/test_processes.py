"""Processes that send: started, watched and ended, with one trace as the result of all of them."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.load import processes
from paceline.load.processes import CpuPlacement, LoadFailed, lost, on_cores
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask
from paceline.load.trace import BROKEN, OK, UNSENT, Trace, WorkerResults
from support.traces import trace

SAMPLES = np.array([3, 5], np.int32)
FAR = 1e9  # s that the clock shows: a start is so many nanoseconds that its last digits count


class Clock:
    """Stands still unless it is moved; whoever sleeps waits really, for a moment."""

    def __init__(self) -> None:
        self.now = FAR

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now) * 1_000_000_000

    @staticmethod
    def sleep(_seconds: float) -> None:
        time.sleep(0.002)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(processes, "time", made)
    return made


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what workers do: a shell's commands, with the worker's folder as $1."""

    def set_to(commands: str) -> None:
        monkeypatch.setattr(processes, "COMMAND", ["sh", "-c", commands, "worker"])

    return set_to


def task(intended: list[float], kinds: list[int], **more: Any) -> WorkerTask:
    where: dict[str, Any] = {"endpoint": Endpoint("kserve-json", "h", 1, "/", "x"), "parent": 1, "samples": SAMPLES}
    columns: dict[str, Any] = {"intended": np.array(intended), "kinds": np.array(kinds, np.int32)}
    return WorkerTask(**where | columns | {"payloads": [], "metadata": []} | more)


def result_file(path: Path, intended: list[float], kinds: list[int], **more: Any) -> Path:
    """What a worker hands over."""
    columns = {"intended": np.array(intended), "kind": np.array(kinds, np.int32), "samples": SAMPLES[kinds]}
    one = trace([0.25] * len(intended), **columns | {"cpu_seconds": 0.5} | more)
    path.write_bytes(WorkerResults(one, [(kind, b"body") for kind in kinds]).packed())
    return path


def hand_over(path: Path) -> str:
    return f'cp "{path}" "$1/result.npz"'


def run(*tasks: WorkerTask, longest: float = 10.0, ago: int = 0, **more: Any) -> WorkerResults:
    """With a start so many seconds before what the clock shows."""
    start = (int(FAR) - ago) * 1_000_000_000
    return processes.run(tasks, longest, begin=lambda: start, **more)


def test_results_of_all_workers_are_one_trace(script: Callable[[str], None], clock: Clock, tmp_path: Path) -> None:
    first = result_file(tmp_path / "a.npz", [0.0, 2.0], [0, 1], stages={"queue": np.array([0.5, 0.75])})
    second = result_file(tmp_path / "b.npz", [1.0], [1], worker=np.array([1], np.int32))
    script(f'sleep 0.03; echo ready; read at; echo "$at" > "{tmp_path}/$(basename $1)"; case "$1" in */0) '
           f"{hand_over(first)};; *) {hand_over(second)};; esac")  # fmt: skip
    results = run(task([0.0, 2.0], [0, 1]), task([1.0], [1], number=1))
    merged = results.trace
    assert merged.intended.tolist() == [0.0, 1.0, 2.0]
    assert merged.worker.tolist() == [0, 1, 0]
    assert merged.kind.tolist() == [0, 1, 1]
    assert merged.samples.tolist() == [3, 5, 5]
    assert merged.stages["queue"][[0, 2]].tolist() == [0.5, 0.75]
    assert merged.cpu_seconds == 1.0
    assert merged.chunks is None
    assert results.answers == [(0, b"body"), (1, b"body"), (1, b"body")]
    assert results.trace.losses == ()
    assert [(tmp_path / name).read_text() for name in "01"] == [f"{int(FAR)}000000000\n"] * 2


def test_what_workers_say_meanwhile_is_reported(script: Callable[[str], None], tmp_path: Path) -> None:
    over = hand_over(result_file(tmp_path / "a.npz", [0.0], [0]))
    heard: list[Any] = []
    script(
        f"echo ready; read at; echo '[2.0,8,4,[1000]]'; while [ ! -e {tmp_path}/heard ]; do sleep 0.01; done; {over}"
    )

    def hear(lines: Any) -> None:
        heard.append(lines)
        (tmp_path / "heard").touch()

    processes.run([task([0.0], [0])], 30.0, on_lines=hear)
    assert heard == [[[2.0, 8, 4, [1000]]]]


def test_pieces_of_streams_come_back_by_request(script: Callable[[str], None], clock: Clock, tmp_path: Path) -> None:
    more = {"chunks": [np.array([0.5]), np.array([1.5, 1.75])]}
    script(f"echo ready; read at; {hand_over(result_file(tmp_path / 'a.npz', [0.0, 1.0], [0, 0], **more))}")
    tokens = run(task([0.0, 1.0], [0, 0])).trace.chunks
    assert tokens is not None
    assert [pieces.tolist() for pieces in tokens] == [[0.5], [1.5, 1.75]]


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("echo one >&2; echo 'out of memory' >&2; echo >&2; exit 3", "out of memory"),
        ("exit 3", "exit code 3"),
        ("exit 0", "exit code 0"),
        ("RESULT; exit 1", "exit code 1"),
        ("kill -9 $$", "killed by SIGKILL"),
    ],
)
def test_requests_of_a_worker_without_a_result_are_broken_or_were_never_due(
    ending: str, why: str, script: Callable[[str], None], clock: Clock, tmp_path: Path
) -> None:
    good = hand_over(result_file(tmp_path / "good.npz", [0.25], [0]))
    ending = ending.replace("RESULT", good)
    script(f'echo ready; read at; case "$1" in */0) {good};; *) {ending};; esac')
    results = run(task([0.25], [0]), task([0.5, 1.0, 1.5, 60.0], [1, 0, 1, 0], number=1), ago=1)
    assert results.trace.losses == (f"worker 1 of the load generator was lost: {why}",)
    assert results.trace.worker.tolist() == [0, 1, 1, 1, 1]
    assert results.trace.status.tolist() == [OK, BROKEN, UNSENT, UNSENT, UNSENT]
    assert results.trace.kind.tolist() == [0, 1, 0, 1, 0]
    assert results.trace.samples.tolist() == [3, 5, 3, 5, 3]
    assert np.isnan(results.trace.sent).tolist() == [False, True, True, True, True]


def test_without_its_users_a_closed_loop_has_failed(script: Callable[[str], None], clock: Clock) -> None:
    script("echo ready; read at; echo why >&2; exit 1")
    with pytest.raises(LoadFailed, match="worker 0 of the load generator was lost: why"):
        run(task([], [0], loop="closed"))


def test_a_worker_that_does_not_start_says_why(script: Callable[[str], None], clock: Clock) -> None:
    script("echo 'no module' >&2; exit 1")
    with pytest.raises(LoadFailed, match="did not start: no module"):
        run(task([0.0], [0]))


def test_a_worker_must_be_ready_in_time(script: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_SECONDS", 0.02)
    script("sleep 0.4; echo ready; read at")
    with pytest.raises(LoadFailed, match=r"not ready after 0\.02 s"):
        processes.run([task([0.0], [0])], 1.0)


def test_results_with_python_objects_are_not_read(script: Callable[[str], None], clock: Clock, tmp_path: Path) -> None:
    objects = {"stages": {"x": np.array([print], object)}}
    script(f"echo ready; read at; {hand_over(result_file(tmp_path / 'a.npz', [0.0], [0], **objects))}")
    with pytest.raises(ValueError, match="allow_pickle"):
        run(task([0.0], [0]))
    with pytest.raises(ValueError, match="allow_pickle"):
        WorkerResults.unpacked((tmp_path / "a.npz").read_bytes())


def test_after_the_longest_time_a_worker_is_killed_and_not_a_moment_earlier(
    script: Callable[[str], None], clock: Clock, tmp_path: Path
) -> None:
    good = hand_over(result_file(tmp_path / "good.npz", [0.0], [0]))
    script(f"echo ready; read at; sleep 0.05; {good}")
    assert run(task([0.0], [0]), longest=2.0, ago=2).trace.losses == ()
    script("echo ready; read at; exec sleep 4")
    assert run(task([0.0], [0]), longest=1.5, ago=2).trace.losses == (
        "worker 0 of the load generator was lost: it did not end in time",
    )


def test_workers_are_asked_to_end_once_and_hand_over_what_they_have(
    script: Callable[[str], None], clock: Clock, tmp_path: Path
) -> None:
    good = hand_over(result_file(tmp_path / "good.npz", [0.0], [0]))
    script(f"trap 'sleep 0.06; {good}; exit 0' TERM; echo ready; read at; while :; do sleep 0.01; done")
    answers = iter([True, True, False])
    results = run(task([0.0], [0]), longest=1000.0, go_on=lambda: next(answers))
    assert results.trace.losses == ()
    assert results.trace.ok.tolist() == [True]


def test_a_worker_that_does_not_end_when_it_is_asked_to_is_killed(
    script: Callable[[str], None], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("trap '' TERM; echo ready; read at; exec sleep 4")

    def go_on() -> bool:
        monkeypatch.setattr(clock, "sleep", lambda _seconds: setattr(clock, "now", FAR + 11.0))
        return False

    results = run(task([0.0], [0]), longest=1000.0, go_on=go_on)
    assert results.trace.losses == ("worker 0 of the load generator was lost: it did not end in time",)


def test_a_load_goes_on_by_itself(script: Callable[[str], None], clock: Clock, tmp_path: Path) -> None:
    script(f"echo ready; read at; sleep 0.05; {hand_over(result_file(tmp_path / 'a.npz', [0.0], [0]))}")
    assert run(task([0.0], [0])).trace.losses == ()


def test_the_usual_start_is_a_moment_from_now(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HEAD_START", 4.0)
    assert processes.soon() == (int(FAR) + 4) * 1_000_000_000


def test_nothing_that_was_started_outlives_an_error(
    script: Callable[[str], None], clock: Clock, tmp_path: Path
) -> None:
    script(f'echo $$ > "{tmp_path}/$(basename $1)"; echo ready; read at; exec sleep 4')

    def begin() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.run([task([0.0], [0])], 1.0, begin=begin)
    assert not Path(f"/proc/{(tmp_path / '0').read_text().strip()}").exists()


def test_a_worker_that_died_before_the_start_is_reported_as_lost(
    script: Callable[[str], None], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("echo ready; exec 0<&-; exit 2")
    started = processes._wait_until_ready

    def until_dead(worker: Any, until: float) -> None:
        started(worker, until)
        worker.process.wait()

    monkeypatch.setattr(processes, "_wait_until_ready", until_dead)
    assert run(task([0.5], [0])).trace.losses == ("worker 0 of the load generator was lost: exit code 2",)


def test_what_a_lost_worker_had_to_send_is_written_down_without_times() -> None:
    trace_of_it = lost(task([0.0, 0.5, 1.0], [1, 0, 1, 0], number=7, client="c"), 0.5)
    assert trace_of_it.client == "c"
    assert trace_of_it.status.tolist() == [BROKEN, UNSENT, UNSENT]
    assert trace_of_it.worker.tolist() == [7, 7, 7]
    assert trace_of_it.samples.tolist() == [5, 3, 5]
    assert trace_of_it.dispatched is not None
    for column in (trace_of_it.sent, trace_of_it.first, trace_of_it.done, trace_of_it.dispatched):
        assert np.isnan(column).all()


@pytest.mark.parametrize("tokens", [None, [], [np.array([0.5]), np.empty(0), np.array([1.5, 2.5])]])
def test_results_travel_with_everything_that_they_have(tokens: list[Any] | None) -> None:
    count = 3 if tokens is None else len(tokens)
    one = trace(
        [0.25] * count, chunks=tokens, stages={"queue": np.full(count, 0.125)}, cpu_seconds=1.5, losses=("a loss",)
    )
    back = WorkerResults.unpacked(WorkerResults(one, [(1, b"a"), (0, b""), (1, b"bcd")]).packed())
    assert back.answers == [(1, b"a"), (0, b""), (1, b"bcd")]
    assert back.trace.losses == ("a loss",)
    assert back.trace.intended.tolist() == one.intended.tolist()
    assert {name: values.tolist() for name, values in back.trace.stages.items()} == {"queue": [0.125] * count}
    assert (back.trace.batch, back.trace.host, back.trace.dispatched) == (None, None, None)
    assert back.trace.cpu_seconds == 1.5
    assert (back.trace.chunks is None) == (tokens is None)
    assert [part.tolist() for part in back.trace.chunks or []] == [part.tolist() for part in tokens or []]


def test_results_that_do_not_fit_together_are_refused() -> None:
    file = io.BytesIO()
    data = WorkerResults(trace([0.25]), [(1, b"a"), (0, b"b")]).packed()
    with np.load(io.BytesIO(data)) as columns:
        np.savez(file, **{**columns, "answer_kinds": np.array([1])})
    with pytest.raises(ValueError, match=r"zip\(\)"):
        WorkerResults.unpacked(file.getvalue())


# Cores.


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Where each process may run."""
    places = {0: {4, 2, 0}, 1: {9}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: places[pid])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: places.update({pid: set(cores)}))
    return places


def test_the_cores_of_this_process_are_shared_out_in_their_order(cores: dict[int, set[int]]) -> None:
    assert CpuPlacement.of_machine() == CpuPlacement(server=(0, 2), load=(4,))
    assert CpuPlacement.of_machine(2) == CpuPlacement(server=(0,), load=(2, 4))
    assert CpuPlacement.without_load() == CpuPlacement(server=(0, 2, 4), load=())
    cores[0] = {6}
    assert CpuPlacement.of_machine() == CpuPlacement(server=(6,), load=(6,))


def test_only_this_process_is_moved_to_cores_and_back(cores: dict[int, set[int]]) -> None:
    with on_cores((2, 4)):
        assert cores == {0: {2, 4}, 1: {9}}
    assert cores == {0: {0, 2, 4}, 1: {9}}


def test_a_process_that_has_ended_shares_no_core() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not CpuPlacement(server=(), load=tuple(os.sched_getaffinity(0))).is_shared([ended.pid])


def test_a_trace_of_nobody_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no traces"):
        Trace.merged([])
