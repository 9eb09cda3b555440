"""Known answers: a right device has all of them, and one flipped bit names its unit and format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.benchmarks.compute import known_answers
from paceline.benchmarks.compute.known_answers import Answer, KnownAnswers, KnownAnswersParameters
from paceline.core.benchmark import Context, described
from paceline.core.case import Case
from paceline.core.environment import Cpu, Environment, Software
from paceline.core.errors import SilentCorruption
from paceline.core.record import Result
from paceline.measure.digest import bits
from support.records import record

CASE = Case(index=0, benchmark="known-answers", parameters={}, title="", target="cpu")
QUICK = KnownAnswersParameters(rounds=2, memory=1 << 20)
UNITS = [
    ("matrix product", "bf16"),
    ("matrix product", "int8"),
    ("quotient", "fp32"),
    ("exponential", "fp32"),
    ("sum of rows", "fp64"),
    ("memory", "5555, 1 MiB"),
    ("copy within the device", "1 MiB"),
]


def flipped(compute: Callable[[], Tensor], at: int) -> Callable[[], Tensor]:
    """The computation, one of whose results has one bit flipped."""
    calls = 0

    def computed() -> Tensor:
        nonlocal calls
        calls += 1
        result = compute()
        if calls == at:
            bits(result).view(-1)[-1] ^= 1
        return result

    return computed


def planted(monkeypatch: pytest.MonkeyPatch, unit: str, number_format: str, at: int) -> None:
    answers = known_answers._answers

    def with_flip(*arguments: Any) -> Iterator[Answer]:
        for answer in answers(*arguments):
            is_it = (answer.unit, answer.format) == (unit, number_format)
            yield replace(answer, compute=flipped(answer.compute, at)) if is_it else answer

    monkeypatch.setattr(known_answers, "_answers", with_flip)


def test_a_right_device_gives_every_answer() -> None:
    result = KnownAnswers().measure(QUICK, Context(CASE))
    wrong, checked, _ = result.measurements
    assert (wrong.name, wrong.value) == ("wrong_elements", 0.0)
    rows = {(row["unit"], row["format"]): row for row in result.facts["answers"]}
    assert set(UNITS) <= set(rows) and not any(row["wrong"] for row in rows.values())
    assert checked.value == sum(row["elements"] for row in rows.values())
    assert "matrix product in fp8" in result.facts["skipped"]
    again = KnownAnswers().measure(QUICK, Context(CASE))
    assert again.facts["fingerprint"] == result.facts["fingerprint"]


@pytest.mark.parametrize(("unit", "number_format"), UNITS)
def test_one_flipped_bit_is_found_and_its_unit_named(
    monkeypatch: pytest.MonkeyPatch, unit: str, number_format: str
) -> None:
    planted(monkeypatch, unit, number_format, at=3)
    kept: list[Result] = []
    with pytest.raises(SilentCorruption, match=rf"{unit} in {number_format} \(1 of ") as caught:
        KnownAnswers().measure(QUICK, Context(CASE, keep=kept.append))
    assert "kinds of answers are right" in str(caught.value)
    assert [one.value for one in kept[0].measurements if one.at] == [1.0]


def test_a_function_that_is_always_far_off_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = known_answers._answers

    def off(*arguments: Any) -> Iterator[Answer]:
        for answer in answers(*arguments):
            exact = answer.exact
            yield answer if exact is None else replace(answer, compute=partial(torch.mul, exact.float(), 1.001))

    monkeypatch.setattr(known_answers, "_answers", off)
    with pytest.raises(SilentCorruption, match="exponential in fp32"):
        KnownAnswers().measure(QUICK, Context(CASE))


def test_the_record_says_with_which_nodes_its_fingerprint_is_comparable() -> None:
    facts = {"device": "cpu", "fingerprint": {"digest": "abc"}}
    environment = Environment(cpu=Cpu(model="Neoverse-N1"), software=Software(packages={"torch": "2.11.0"}))
    found = described(record(CASE, [], facts=facts), environment).fingerprint
    assert found is not None and (found.digest, found.basis) == ("abc", "Neoverse-N1, torch 2.11.0")
