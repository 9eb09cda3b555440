"""Generated models: what a name means, what it says of itself, and that every size of it computes."""

from __future__ import annotations

import pytest
import torch

from paceline.core.errors import InputError
from paceline.models import MODELS
from paceline.models.flops import count_flops
from paceline.models.generated import SHAPES, generated_model, parse
from paceline.models.sources import find_model
from support.refused import refused

NAMES = [
    "generated/fc:layers=1,width=7",
    "generated/fc:layers=3,width=48",
    "generated/cnn:layers=1,width=5,kernel=1,image=9",
    "generated/cnn:layers=4,width=8,kernel=5,image=6",
    "generated/lstm:layers=1,width=6,sequence=3",
    "generated/lstm:layers=3,width=10,sequence=2",
    "generated/transformer:layers=1,width=6,heads=3,sequence=5",
    "generated/transformer:layers=3,width=32,heads=8,sequence=1",
]


def test_every_family_is_listed_with_its_defaults() -> None:
    assert set(MODELS.registry().entries) >= {
        "generated/fc",
        "generated/cnn",
        "generated/lstm",
        "generated/transformer",
    }
    assert MODELS.registry().get("generated/fc").settings == {"layers": 8, "width": 1024}


@pytest.mark.parametrize("name", NAMES)
def test_the_formulas_are_those_of_the_built_module(name: str) -> None:
    spec = generated_model(name)
    with torch.device("meta"):
        module = spec.build("full").module
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert spec.flops == count_flops(spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_answered_alike_in_any_batch(name: str) -> None:
    workload = generated_model(name).build("full")
    module = workload.module.eval()
    batch = workload.make_batch(3, torch.Generator().manual_seed(1))
    with torch.inference_mode():
        together = module(*batch.inputs)
        alone = torch.cat([module(*batch.rows(row, row + 1).inputs) for row in range(3)])
    assert together.shape == (3, 100)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_a_deep_model_does_not_compute_with_zeros(family: str) -> None:
    workload = generated_model(f"generated/{family}:layers=20,width=32").build("full")
    batch = workload.make_batch(2, torch.Generator())
    with torch.inference_mode():
        answers = workload.module.eval()(*batch.inputs)
    assert torch.isfinite(answers).all()
    assert 1e-3 < answers.std() < 100


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_the_tiny_scale_is_small_however_large_the_name(family: str) -> None:
    spec = generated_model(f"generated/{family}:layers=900,width=60000")
    tiny = sum(parameter.numel() for parameter in spec.build("tiny").module.parameters())
    assert tiny < 1e6 < 1e9 < (spec.parameters or 0)


def test_the_tiny_scale_keeps_heads_that_divide_the_width() -> None:
    assert str(parse("generated/transformer:width=63,heads=63").at("tiny")) == (
        "generated/transformer:layers=2,width=63,heads=3,sequence=16"
    )


def test_the_name_is_canonical() -> None:
    for written in ("width=64,layers=2", " layers = 2, width=064 ", "layers=2,width=64,heads=4"):
        assert generated_model(f"generated/transformer:{written}").name == "generated/transformer:layers=2,width=64"
    assert generated_model("generated/fc:layers=8").name == "generated/fc"


def test_it_needs_no_permission_to_import() -> None:
    assert find_model("generated/fc:layers=2", allow_import=False).settings["layers"] == 2
    assert find_model("generated/fc", allow_import=False).settings == MODELS.registry().get("generated/fc").settings


@pytest.mark.parametrize(
    ("name", "code", "suggestion"),
    [
        ("generated/transfomer:layers=2", "unknown-family", "transformer"),
        ("generated/", "unknown-family", None),
        ("generated/fc:layer=2", "unknown-knob", "layers"),
        ("generated/fc:heads=2", "unknown-knob", None),
        ("generated/fc:layers", "not-a-knob", None),
        ("generated/fc:", "not-a-knob", None),
        ("generated/fc:layers=2,layers=3", "duplicate-knob", None),
        ("generated/fc:layers=two", "not-a-whole-number", None),
        ("generated/fc:layers=-1", "not-a-whole-number", None),
        ("generated/fc:layers=1_0", "not-a-whole-number", None),
        ("generated/fc:layers=٣", "not-a-whole-number", None),
        ("generated/fc:layers=0", "knob-out-of-range", None),
        ("generated/fc:width=99999999", "knob-out-of-range", None),
        ("generated/cnn:kernel=4", "even-kernel", "kernel=3"),
        ("generated/transformer:width=64,heads=5", "not-a-multiple", "heads=4"),
    ],
)
def test_what_cannot_be_is_refused(name: str, code: str, suggestion: str | None) -> None:
    with refused(code, key="model", suggestion=suggestion):
        find_model(name, allow_import=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("generated/transfomer", "no family 'transfomer': did you mean 'transformer'"),
        ("generated/", "no family ''; known are transformer, fc, cnn, lstm"),
        ("generated/fc:heads=2", "no knob 'heads'; known are layers, width"),
        ("generated/fc:layers", "'layers' is not knob=value; write it like generated/fc:layers=4,width=64"),
        ("generated/fc:width=99999999", "width=99999999 is outside of 1 to 65536"),
    ],
)
def test_a_refusal_says_what_would_be_taken(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        find_model(name, allow_import=True)
