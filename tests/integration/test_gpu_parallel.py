"""What a parallel training shows on one GPU alone; several need several."""

from __future__ import annotations

import pytest

from paceline.core.record import Record
from paceline.devices import device_count
from support.cli import Sandbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU and its driver"),
]

SMALL = {"benchmark": "parallel", "layers": 4, "hidden": 256, "heads": 4, "sequence": 128, "vocabulary": 1024}
COMMON = SMALL | {"target": "cuda:0", "micro_batch": 4, "global_batch": 16, "steps": 5, "warm_up": "1s"}


def losses(record: Record) -> list[float]:
    found = record.measurement("loss")
    assert found is not None, record.cause
    return found.samples


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_formats_compiling_and_checkpointing_change_no_loss(sandbox: Sandbox, model: str) -> None:
    cases = [
        {"precision": "fp32", "compile": "off"},
        {"precision": "fp32", "compile": "on"},
        {"precision": "fp32", "compile": "off", "checkpointing": True},
        {"precision": "bf16", "compile": "on", "checkpointing": True},
        {"precision": "fp16", "compile": "on"},
    ]
    done = sandbox.run(
        "run", sandbox.suite(*(COMMON | {"model": model} | case for case in cases)), "--no-report", timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plain, *others = sandbox.load().records
    for record in others:
        tolerance = 1e-4 if record.case.parameters["precision"] == "fp32" else 2e-2
        assert losses(record) == pytest.approx(losses(plain), abs=tolerance)
    for record in others:
        # The steps after the first five were replayed, and went on from where those had come to.
        assert record.facts["graph"] is (record.case.parameters["compile"] == "on")
        assert record.facts["last_loss"] < losses(record)[-1]
        compared = record.facts.get("compared_with_uncompiled", "")
        assert compared.startswith("the loss differs by") is (record.case.parameters["compile"] == "on"), compared
        assert not any(warning.kind == "miscompiled" for warning in record.warnings)
    parts = [plain.measurement(f"{name}_memory") for name in ("parameter", "gradient", "optimizer", "activation")]
    peak = plain.measurement("peak_device_memory")
    assert peak is not None
    assert sum(part.value for part in parts if part is not None) == pytest.approx(peak.value)
