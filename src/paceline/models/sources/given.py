"""A workload made of a Python object that the user gave: a module, a module with inputs, a Hugging Face config."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.models.base import Batch, Workload
from paceline.models.sources import hugging_face
from paceline.models.sources.inputs import InputSpec, parse_inputs, random_batch, repeated_batch
from paceline.models.sources.refusal import WITH_INPUTS, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn

DEFAULT_LOSS = "the mean of the output, as none was given"


def is_module(value: object) -> bool:
    """Whether it is an `nn.Module`; where torch is not imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def workload_of(text: str, value: object, inputs: str | None) -> Workload:
    """What a factory returned, or a file held, as the benchmarks take it; anything else is refused."""
    if isinstance(value, Workload):
        if inputs is not None:
            why = f" makes its own data: leave out input = {inputs}"
            raise refusal("input-not-taken", text, why, WITH_INPUTS)
        return value
    facts: dict[str, Any] = {}
    specs = parse_inputs(inputs) if inputs is not None else ()
    if hugging_face.is_config(value):
        module, described, facts = hugging_face.build(text, value, specs)
        specs = specs or described
        value = module
    module, examples, loss = _parts(text, value)
    if not specs and not examples:
        why = " is a module without inputs: give --input SIZES, as in --input 1x3x224x224, or return inputs as well"
        raise refusal("missing-input", text, why, WITH_INPUTS)
    return workload(module, specs, examples, loss=loss, facts=facts)


def workload(
    module: nn.Module,
    specs: Sequence[InputSpec] = (),
    examples: Sequence[Tensor] = (),
    *,
    loss: Callable[[Any], Tensor] | None = None,
    **more: Any,
) -> Workload:
    """A module with random inputs, or with example tensors whose rows are repeated."""
    import torch

    return Workload(
        module=module.to(torch.get_default_device()),
        make_batch=partial(random_batch, specs) if specs else partial(repeated_batch, examples),
        loss=mean_of_output if loss is None else partial(_of_output, loss),
        batch_size=specs[0].sizes[0] if specs else len(examples[0]),
        loss_name=DEFAULT_LOSS if loss is None else getattr(loss, "__name__", type(loss).__name__),
        **more,
    )


def mean_of_output(output: Any, batch: Batch) -> Tensor:
    """The loss of a module that came without one: it depends on every fraction that the module gives."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = [one for one in tree_leaves(output) if isinstance(one, torch.Tensor) and one.is_floating_point()]
    if not leaves:
        raise TypeError("the output holds no fractions, of which the default loss is the mean; give a loss")
    return torch.stack([one.float().mean() for one in leaves]).sum()


def _of_output(loss: Callable[[Any], Tensor], output: Any, batch: Batch) -> Tensor:
    return loss(output)


def _parts(text: str, value: object) -> tuple[nn.Module, tuple[Tensor, ...], Callable[[Any], Tensor] | None]:
    """Module, example inputs and loss of what was returned."""
    module, inputs, loss, *others = (*value, None, None) if isinstance(value, tuple) else (value, None, None)
    if not is_module(module) or len(others) > 2:
        names = ", ".join(type(one).__name__ for one in (value if isinstance(value, tuple) else (value,)))
        why = (
            f" gave an object of type {names}: expected is an nn.Module, (module, inputs), (module, inputs, loss), "
            "a Hugging Face config, a paceline.models.Workload or a paceline.models.ModelSpec"
        )
        raise refusal("not-a-model", text, why)
    import torch

    examples = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs or ())
    wrong = next((one for one in examples if not isinstance(one, torch.Tensor) or one.dim() == 0), None)
    if wrong is not None or len({len(one) for one in examples}) > 1:
        why = " gave inputs that are not tensors with one first size, that of the batch"
        raise refusal("not-an-input", text, why, WITH_INPUTS)
    return module, tuple(one.detach() if one.is_meta else one.detach().to("cpu") for one in examples), loss
