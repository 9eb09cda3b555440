"""megatron-core trains the model that the benchmark `parallel` trains, and says what it cannot do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch

from paceline.benchmarks.parallel._optimizer import BETAS, EPSILON, WEIGHT_DECAY
from paceline.benchmarks.parallel._parameters import LEARNING_RATE, ParallelParameters, build
from paceline.benchmarks.parallel._stage import Mesh
from paceline.benchmarks.parallel._trainer import ParallelTrainer
from paceline.benchmarks.parallel.megatron_core import MegatronCore, framework, refuse
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, Unsupported
from paceline.devices import kind_named
from paceline.devices.cpu import CpuDevice
from support.layouts import TINY

pytest.importorskip("megatron.core", reason="needs megatron-core: pip install 'paceline[megatron]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # of megatron-core and of its imports

STEPS = 5


@contextmanager
def trainer_of(parameters: ParallelParameters) -> Iterator[Any]:
    from paceline.benchmarks.parallel._megatron_trainer import MegatronTrainer, groups

    with groups(kind_named("cpu"), 1):
        yield MegatronTrainer(parameters, CpuDevice(), Mesh.of(parameters.layout, 0, "cpu"), compiled=False)


def traced(trainer: Any) -> tuple[list[float], list[float]]:
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(float(trainer.step()))
        norms.append(float(trainer.norm))
    return losses, norms


@pytest.mark.parametrize("micro_batch", [4, 1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gpt2_is_the_model_that_parallel_trains(micro_batch: int, checkpointing: bool) -> None:
    parameters = ParallelParameters(**TINY, micro_batch=micro_batch, checkpointing=checkpointing)
    ours = ParallelTrainer(parameters, CpuDevice(), Mesh.of(parameters.layout, 0, "cpu"), compiled=False)
    expected_losses, expected_norms = traced(ours)
    with trainer_of(parameters) as theirs:
        losses, norms = traced(theirs)
        assert theirs.memory() == ours.memory()
        assert theirs.parameter_count == ours.parameter_count
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert norms == pytest.approx(expected_norms, rel=1e-4)
    assert max(norms) > 1.0  # so that clipping took part
    assert losses[0] - losses[-1] > 0.01


def test_bert_is_ours_with_the_norms_before_each_part() -> None:
    parameters = ParallelParameters(**TINY, model="bert", micro_batch=2)
    with trainer_of(parameters) as theirs:
        losses, norms = traced(theirs)
        assert theirs.memory()["parameter_memory"] == 4 * theirs.parameter_count
    expected_losses, expected_norms = pre_norm_bert(parameters)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert norms == pytest.approx(expected_norms, rel=1e-4)


def pre_norm_bert(parameters: ParallelParameters) -> tuple[list[float], list[float]]:
    """Our modules in megatron-core's order, in a plain loop."""
    torch.manual_seed(parameters.seed)
    workload = build(parameters)
    model: Any = workload.module.train()
    batch = workload.make_batch(parameters.layout.global_batch, torch.Generator().manual_seed(parameters.seed))
    tokens, types, masked = batch.inputs
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in model.parameters() if one.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE["bert"], betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = model.token_embedding(tokens) + model.type_embedding(types) + model.position_embedding.weight
        for block in model.blocks:
            x = x + block.attention(block.attention_norm(x))
            x = x + block.feed_forward(block.feed_forward_norm(x))
        loss = workload.loss(model.head(model.embedding_norm(x), masked), batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 1e-2), ("fp16", 2e-3)])
def test_mixed_precision_keeps_fp32_weights_and_the_loss(precision: Any, tolerance: float) -> None:
    parameters = ParallelParameters(**TINY | {"precision": precision}, micro_batch=2)
    exact = ParallelParameters(**TINY, micro_batch=2)
    ours = ParallelTrainer(exact, CpuDevice(), Mesh.of(exact.layout, 0, "cpu"), compiled=False)
    with trainer_of(parameters) as theirs:
        losses, _ = traced(theirs)
        memory, count = theirs.memory(), theirs.parameter_count
        assert theirs.loss_scale == (65536.0 if precision == "fp16" else 1.0)
    assert losses == pytest.approx(traced(ours)[0], abs=tolerance)
    assert memory["parameter_memory"] == 2 * count
    assert memory["optimizer_memory"] == pytest.approx(12 * count, rel=0.01)


def test_gradients_that_overflow_are_not_stepped_with() -> None:
    with trainer_of(ParallelParameters(**TINY | {"precision": "fp16"}, micro_batch=4)) as trainer:
        before = [one.detach().clone() for one in trainer._model.parameters()]
        trainer._optimizer.chained_optimizers[0].grad_scaler._scale.fill_(1e30)
        trainer.step()
        assert float(trainer.norm) == float("inf")
        assert all(torch.equal(a, b) for a, b in zip(before, trainer._model.parameters(), strict=True))


def test_what_stands_in_for_cuda_is_gone_afterwards() -> None:
    from paceline.benchmarks.parallel._megatron_trainer import on_cpu

    def watched() -> list[Any]:
        return [torch.zeros, torch.tensor, torch.Tensor.type, torch.Tensor.cuda, torch.cuda.current_device]

    before = watched()
    with on_cpu():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2).type() == "torch.cuda.FloatTensor"
        assert watched() != before
    assert watched() == before
    assert torch.zeros(2).type() == "torch.FloatTensor"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"precision": "fp8"}, "use bf16, fp16 or fp32"),
        ({"compile": "on"}, "--compile auto or off"),
        ({"pipeline": 2, "schedule": "zero-bubble"}, "not zero-bubble; use --schedule 1f1b"),
        ({"data": 2, "shard": "fsdp"}, "--shard replicate"),
        ({"tensor": 2, "sequence_parallel": True}, "leave sequence_parallel out"),
        ({"pipeline": 2, "layers": 3}, "3 layers are not a multiple of pipeline = 2"),
    ],
)
def test_what_it_cannot_do_is_unsupported_and_says_what_to_use(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        refuse(ParallelParameters(**parameters))


def test_without_the_package_a_case_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    case = Case(index=0, benchmark="megatron-core", parameters={}, title="")
    with pytest.raises(MissingDependency, match=r"pip install 'paceline\[megatron\]'"):
        MegatronCore().measure(ParallelParameters(**TINY), Context(case=case))


def test_another_thing_of_that_name_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "megatron" or name.startswith("megatron.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))  # a file: no package with parts
    case = Case(index=0, benchmark="megatron-core", parameters={}, title="")
    with pytest.raises(MissingDependency, match=r"pip install 'paceline\[megatron\]'"):
        MegatronCore().measure(ParallelParameters(**TINY), Context(case=case))


def test_a_checkout_that_is_not_installed_tells_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    monkeypatch.setattr(sys.modules["megatron.core"], "__version__", "0.99.0rc1")
    assert framework().startswith("megatron-core 0.99.0rc1: its own layers")


def test_a_record_says_without_what_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert framework().endswith(": its own layers, without Transformer Engine and apex")


def test_it_is_a_peer_of_parallel() -> None:
    from paceline.benchmarks.parallel.parallel import Parallel

    assert MegatronCore.Parameters is Parallel.Parameters
    assert MegatronCore.metrics == Parallel.metrics
