"""Taking a trace: which steps, in which order, and what is kept of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.trace_events import read_events, time_spent
from paceline.devices.cpu import CpuDevice
from paceline.measure import trace

torch = pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")


def test_long_steps_are_traced_less_often_but_once_at_least() -> None:
    assert trace.steps_to_trace(0.01) == trace.STEPS
    assert trace.steps_to_trace(trace.LONG_SECONDS / 2) == 2
    assert trace.steps_to_trace(10 * trace.LONG_SECONDS) == 1
    assert trace.steps_to_trace(0.0) == trace.STEPS


def test_the_steps_and_one_before_them_are_marked() -> None:
    weights = torch.ones(16, 16)
    active: list[bool] = []

    def step() -> None:
        active.append(bool(torch._C._autograd._profiler_enabled()))
        weights.mm(weights)

    step()
    taken = trace.take(step, CpuDevice(), steps=2, in_flight=2)
    step()
    assert active == [False, True, True, True, False]
    events = read_events(taken)
    assert sorted(one.step for one in events if one.step is not None) == [0, 1, 2]
    spent = time_spent(events, on_device=False, steps_queue=False)
    assert spent is not None
    assert spent.steps == 2
    products = next(one for one in spent.kernels if one.name == "aten::mm")
    assert (products.calls, products.kind) == (1.0, "compute")


def test_a_step_that_fails_stops_the_profiler() -> None:
    def step() -> None:
        raise MemoryError("no more")

    with pytest.raises(MemoryError):
        trace.take(step, CpuDevice(), steps=1, in_flight=1)
    assert not torch._C._autograd._profiler_enabled()


def test_no_step_is_taken_where_the_profiler_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")

    monkeypatch.setattr(torch.profiler, "profile", broken)
    taken: list[int] = []
    with pytest.raises(trace.TraceFailed, match="did not start: RuntimeError: CUPTI_ERROR_NOT_INITIALIZED"):
        trace.take(lambda: taken.append(1), CpuDevice(), steps=1, in_flight=1)
    assert taken == []


def test_no_step_is_taken_where_that_of_another_rank_does_not_start() -> None:
    taken: list[int] = []
    told: list[bool] = []

    def all_ready(ready: bool) -> bool:
        told.append(ready)
        return False

    with pytest.raises(trace.TraceFailed, match="did not start: on another rank"):
        trace.take(lambda: taken.append(1), CpuDevice(), steps=1, in_flight=1, all_ready=all_ready)
    assert (taken, told) == ([], [True])
    assert not torch._C._autograd._profiler_enabled()


def test_a_kept_trace_is_whole_and_names_no_host(tmp_path: Path) -> None:
    path = tmp_path / "run" / "01-train.json.gz"
    size = trace.keep({"traceEvents": [{"name": "a"}], "host_name": "mine", "traceName": "/tmp/x/trace.json"}, path)
    assert size == path.stat().st_size
    assert json.loads(gzip.decompress(path.read_bytes())) == {"traceEvents": [{"name": "a"}], "traceName": path.name}
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # nothing half-written beside it


def test_a_trace_that_no_viewer_opens_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_EVENTS", 2)
    with pytest.raises(trace.TraceFailed, match="it has 3 events, and no viewer opens more than 2"):
        trace.keep({"traceEvents": [{}, {}, {}]}, tmp_path / "a.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(trace.TraceFailed, match=r"cannot be written: .*--profile DIR"):
        trace.keep({"traceEvents": []}, tmp_path / "file" / "a.json.gz")


def test_steps_are_traced_as_long_as_they_fit_the_time() -> None:
    third = trace.LONG_SECONDS / 3
    assert [trace.steps_to_trace(seconds) for seconds in (0.99 * third, 1.01 * third)] == [3, 2]
    assert [trace.steps_to_trace(seconds) for seconds in (1.5 * third, 1.51 * third)] == [2, 1]


def test_as_many_events_as_a_viewer_opens_are_kept_and_a_file_may_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_EVENTS", 2)
    path = tmp_path / "some" / "run" / "a.json.gz"
    sizes = [trace.keep({"traceEvents": [{}, {}]}, path) for _ in range(2)]
    assert sizes == [path.stat().st_size] * 2
    packed = path.read_bytes()
    assert gzip.decompress(packed) == b'{"traceEvents":[{},{}],"traceName":"a.json.gz"}'
    assert packed[4:8] == bytes(4)  # no time of writing, so that equal traces are equal files
