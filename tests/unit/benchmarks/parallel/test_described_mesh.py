"""What a training over a mesh says of itself, measured or not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.record import Cause, CauseKind, Outcome
from paceline.core.subject import StepTrace
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


def traced(benchmark: str, target: str = "cuda:0", *, compiled: bool = False, **given: Any) -> StepTrace:
    facts = trace_facts(gpu_spent()) | {"compiled": compiled, "graph": given.get("graph") == "on"}
    trace = record(case(0, benchmark, "x", target=target, **given), facts=facts).trace
    assert trace is not None
    return trace


ONE = "gpt2/nl2_{}_1x1x1_mb4_gb8_1n1g"


@pytest.mark.parametrize(("compiled", "switches"), [(True, ()), (False, ("--compile on",))])
def test_what_could_be_switched_on_where_a_device_waits(compiled: bool, switches: tuple[str, ...]) -> None:
    assert traced("parallel", compiled=compiled, case=WORD).switches == switches
    alone = traced("parallel", compiled=compiled, case=ONE.format("bf16"))
    assert alone.switches == (*switches, "--graph on")


@pytest.mark.parametrize(("target", "more", "expected"), [
    ("cpu", {"precision": "fp32"}, ["compile=on"]),
    ("cuda:0", {"precision": "fp32"}, ["compile=on", "graph=on", "precision=bf16"]),
    ("cuda:0", {"precision": "bf16", "compiled": True, "graph": "on"}, ["precision=fp8"]),
    ("cuda:0", {"precision": "bf16", "compiled": True, "data": 2}, ["precision=fp8"]),
    ("cuda:0", {"precision": "bf16", "compiled": True, "tensor": 2}, []),
    ("cuda:0", {"precision": "bf16", "pipeline": 2, "schedule": "zero-bubble"}, []),
    ("cuda:0", {"precision": "fp16", "model": "mixtral", "checkpointing": True}, ["compile=on", "checkpointing=false"]),
], ids=str)  # fmt: skip
def test_settings_that_are_open_to_a_mesh(target: str, more: dict[str, Any], expected: list[str]) -> None:
    sizes = {"layers": 4, "micro_batch": 1, "global_batch": 8}
    found = traced("parallel", target, **sizes | more)
    assert list(found.alternatives) == expected
    assert not found.given


def test_a_layout_in_a_word_is_changed_by_another_word() -> None:
    found = traced("parallel", case="gpt2/nl2_fp32_1x1x1_ac_mb4_gb8_1n1g", compile="off")
    assert found.alternatives == ("compile=on", "graph=on", "precision=bf16", "checkpointing=false")
    assert found.given == {
        "precision=bf16": "case=gpt2/nl2_bf16_1x1x1_ac_mb4_gb8_1n1g",
        "checkpointing=false": "case=gpt2/nl2_fp32_1x1x1_mb4_gb8_1n1g",
    }


def test_megatron_core_is_neither_compiled_nor_a_graph_nor_in_8_bits() -> None:
    assert traced("megatron-core", case=ONE.format("fp32")).alternatives == ("precision=bf16",)
    compiled = traced("megatron-core", case=ONE.format("bf16"), compiled=True)
    assert (compiled.alternatives, compiled.switches) == ((), ())
