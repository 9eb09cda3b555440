"""Every model of the zoo: it lists without torch, has the parameters it claims, and trains and infers at tiny scale."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from paceline.models import MODELS, ModelSpec, Workload

NAMES = """
gpt2-small gpt2-medium gpt2-large gpt2-xl bert-base bert-large lstm lm-transformer asr-transformer
resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d wide_resnet50_2 wide_resnet101_2
densenet121 densenet161 densenet169 densenet201 vit-base detr
vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn
mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2
shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0
squeezenet1_0 squeezenet1_1 alexnet googlenet inception_v3
mixtral-8x300m mixtral-8x1b mixtral-8x7b mixtral-8x22b deepseek-v2-lite
t5-small t5-base t5-large dit-s-2 dit-b-2 dit-l-2 dit-xl-2
llama2-7b llama2-13b llama2-70b llama3.2-1b llama3-8b llama3-70b qwen2.5-0.5b qwen2.5-7b qwen3-0.6b qwen3-8b
"""
# A smaller one of the same family has the same code; these take seconds each.
LARGER_SIBLINGS = """
resnet101 resnet152 resnext101_32x8d wide_resnet50_2 wide_resnet101_2 densenet161 densenet169 densenet201
vgg13 vgg16 vgg19 vgg13_bn vgg16_bn vgg19_bn
"""
ALL = [pytest.param(spec, id=name) for name, spec in MODELS.registry().entries.items()]
TRAINED = [
    pytest.param(spec, id=name, marks=[pytest.mark.long] if name in LARGER_SIBLINGS.split() else [])
    for name, spec in MODELS.registry().entries.items()
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_loss(workload: Workload) -> nn.ModuleList:
    """The model, and its loss where that has weights too: all that is trained."""
    parts = (workload.module, workload.loss)
    return nn.ModuleList(part for part in parts if isinstance(part, nn.Module))


def test_every_model_is_listed_and_no_module_is_broken() -> None:
    assert set(MODELS.registry().entries) >= set(NAMES.split())
    assert MODELS.registry().broken == []


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from paceline.models import MODELS, flops; names = MODELS.registry().entries;"
        "heavy = {'torch', 'torchvision', 'transformers', 'numpy'} & set(sys.modules);"
        "assert len(names) >= 42 and not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("spec", ALL)
def test_the_parameter_count_is_that_of_the_built_module(spec: ModelSpec) -> None:
    with torch.device("meta"):
        module = spec.build("full").module
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.usefixtures("quick_weights")
@pytest.mark.parametrize("spec", TRAINED)
def test_one_training_step_and_one_inference_step(spec: ModelSpec) -> None:
    workload = spec.build("tiny")
    module = workload.module
    memory_format = torch.channels_last if spec.channels_last else None
    if memory_format is not None:
        module.to(memory_format=memory_format)
    batch = workload.make_batch(2, generator()).to(torch.device("cpu"), memory_format=memory_format)

    module.train()
    trained = with_loss(workload)
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    loss = workload.loss(module(*batch.inputs), batch)
    loss.backward()
    torch.optim.SGD(trained.parameters(), lr=1e-3).step()
    assert loss.dim() == 0
    assert torch.isfinite(loss)
    unused = [name for name, parameter in trained.named_parameters() if parameter.grad is None]
    assert unused == []
    changed = [not torch.equal(old, new) for old, new in zip(before, trained.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2
    assert all(torch.isfinite(parameter).all() for parameter in trained.parameters())

    module.eval()
    with torch.inference_mode():
        output = module(*batch.inputs)
    for part in output if isinstance(output, tuple) else (output,):
        assert isinstance(part, torch.Tensor)
        assert part.shape[0] == 2
        assert torch.isfinite(part).all()


@pytest.mark.parametrize("scale", ["tiny", "full"])
@pytest.mark.parametrize(
    "name",
    [
        "gpt2-small",
        "llama3.2-1b",
        "t5-small",
        "dit-s-2",
        "bert-base",
        "lstm",
        "lm-transformer",
        "asr-transformer",
        "resnet50",
        "inception_v3",
        "vgg11",
        "vit-base",
        "detr",
    ],
)
def test_the_first_rows_do_not_depend_on_the_batch_size(name: str, scale: str) -> None:
    spec = MODELS.registry().get(name)
    with torch.device("meta"):
        workload = spec.build(scale)  # type: ignore[arg-type]
    large = workload.make_batch(7, generator(3))
    for rows in (1, 2, 5):
        small = workload.make_batch(rows, generator(3))
        for few, many in zip(small.inputs + small.targets, large.inputs + large.targets, strict=True):
            assert torch.equal(few, many[:rows])
    other = workload.make_batch(7, generator(4))
    assert not torch.equal(other.inputs[0], large.inputs[0])
    assert not torch.equal(large.inputs[0][0], large.inputs[0][1])


def test_batches_are_made_on_the_cpu_also_where_another_device_is_the_default() -> None:
    workload = MODELS.registry().get("resnet18").build("tiny")
    source = generator()
    with torch.device("meta"):
        batch = workload.make_batch(2, source)
    assert {tensor.device.type for tensor in batch.inputs + batch.targets} == {"cpu"}


def halves_its_loss(workload: Workload, steps: int, rate: float) -> bool:
    """Whether training on one batch has halved the loss after at most this many steps."""
    module = workload.module.train()
    batch = workload.make_batch(4, generator())
    optimizer = torch.optim.Adam(with_loss(workload).parameters(), lr=rate)
    first = math.inf
    for step in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(module(*batch.inputs), batch)
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        if loss.item() < first / 2:
            return True
    return False


@pytest.mark.parametrize(
    "name",
    [
        "gpt2-small",
        "llama3.2-1b",
        "mixtral-8x300m",
        "deepseek-v2-lite",
        "t5-small",
        "bert-base",
        "lstm",
        "lm-transformer",
        "asr-transformer",
    ],
)
def test_the_model_learns_one_batch(name: str) -> None:
    assert halves_its_loss(MODELS.registry().get(name).build("tiny"), steps=60, rate=3e-3)


def test_the_same_seed_gives_the_same_weights() -> None:
    spec = MODELS.registry().get("gpt2-small")
    torch.manual_seed(5)
    first = spec.build("tiny").module.state_dict()
    torch.manual_seed(5)
    second = spec.build("tiny").module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("name", "weight", "heads"), [("googlenet", 0.3, 2), ("inception_v3", 0.4, 1)])
def test_auxiliary_classifiers_enter_the_loss(name: str, weight: float, heads: int) -> None:
    workload = MODELS.registry().get(name).build("full")
    batch = workload.make_batch(2, generator())
    with torch.no_grad():
        output = workload.module.train()(*batch.inputs)
        main, *auxiliary = [torch.nn.functional.cross_entropy(logits, batch.targets[0]) for logits in output]
        assert len(auxiliary) == heads
        torch.testing.assert_close(workload.loss(output, batch), main + weight * sum(auxiliary))
