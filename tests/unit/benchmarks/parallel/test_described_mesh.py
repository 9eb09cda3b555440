"""What a training over a mesh says of itself, measured or not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.record import Cause, CauseKind, Outcome
from support.profiled import gpu_spent, trace_facts
from support.records import case, record

WORD = "gpt2/nl24_bf16_2x1x2_mb4_gb64_1n4g"
PARTS = {"model": "gpt2", "layers": 24, "precision": "bf16", "data": 2, "pipeline": 2, "micro_batch": 4,
         "global_batch": 64}  # fmt: skip


@pytest.mark.parametrize("given", [{"case": WORD}, PARTS], ids=["word", "parts"])
def test_a_failed_case_has_the_layout_that_was_asked_for(given: dict[str, Any]) -> None:
    cause = Cause(kind=CauseKind.DEVICE_MEMORY, message="full")
    failed = record(case(0, "parallel", "x", **given), outcome=Outcome.OUT_OF_MEMORY, cause=cause)
    assert failed.subject.layout == WORD


@pytest.mark.parametrize(("compiled", "switches"), [(True, ()), (False, ("--compile on",))])
def test_what_could_be_switched_on_where_a_device_waits(compiled: bool, switches: tuple[str, ...]) -> None:
    facts = trace_facts(gpu_spent()) | {"compiled": compiled}
    trace = record(case(0, "parallel", WORD, case=WORD), facts=facts).trace
    assert trace is not None and trace.switches == switches
