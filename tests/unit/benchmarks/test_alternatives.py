"""Which values of parameters could make a traced step faster, as far as its record does not rule them out."""

from __future__ import annotations

from typing import Any

import pytest

from support.profiled import gpu_spent, trace_facts
from support.records import case, record


def alternatives(model: str, precision: str, **facts: Any) -> tuple[str, ...]:
    kept = trace_facts(gpu_spent()) | {"batch_size": 8} | facts
    trained = case(0, "train", f"{model} {precision}", target="cuda:0", model=model, precision=precision)
    trace = record(trained, facts=kept).trace
    assert trace is not None
    return trace.alternatives


def test_what_is_on_is_not_proposed() -> None:
    assert "compile=on" in alternatives("bert-base", "bf16", compiled=False)
    assert "compile=on" not in alternatives("bert-base", "bf16", compiled=True)
    assert "precision=bf16" in alternatives("bert-base", "tf32", compiled=True)


@pytest.mark.parametrize(("model", "compiled", "expected"), [
    ("bert-base", True, True), ("bert-base", False, False), ("resnet50", True, False),
])  # fmt: skip
def test_8_bits_are_proposed_where_a_compiler_joins_what_converts_to_them(
    model: str, compiled: bool, expected: bool
) -> None:
    assert ("precision=fp8_hybrid" in alternatives(model, "bf16", compiled=compiled)) is expected


@pytest.mark.parametrize(("device", "narrower", "expected"), [
    ("NVIDIA H200", "fp8_hybrid", True), ("NVIDIA A100-SXM4-80GB", "fp8_hybrid", False),
    ("NVIDIA A100-SXM4-80GB", "bf16", True), ("Tesla V100-SXM2-32GB", "bf16", False),
    ("a device without a datasheet", "fp8_hybrid", True),
])  # fmt: skip
def test_a_format_that_a_device_does_not_compute_in_is_not_proposed(device: str, narrower: str, expected: bool) -> None:
    wider = "bf16" if narrower == "fp8_hybrid" else "fp32"
    found = alternatives("bert-base", wider, compiled=True, device=device)
    assert (f"precision={narrower}" in found) is expected
