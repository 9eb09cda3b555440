"""What inference keeps of its first output, by which two settings of one case are compared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from paceline.benchmarks._model.checks import kept_output
from paceline.benchmarks.inference.inference import Inference, InferenceParameters, Predictor
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.kept_output import MOST_NUMBERS, KeptOutput
from paceline.devices.cpu import CpuDevice

SHORT: dict[str, Any] = {"model": "generated/cnn", "scale": "tiny", "budget": 0.05, "warm_up": 0.01, "span": 0.0,
                         "min_steps": 1}  # fmt: skip


def kept(output: object) -> KeptOutput:
    found = kept_output(output)
    assert found is not None
    return found


def test_numbers_of_a_tensor_are_evenly_spaced_from_its_first_to_its_last() -> None:
    found = kept(torch.arange(1000.0).reshape(10, 100))
    assert (found.count, len(found.numbers)) == (1000, MOST_NUMBERS)
    assert (found.numbers[0], found.numbers[-1]) == (0.0, 999.0)
    steps = [after - before for before, after in zip(found.numbers, found.numbers[1:], strict=False)]
    assert set(steps) == {15.0, 16.0}
    assert found.norm == pytest.approx(math.sqrt(sum(i * i for i in range(1000))))


def test_of_a_small_output_all_numbers_are_kept() -> None:
    assert kept(torch.tensor([3.0, 4.0], dtype=torch.bfloat16)) == KeptOutput(count=2, norm=5.0, numbers=(3.0, 4.0))


@pytest.mark.parametrize("output", [
    (torch.ones(2, 3), (torch.tensor(2.0), torch.ones(1))),
    {"logits": torch.ones(2, 3), "nested": {"loss": torch.tensor(2.0), "ids": torch.arange(4), "last": torch.ones(1)}},
    [torch.ones(6), torch.ones(0), None, torch.tensor([2.0, 1.0])],
], ids=["tuple", "dict", "list"])  # fmt: skip
def test_outputs_of_several_tensors_are_kept_in_their_order(output: object) -> None:
    found = kept(output)
    assert found.numbers == (*[1.0] * 6, 2.0, 1.0)
    assert found.norm == pytest.approx(math.sqrt(11.0))


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    rows = torch.randn(3, 8, 5, 5, generator=torch.Generator().manual_seed(1))
    told = kept(rows.to(memory_format=torch.channels_last)).compared(kept(rows))
    assert told == "the output differs by 0.00% of its norm in 64 of its numbers, the norm by 0.00%"
    assert kept(rows.to(memory_format=torch.channels_last)).numbers == kept(rows).numbers


@pytest.mark.parametrize("output", [torch.arange(3), torch.tensor([math.nan]), torch.tensor([math.inf]), ()])
def test_what_has_no_finite_numbers_is_not_kept(output: object) -> None:
    assert kept_output(output) is None


def test_two_outputs_are_compared_by_what_was_kept() -> None:
    rows = torch.randn(100, generator=torch.Generator().manual_seed(1))
    told = kept(rows).compared(kept(1.01 * rows))
    assert told == "the output differs by 0.99% of its norm in 64 of its numbers, the norm by 0.99%"
    assert kept(rows[:4]).compared(kept(rows[:4])) == "the output differs by 0.00% of its norm, the norm by 0.00%"
    assert kept(rows).compared(kept(rows[:50])) == "not compared: outputs of 100 and 50 numbers"


def measured(**more: Any) -> KeptOutput:
    given = SHORT | more
    case = Case(index=0, benchmark="inference", parameters=given, title="", target="cpu")
    found = KeptOutput.read(Inference().measure(InferenceParameters(**given), Context(case=case)).facts)
    assert found is not None
    return found


def test_settings_of_one_case_are_comparable_and_another_seed_is_seen() -> None:
    first, again, other = measured(), measured(channels_last="on"), measured(seed=7)
    assert first.compared(again).startswith("the output differs by 0.00% of its norm")
    assert "differs by 0.00%" not in first.compared(other)
    assert "not compared: outputs of" in first.compared(measured(batch_size=3))


class Graphs(CpuDevice):
    """A host whose graphs compute something else than what was recorded."""

    def capture(self, step: Any) -> Any:
        step()
        output = recorded[-1].output
        return lambda: output.fill_(1.0)


recorded: list[Predictor] = []


def test_of_a_graph_the_output_of_a_replay_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(Predictor):
        def __init__(self, session: Any) -> None:
            super().__init__(session)
            recorded.append(self)

    device = Graphs()
    monkeypatch.setattr(device.kind, "supports_graphs", True, raising=False)
    monkeypatch.setattr("paceline.benchmarks.inference.inference.open_device", lambda _: device)
    monkeypatch.setattr("paceline.benchmarks.inference.inference.Predictor", Recorded)
    assert set(measured(graph="on").numbers) == {1.0}
    assert recorded[-1].output is None
