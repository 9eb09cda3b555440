"""Fingerprints of training steps: the same from time to time, and changed by one flipped bit anywhere in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from paceline.benchmarks.training import fingerprint
from paceline.benchmarks.training.fingerprint import (
    FingerprintParameters,
    TrainingFingerprint,
    difference,
    train_prints,
)
from paceline.benchmarks.training.train import Trainer
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption
from paceline.core.record import Result
from paceline.measure.digest import bits
from paceline.report.export.superbench import results
from support.records import record

CASE = Case(index=0, benchmark="training-fingerprint", parameters={}, title="", target="cpu")
MODEL = "generated/fc:layers=2,width=32"
SMALL = FingerprintParameters(model=MODEL, precision="fp32", steps=3, batch_size=2)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def flip(monkeypatch: pytest.MonkeyPatch, in_step: int) -> Iterator[None]:
    """One bit of one gradient, in one step of the training after the first."""
    steps, whole = 0, Trainer._backward

    def backward(self: Trainer) -> Any:
        nonlocal steps
        steps += 1
        loss = whole(self)
        if steps == SMALL.steps + in_step:
            weight = list(self.named_parameters())[-1][1]
            assert weight.grad is not None
            bits(weight.grad).view(-1)[5] ^= 1
        return loss

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_backward", backward)
        yield


def test_the_same_training_has_the_same_fingerprint_and_names_for_superbench() -> None:
    result = TrainingFingerprint().measure(SMALL, Context(CASE))
    fact = result.facts["fingerprint"]
    assert len(fact["steps"]) == len(set(fact["steps"])) == 3
    again = TrainingFingerprint().measure(SMALL.model_copy(update={"times": 1}), Context(CASE))
    assert again.facts["fingerprint"] == fact
    other = TrainingFingerprint().measure(SMALL.model_copy(update={"times": 1, "seed": 5}), Context(CASE))
    assert other.facts["fingerprint"]["digest"] != fact["digest"]

    case = CASE.model_copy(update={"parameters": SMALL.model_dump(mode="json")})
    values = results([record(case, result.measurements, facts=result.facts)])
    keys = {key.rpartition("/")[2]: value for key, value in values.items()}
    loss, activation = (result.measurements[number].samples for number in (1, 2))
    assert keys["deterministic_loss"] == pytest.approx(sum(loss) / 3)
    assert keys["deterministic_act_mean"] == pytest.approx(sum(activation) / 3)
    assert (keys["deterministic_check_count"], keys["deterministic_config_deterministic_seed"]) == (3, 1234)
    assert all(key.startswith("model-benchmarks") for key in values)


def test_one_flipped_bit_of_a_gradient_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Result] = []
    with flip(monkeypatch, in_step=2), pytest.raises(SilentCorruption, match=r"from step 2 on, in the (weights|grad)"):
        TrainingFingerprint().measure(SMALL, Context(CASE, keep=kept.append))
    assert len(kept[0].facts["fingerprint"]["steps"]) == 3


def test_operators_without_a_deterministic_form_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "excuses", lambda _caught: ["scatter_add may differ"])
    with flip(monkeypatch, in_step=1), pytest.raises(Exception, match="proves nothing: scatter_add") as caught:
        TrainingFingerprint().measure(SMALL, Context(CASE))
    assert not isinstance(caught.value, SilentCorruption)


def test_where_two_trainings_part_is_said_in_words() -> None:
    prints = train_prints(SMALL, Context(CASE))
    assert difference(prints, prints) == ""
    assert {"loss", "output 0"} <= set(prints[0].parts)
