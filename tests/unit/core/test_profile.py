"""Profiles: whose they are, and what is found in them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from paceline.core.profile import Ceiling, GpuIdentity, Identity, Profile

HOST = Identity(host="n1", architecture="x86_64", cpu="EPYC 9654", cores=96.0)


def ceiling(**changed: object) -> Ceiling:
    values: dict[str, object] = {
        "device": "cuda:0",
        "device_name": "NVIDIA H20",
        "kind": "compute",
        "name": "bf16",
        "value": 130e12,
        "unit": "FLOP/s",
    }
    return Ceiling.model_validate(values | changed)


@pytest.mark.parametrize(
    "other",
    [
        HOST.model_copy(update={"host": "n2"}),
        HOST.model_copy(update={"cpu": "EPYC 9754"}),
        HOST.model_copy(update={"cores": 8.0}),
        HOST.model_copy(update={"gpus": (GpuIdentity(name="NVIDIA H200", uuid="GPU-1"),)}),
    ],
)
def test_another_machine_has_another_key(other: Identity) -> None:
    assert other.key != HOST.key
    assert len(HOST.key) == 16
    assert Identity.model_validate_json(HOST.model_dump_json()).key == HOST.key


def test_percent_of_the_datasheet_only_where_there_is_one() -> None:
    assert ceiling().share is None
    assert ceiling(datasheet=148e12).share == pytest.approx(87.84, abs=0.01)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ceiling_is_a_positive_number(value: float) -> None:
    with pytest.raises(ValidationError):
        ceiling(value=value)


def test_a_ceiling_is_found_by_its_device_s_name_or_as_the_cpu() -> None:
    gpu, processor = ceiling(), ceiling(device="cpu", device_name="EPYC 9654", value=2e12)
    profile = Profile(
        measured_at=datetime(2026, 3, 14, tzinfo=UTC),
        version="0.1.0",
        run_id="run",
        identity=HOST,
        ceilings=(gpu, processor),
    )
    assert profile.ceiling("compute", "bf16", device_name="NVIDIA H20") == gpu
    assert profile.ceiling("compute", "bf16", device_name="cpu") == processor
    assert profile.ceiling("compute", "bf16", device_name="NVIDIA H800") is None
    assert profile.ceiling("compute", "fp16", device_name="cpu") is None
    assert profile.ceiling("memory", "bf16", device_name="cpu") is None
