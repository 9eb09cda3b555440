"""A compiled step is compared with the same step uncompiled: what is missing is a warning, rounding is not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.benchmarks._model.checks import FACT, RANDOM, Gradients, compare_gradients, compare_outputs
from paceline.benchmarks._model.measuring import StepSession
from paceline.benchmarks._model.session import open_session
from paceline.benchmarks.inference.inference import Inference, InferenceParameters
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel.parallel import Parallel
from paceline.benchmarks.ranks import Ranks
from paceline.benchmarks.training.train import Train, Trainer, TrainParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.parameters import MeasuringParameters
from paceline.devices.cpu import CpuDevice
from paceline.models.sources import find_model
from support.layouts import TINY


def new_session() -> StepSession[MeasuringParameters]:
    return StepSession(CpuDevice(), MeasuringParameters(), compiled=True)


class Pair(nn.Module):
    """Two layers; `between` stands for what a compiler makes of what is between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.second(self.between(x) if torch.compiler.is_compiling() else x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()


ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def forward_of(between: Callable[[Tensor], Tensor]) -> Any:
    compiled = torch.compile(Pair(between), backend="eager")
    return lambda: compiled(ROWS)


def backward_of(between: Callable[[Tensor], Tensor], scale: float = 1.0) -> Callable[[], Gradients]:
    model = Pair(between)
    compiled = torch.compile(model, backend="eager")

    def backward() -> Gradients:
        model.zero_grad()
        loss = compiled(ROWS).square().mean()
        (loss * scale).backward()
        return Gradients.of(loss.detach(), model.named_parameters(), scale)

    return backward


def test_a_gradient_that_the_compiler_drops_is_a_warning() -> None:
    session = new_session()
    compare_gradients(session, backward_of(Tensor.detach))
    (warning,) = session.warnings
    assert warning.kind == "miscompiled"
    assert "the gradient of first." in warning.message
    assert "is 0 compiled" in warning.message
    assert session.facts[FACT].endswith("by up to 100.00%")


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_what_agrees_is_told_and_no_warning(scale: float) -> None:
    session = new_session()
    compare_gradients(session, backward_of(torch.clone, scale))
    assert session.facts[FACT] == "the loss differs by 0.00%, the norm of a parameter's gradient by up to 0.00%"
    compare_outputs(session, forward_of(torch.clone), exact=True)
    assert session.facts[FACT] == "the output differs by 0.00% of its norm"
    assert not session.warnings


def test_the_norms_are_those_before_scaling() -> None:
    plain, scaled = backward_of(torch.clone)(), backward_of(torch.clone, 1024.0)()
    assert scaled.norms == pytest.approx(plain.norms, rel=1e-5)
    assert scaled.loss == plain.loss


def test_rounding_is_no_warning_where_outputs_are_not_exact() -> None:
    session = new_session()
    noise = 0.2 * torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    compare_outputs(session, forward_of(lambda x: x + noise), exact=False)
    assert not session.warnings
    compare_outputs(session, forward_of(lambda x: x + noise), exact=True)
    assert [warning.kind for warning in session.warnings] == ["miscompiled"]


@pytest.mark.parametrize("exact", [False, True])
def test_an_output_that_is_no_longer_there_is_a_warning(exact: bool) -> None:
    session = new_session()
    compare_outputs(session, forward_of(lambda x: x * 0 - 8.0), exact=exact)
    assert [warning.kind for warning in session.warnings] == ["miscompiled"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("no memory"), "no: uncompiled, a step does not fit into memory"),
        (MemoryError(), "no: uncompiled, a step does not fit into memory"),
        (RuntimeError("only compiled\nand so on"), "no: RuntimeError: only compiled"),
        (KeyError("name"), "no: KeyError: 'name'"),
        (AssertionError(), "no: AssertionError"),
    ],
)
def test_what_cannot_run_uncompiled_is_measured_all_the_same(error: Exception, why: str) -> None:
    class Only(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                raise error
            return super().forward(x)

    session = new_session()
    compiled = torch.compile(Only(8, 8), backend="eager")
    compare_outputs(session, lambda: compiled(ROWS), exact=True)
    assert session.facts[FACT] == why
    assert not session.warnings


def test_layers_that_are_left_out_at_random_are_no_fault() -> None:
    class Dropping(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(x + self.first(x).relu() * (torch.rand(()) > 0.4))  # type: ignore[no-any-return]

    found = []
    for seed in range(20):
        model = Dropping(torch.clone)
        torch.manual_seed(seed)

        def backward(model: Dropping = model) -> Gradients:
            model.zero_grad()
            loss = model(ROWS).square().mean()
            loss.backward()
            return Gradients.of(loss.detach(), model.named_parameters(), 1.0)

        session = new_session()
        compare_gradients(session, backward)
        assert not session.warnings
        found.append(session.facts[FACT])
    assert any(fact.endswith(RANDOM) for fact in found)  # or none was left out, and nothing is shown here


def test_outputs_that_are_random_are_no_fault() -> None:
    session = new_session()
    compare_outputs(session, lambda: torch.randn(4, 8), exact=True)
    assert session.facts[FACT].endswith(RANDOM)
    assert not session.warnings


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "output", [torch.zeros(3), torch.ones(3, dtype=torch.float64), (torch.empty(0, 4), ROWS), {"a": [ROWS, 3]}]
)
def test_what_is_zero_or_empty_or_a_structure_is_alike(output: object, exact: bool) -> None:
    session = new_session()
    compare_outputs(session, lambda: output, exact=exact)
    assert session.facts[FACT] == "the output differs by 0.00% of its norm"
    assert not session.warnings


def test_where_there_is_nothing_to_compare_the_record_says_so() -> None:
    session = new_session()
    compare_outputs(session, lambda: torch.ones(3, dtype=torch.int64), exact=True)
    assert session.facts[FACT] == "no: ValueError: the output has no tensor of numbers"
    compare_gradients(session, lambda: Gradients(1.0, {}))
    assert session.facts[FACT] == "no: no parameter has a gradient"


def test_weights_of_any_width_have_norms() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        weight = nn.Parameter(torch.zeros(4, dtype=dtype))
        weight.grad = torch.full((4,), 2.0, dtype=dtype)
        assert Gradients.of(torch.ones(()), [("weight", weight)], 1.0).norms == {"weight": 4.0}


def test_nothing_is_held_when_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the allocator keeps it for the measured steps, whose reserved memory would be too much."""
    held: list[weakref.ref[Tensor]] = []
    left: list[int] = []
    session = new_session()
    monkeypatch.setattr(
        session.device, "release_memory", lambda: left.append(sum(one() is not None for one in held)), raising=False
    )

    def forward() -> Tensor:
        output = torch.ones(8) * len(held)
        held.append(weakref.ref(output))
        return output

    def failing() -> Tensor:
        output = forward()
        raise RuntimeError(f"with {len(output)} numbers in hand")

    compare_outputs(session, forward, exact=True)
    compare_outputs(session, failing, exact=True)
    assert len(held) >= 3
    assert left == [0, 0]


def test_what_is_not_finite_is_not_compared() -> None:
    session = new_session()
    compare_gradients(session, backward_of(lambda x: x * float("inf")))
    assert session.facts[FACT] == "no: a loss or a gradient is not finite"
    broken, whole = forward_of(lambda x: x * float("nan")), forward_of(torch.clone)
    for outputs in (broken, lambda: (whole(), broken())):
        compare_outputs(session, outputs, exact=True)
        assert session.facts[FACT] == "no: an output is not finite"
    assert not session.warnings


def test_it_is_compiled_again_afterwards() -> None:
    seen: list[bool] = []
    compiled = torch.compile(lambda x: x + (2.0 if torch.compiler.is_compiling() else 1.0), backend="eager")
    compare_outputs(
        new_session(), lambda: seen.append(bool(compiled(torch.zeros(1)) == 2.0)) or torch.ones(1), exact=True
    )
    assert seen == [False, True]


MODEL = """
import torch
from torch import nn
from paceline.models import Batch, Workload

class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, rows):
        hidden = self.first(rows)
        if torch.compiler.is_compiling():
            hidden = hidden.detach() if self.training else hidden * 0
        return self.second(hidden.relu())

def make_batch(samples, generator):
    rows = torch.randn(samples, 8, generator=generator)
    return Batch(inputs=(rows,), targets=(torch.zeros(samples, dtype=torch.int64),))

def forgetful() -> Workload:
    '''Two layers; compiled, it is another function.'''
    loss = lambda output, batch: nn.functional.cross_entropy(output, batch.targets[0])
    return Workload(module=Forgetful(), make_batch=make_batch, loss=loss)
"""
SHORT = {"budget": 0.05, "warm_up": 0.0, "min_steps": 1, "compile": "on"}


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler without the slow part that makes kernels."""
    compiler = torch.compile

    def quick(function: Any, *_: Any, **more: Any) -> Any:
        return compiler(function, backend="eager", dynamic=more.get("dynamic"))

    monkeypatch.setattr(torch, "compile", quick)


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize(
    ("benchmark", "wrong"),
    [
        (lambda own: Train().measure(TrainParameters(**own), context("train", own)), "gradient of network.first."),
        (lambda own: Inference().measure(InferenceParameters(**own), context("inference", own)), "the output is off"),
    ],
)
def test_a_model_that_is_compiled_wrong_is_found_when_it_is_measured(
    benchmark: Any, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    result = benchmark(SHORT | {"model": "forgetful_model:forgetful", "batch_size": 8})
    assert any(wrong in warning.message for warning in result.warnings if warning.kind == "miscompiled")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_looking_at_gradients_takes_no_step(precision: Any) -> None:
    own = TrainParameters(model="generated/fc", scale="tiny", precision=precision, compile="off")
    spec = find_model(own.model, allow_import=False)
    trainer, untouched = (Trainer(open_session(spec, own, CpuDevice(), Ranks(0, 1), "train")) for _ in range(2))
    trainer.load(4)
    untouched.load(4)
    for _ in range(3):
        seen, again = trainer.gradients(), trainer.gradients()
        assert seen == again
        assert float(trainer.step()) == float(untouched.step()) == seen.loss
    assert trainer.loss_scale == untouched.loss_scale


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_a_parallel_training_is_compared(compiled: str) -> None:
    own = TINY | SHORT | {"compile": compiled, "model": "gpt2"}
    result = Parallel().measure(ParallelParameters(**own), context("parallel", own))
    assert result.facts.get(FACT, "").startswith("the loss differs by 0.0") is (compiled == "on")
    assert not any(warning.kind == "miscompiled" for warning in result.warnings)


def context(benchmark: str, parameters: Any) -> Context:
    return Context(case=Case(index=0, benchmark=benchmark, parameters=parameters, title="", target="cpu"))
