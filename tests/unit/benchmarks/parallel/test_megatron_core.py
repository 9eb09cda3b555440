"""megatron-core trains the model that the benchmark `parallel` trains, and says what it cannot do."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn

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

pytest.importorskip("megatron.core", reason="needs megatron-core: pip install '.[megatron]'")

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
    with pytest.raises(MissingDependency, match=r"pip install '\.\[megatron\]'"):
        MegatronCore().measure(ParallelParameters(**TINY), Context(case=case))


def test_another_thing_of_that_name_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "megatron" or name.startswith("megatron.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))  # a file: no package with parts
    case = Case(index=0, benchmark="megatron-core", parameters={}, title="")
    with pytest.raises(MissingDependency, match=r"pip install '\.\[megatron\]'"):
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


# ---- a whole measurement, and what is said of it


def context() -> Context:
    return Context(case=Case(index=0, benchmark="megatron-core", parameters={}, title="", target="cpu"))


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")


@pytest.mark.usefixtures("connections")
def test_one_rank_is_measured_with_the_figures_of_parallel() -> None:
    parameters = ParallelParameters(**TINY, micro_batch=2, steps=2, warm_up=0.0)
    result = MegatronCore().measure(parameters, context())
    by_name = {one.metric.name: one for one in result.measurements}
    assert by_name["throughput"].work == 4
    assert len(by_name["loss"].samples) == 5
    assert result.facts["framework"] == framework()
    assert result.facts["not_fused_because"] == "auto compiles on GPUs only"
    assert "compared" not in result.facts
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
    assert not distributed.is_initialized()


@pytest.mark.usefixtures("connections")
@pytest.mark.parametrize(("before", "expected"), [(None, "1"), ("8", "8")])
def test_tensor_parallel_ranks_issue_in_order_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, before: str | None, expected: str
) -> None:
    from paceline.benchmarks.parallel import _megatron_trainer

    def stopped(*_: Any) -> Any:
        raise Unsupported("far enough")

    if before is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", before)
    monkeypatch.setattr(_megatron_trainer, "groups", stopped)
    with pytest.raises(Unsupported, match="far enough"):
        MegatronCore().measure(ParallelParameters(**TINY, tensor=2), context())
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == expected


def test_what_it_needs_and_is_not_there_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paceline.benchmarks.parallel._megatron_trainer", None)
    version = metadata.version("megatron-core")
    with pytest.raises(MissingDependency, match=rf"megatron-core {version}.*importing it says"):
        MegatronCore().measure(ParallelParameters(**TINY), context())


def test_fp8_is_not_prepared_for() -> None:
    with pytest.raises(Unsupported, match="use bf16"):
        MegatronCore().prepare(ParallelParameters(**TINY | {"precision": "fp8"}), CpuDevice())


def facts_of(*, has_gpu: bool = False, **parameters: Any) -> dict[str, Any]:
    device = SimpleNamespace(name="cpu", kind=SimpleNamespace(is_accelerator=has_gpu))
    chosen = ParallelParameters(**TINY | parameters)
    trainer: Any = SimpleNamespace(parameters=chosen, device=device, parameter_count=1, layers=[2])
    return MegatronCore().facts(trainer)


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("fp32", None),
        ("bf16", "weights in bf16 with fp32 copies in the optimizer; gradients add up in fp32"),
        ("fp16", "weights in fp16 with fp32 copies in the optimizer; gradients add up in fp16"),
    ],
)
def test_facts_say_in_which_format_gradients_add_up(precision: str, words: str | None) -> None:
    assert facts_of(precision=precision).get("mixed_precision") == words


def test_facts_say_what_is_megatron_core_s() -> None:
    facts = facts_of()
    assert facts["optimizer"].startswith("megatron-core's, over AdamW, betas")
    assert (facts["data_parallel"], "architecture" in facts, "on_cpu" in facts) == ("none", False, True)
    several = facts_of(data=2, model="bert", micro_batch=1, has_gpu=True)
    assert several["data_parallel"] == "megatron-core's DistributedDataParallel, not overlapped"
    assert several["architecture"].startswith("megatron-core's: pre-norm layers")
    assert "on_cpu" not in several


@pytest.mark.parametrize(
    "parameters",
    [
        {"shard": "fsdp"},
        {"data": 2},
        {"pipeline": 2, "layers": 4},
        {"pipeline": 2, "layers": 4, "schedule": "1f1b"},
        {"compile": "off", "graph": "off"},
    ],
)
def test_what_it_can_do_is_not_refused(parameters: dict[str, Any]) -> None:
    refuse(ParallelParameters(**parameters))


@pytest.mark.parametrize(
    ("installed", "words"),
    [({"apex"}, ", without Transformer Engine"), ({"apex", "transformer_engine"}, ": its own layers")],
)
def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, installed: set[str], words: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else None)
    assert framework().endswith(words)


# ---- its model


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_its_gelu_is_the_tanh_form_of_gpt2_and_the_exact_one_of_bert(model: Any, fused: bool) -> None:
    from paceline.benchmarks.parallel._megatron_trainer import transformer_config

    config = transformer_config(ParallelParameters(**TINY, model=model), fused=fused)
    assert config.bias_activation_fusion is config.bias_dropout_fusion is fused
    x = torch.linspace(-3, 3, 7)
    form = "tanh" if model == "gpt2" and not fused else "none"  # a fused one is chosen by megatron-core itself
    assert torch.equal(config.activation_func(x), torch.nn.functional.gelu(x, approximate=form))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_its_sizes_and_formats_are_those_of_the_layout(precision: str, dtype: torch.dtype) -> None:
    from paceline.benchmarks.parallel._megatron_trainer import transformer_config

    parameters = ParallelParameters(**TINY | {"precision": precision, "checkpointing": True})
    config = transformer_config(parameters, fused=False)
    assert (config.num_layers, config.hidden_size, config.ffn_hidden_size) == (2, 32, 128)
    assert (config.attention_dropout, config.hidden_dropout) == (0.0, 0.0)
    assert (config.params_dtype, config.pipeline_dtype) == (dtype, dtype)
    assert (config.fp16, config.bf16) == (precision == "fp16", precision == "bf16")
    recomputed = config.recompute_granularity, config.recompute_method, config.recompute_num_layers
    assert recomputed == ("full", "uniform", 1)
    assert not config.gradient_accumulation_fusion


class Layer(nn.Module):
    """The second layer of a model, which a stage has as its first; split over two ranks."""

    layer_number = 2

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.linear_fc1 = nn.Linear(3, 2)
        self.mlp.linear_fc2 = nn.Linear(2, 3)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_tensor_parallel_rank_takes_its_part_of_the_weights(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    from paceline.benchmarks.parallel._megatron_trainer import copy_weights, parallel_state

    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_world_size", lambda: 2)
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_rank", lambda: rank)
    model = nn.Module()
    model.decoder = nn.Module()
    model.decoder.layers = nn.ModuleList([Layer()])
    model.decoder.final_layernorm = nn.LayerNorm(3)
    shapes = {
        "blocks.1.feed_forward.expand.weight": (4, 3),
        "blocks.1.feed_forward.expand.bias": (4,),
        "blocks.1.feed_forward.contract.weight": (3, 4),
        "blocks.1.feed_forward.contract.bias": (3,),
        "final_norm.weight": (3,),
        "final_norm.bias": (3,),
    }
    ours = {name: torch.randn(shape) for name, shape in shapes.items()}
    copy_weights(model, ours)
    copied: Any = model.decoder.layers[0]
    part = slice(2 * rank, 2 * rank + 2)
    assert torch.equal(copied.mlp.linear_fc1.weight, ours["blocks.1.feed_forward.expand.weight"][part])
    assert torch.equal(copied.mlp.linear_fc1.bias, ours["blocks.1.feed_forward.expand.bias"][part])
    assert torch.equal(copied.mlp.linear_fc2.weight, ours["blocks.1.feed_forward.contract.weight"][:, part])
    assert torch.equal(copied.mlp.linear_fc2.bias, ours["blocks.1.feed_forward.contract.bias"])
    assert torch.equal(model.decoder.final_layernorm.weight, ours["final_norm.weight"])


@pytest.mark.parametrize("world_size", [1, 2])
def test_only_one_rank_alone_makes_a_group_for_itself(world_size: int) -> None:
    from paceline.benchmarks.parallel._megatron_trainer import groups

    with groups(kind_named("cpu"), world_size):
        assert distributed.is_initialized() is (world_size == 1)
    assert not distributed.is_initialized()


def test_a_tensor_still_changes_its_format_where_cuda_means_the_cpu() -> None:
    from paceline.benchmarks.parallel._megatron_trainer import on_cpu

    with on_cpu():
        assert torch.ones(2).type(torch.float64).dtype == torch.float64
        assert torch.ones(2, device="cpu").cuda().device.type == "cpu"
        assert torch.ones(2, device="meta").device.type == "meta"


def test_a_micro_batch_of_bert_weighs_the_masked_tokens_alike() -> None:
    from paceline.benchmarks.parallel._megatron_trainer import _forward, _micro_batch

    parameters = ParallelParameters(**TINY, model="bert")
    batch = build(parameters).make_batch(2, torch.Generator().manual_seed(1))
    inputs, keywords, loss = _micro_batch(batch)
    _, types, masked = batch.inputs
    assert torch.equal(keywords["tokentype_ids"], types)
    assert torch.equal(keywords["lm_labels"].gather(1, masked), batch.targets[0])
    ones = torch.ones(2, 16)
    for each in loss(ones):
        assert float(each) == pytest.approx(1.0)
    outside = ones.scatter(1, masked, 0.0)
    assert float(loss(outside)[0]) == 0.0
    output, same = _forward(iter([(inputs, keywords, loss)]), lambda *_, **__: (ones, None))
    assert output is ones
    assert same is loss
