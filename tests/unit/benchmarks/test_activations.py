"""The bytes of activations against sums done by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.benchmarks._model.traffic import count_results, count_saved

torch = pytest.importorskip("torch", reason="install it with: pip install '.[torch]'")
FLOAT = 4


def session(module: Any, **more: Any) -> Any:
    settings = {"precision": "fp32", "compiled": False} | more
    return SimpleNamespace(
        compiled=settings["compiled"],
        parameters=SimpleNamespace(precision=settings["precision"]),
        facts={},
        workload=SimpleNamespace(module=module, loss=lambda output, batch: output.sum()),
    )


def perceptron() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))


def test_forward_each_operator_writes_its_result() -> None:
    module = perceptron().eval()
    made = session(module)
    with torch.inference_mode():
        output = count_results(made, lambda: module(torch.ones(4, 10)))
        assert torch.equal(output, module(torch.ones(4, 10)))
    ones = 4 * 10
    assert made.facts == {
        "activation_bytes": FLOAT * (ones + 4 * (20 + 20 + 5)),
        "activations_are": "results of all operators",
    }


def test_views_are_no_results_and_what_is_changed_in_place_is_one() -> None:
    nn = torch.nn
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(512, 2))
    module = nn.Sequential(*layers).eval()
    made = session(module)
    images = torch.ones(2, 3, 8, 8)
    with torch.inference_mode():
        count_results(made, lambda: module(images))
    assert made.facts["activation_bytes"] == FLOAT * 2 * (3 * 8 * 8 * 8 + 2)


def test_training_keeps_what_the_backward_pass_reads_once_and_no_weights() -> None:
    module = perceptron()
    made = session(module)
    vectors = torch.ones(4, 10)
    count_saved(made, lambda: module(vectors).sum().backward())
    # The first layer keeps its input, the second its own, which is also what the rectifier keeps.
    assert made.facts == {"activation_bytes": FLOAT * 4 * (10 + 20), "activations_are": "kept for the backward pass"}
    counted = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(vectors).sum().backward()
    assert all(torch.equal(one, two.grad) for one, two in zip(counted, module.parameters(), strict=True))


@pytest.mark.parametrize("more", [{"compiled": True}, {"precision": "fp8_hybrid"}])
def test_what_does_not_show_its_operators_is_not_counted(more: dict[str, Any]) -> None:
    module = perceptron()
    made = session(module, **more)
    count_saved(made, lambda: module(torch.ones(4, 10)).sum().backward())
    count_results(made, lambda: module(torch.ones(4, 10)))
    assert made.facts == {}


def test_a_model_that_does_not_bear_it_runs_without() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    def shy() -> str:
        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("somebody looks")
        return "done"

    made = session(perceptron())
    assert count_results(made, shy) == "done"
    assert made.facts == {"activations_unknown_because": "RuntimeError: somebody looks"}
