"""Where the time went, out of the facts of records."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paceline.analysis.explain import TracedRow, trace_advice, traced
from paceline.analysis.summary import CaseRow, summarize_run
from paceline.core.subject import StepTrace
from paceline.core.trace_events import TimeSpent
from support.profiled import gpu_spent, trace_facts
from support.records import case, record, run_of, sample_run


def rows(facts: dict[str, Any], **parameters: Any) -> tuple[CaseRow, ...]:
    known = {"model": "resnet50", "precision": "bf16", "compile": "auto", "graph": "off"} | parameters
    return summarize_run(run_of([record(case(0, "train", "resnet50 bf16", **known), facts=facts)])).rows


def one(facts: dict[str, Any], **parameters: Any) -> TracedRow:
    (found,) = traced(rows(facts, **parameters))
    return found


def with_shares(on_device: bool = True, **shares: float) -> TimeSpent:
    rest = 1 - sum(shares.values())
    whole = {"compute": rest, "memory": 0.0, "communication": 0.0, "other": 0.0, "idle": 0.0} | shares
    return gpu_spent().model_copy(update={"shares": whole, "on_device": on_device})


def test_cases_without_a_trace_say_nothing() -> None:
    assert traced(summarize_run(sample_run()).rows) == []
    assert traced(rows({"trace": "somebody else's fact"})) == []


def test_a_traced_case() -> None:
    found = one(trace_facts(gpu_spent()))
    assert found.trace.spent == gpu_spent()
    assert (found.trace.file, found.trace.bytes, found.trace.missing) == ("~/traces/01.json.gz", 90_000, "")
    assert not found.is_slowed
    assert one(trace_facts(gpu_spent(), slowdown=1.4)).is_slowed


def test_why_there_is_no_trace() -> None:
    assert one({"trace": {"missing": "MemoryError: no more"}}).trace.missing == "MemoryError: no more"
    lost = one({"trace": {"missing": "the process ended"}, "cut_short": "the process was ended by SIGSEGV"})
    assert lost.trace.missing == "the process ended: the process was ended by SIGSEGV"
    assert lost.trace.spent is None


def test_facts_of_another_version_are_no_failure() -> None:
    found = one({"trace": {"spent": {"steps": "many"}, "file": "a.json.gz", "bytes": "large", "slowdown": None}})
    assert found.trace.spent is None
    assert "another version" in found.trace.missing
    assert (found.trace.file, found.trace.bytes, found.trace.slowdown) == ("a.json.gz", None, None)


def test_what_to_do_about_an_idle_device() -> None:
    idle = trace_facts(with_shares(idle=0.3))
    assert trace_advice(one(idle).trace) == (
        "the device waits for the host: give it more at once with a larger batch or --compile on or --graph on",
    )
    (compiled,) = trace_advice(one(idle | {"compiled": True}, graph="on").trace)
    assert compiled.endswith("with a larger batch")
    assert trace_advice(one(trace_facts(with_shares(idle=0.3, on_device=False))).trace) == ()


def test_what_to_do_about_memory_and_communication() -> None:
    (memory,) = trace_advice(one(trace_facts(with_shares(memory=0.6))).trace)
    assert memory.startswith("moving numbers takes longer than computing")
    (waits,) = trace_advice(one(trace_facts(with_shares(communication=0.25))).trace)
    assert waits.startswith("communication is waited for")


def test_a_good_step_needs_no_advice() -> None:
    assert trace_advice(one(trace_facts(with_shares(memory=0.2, idle=0.02))).trace) == ()


def test_a_trace_of_which_nothing_is_left_needs_no_advice() -> None:
    (row,) = rows({})
    empty = dataclasses.replace(row, record=row.record.model_copy(update={"trace": StepTrace()}))
    (bare,) = traced([row, empty])
    assert bare.row is empty
    assert trace_advice(bare.trace) == ()
    assert not bare.is_slowed


@pytest.mark.parametrize(("slowdown", "is_slowed"), [(1.0, False), (1.1, False), (1.11, True)])
def test_a_tenth_of_slowdown_is_not_to_be_seen_in_the_shares(slowdown: float, is_slowed: bool) -> None:
    assert one(trace_facts(gpu_spent(), slowdown=slowdown)).is_slowed is is_slowed


@pytest.mark.parametrize(("kind", "bound"), [("idle", 0.2), ("communication", 0.2), ("memory", 0.5)])
def test_advice_begins_at_its_bound_and_needs_its_share(kind: str, bound: float) -> None:
    def advised(**shares: float) -> int:
        spent = gpu_spent().model_copy(update={"shares": shares, "on_device": True})
        return len(trace_advice(one(trace_facts(spent)).trace))

    assert advised(**{kind: bound}) == 1
    assert advised(**{kind: bound - 0.01}) == 0
    assert advised(compute=1.0) == 0
