"""A workload made of a Python object that the user gave: a module, a module with inputs, a Hugging Face config.

Inputs are written after --input, or taken from example tensors. Models of Hugging Face's transformers are built from a
config alone, with random weights: nothing is downloaded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, MissingDependency
from paceline.models.base import Batch, Workload
from paceline.models.sources.importing import mended
from paceline.models.sources.refusal import CONFIG, WITH_INPUTS, refusal

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BELOW = 100  # whole numbers are drawn from 0 up to here where nothing else is written
TYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
_FORM = re.compile(rf"([1-9]\d{{0,8}}(?:x[1-9]\d{{0,8}})*)(?::({'|'.join(TYPES)})(?::([1-9]\d{{0,9}}))?)?")
_SYNTAX = "write the sizes as 1x3x224x224, whole numbers as 1x128:int64:30522 (below 30522), several joined by +"


@dataclass(frozen=True)
class InputSpec:
    """One input of random numbers; the first size is that of the batch."""

    sizes: tuple[int, ...]
    type: str = "float32"
    below: int = BELOW

    def row(self, generator: torch.Generator) -> Tensor:
        """One sample."""
        import torch

        sizes, dtype = self.sizes[1:], getattr(torch, self.type)
        if dtype.is_floating_point:
            return torch.randn(sizes, generator=generator, device=generator.device).to(dtype)
        below = 2 if dtype is torch.bool else min(self.below, 127 if dtype.itemsize == 1 else self.below)
        return torch.randint(below, sizes, generator=generator, device=generator.device).to(dtype)

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes)) + (f":{self.type}" if self.type != "float32" else "")


def parse_inputs(text: str) -> tuple[InputSpec, ...]:
    """What was written after --input."""
    specs = []
    for part in text.split("+"):
        matched = _FORM.fullmatch(part.strip())
        if matched is None:
            raise InputError("not-an-input", f"input = '{text}': {_SYNTAX}", key="input", value=text)
        sizes, type_name, below = matched.groups()
        specs.append(
            InputSpec(tuple(map(int, sizes.split("x"))), type_name or "float32", int(below) if below else BELOW)
        )
    if len({spec.sizes[0] for spec in specs}) > 1:
        message = f"input = '{text}': the first size is that of the batch, and must be the same in all of them"
        raise InputError("not-an-input", message, key="input", value=text)
    return tuple(specs)


def random_batch(specs: Sequence[InputSpec], samples: int, generator: torch.Generator) -> Batch:
    """Random numbers, sample by sample: the first ones must not depend on how many follow."""
    import torch

    rows = [[spec.row(generator) for spec in specs] for _ in range(samples)]
    return Batch(tuple(torch.stack(column) for column in zip(*rows, strict=True)), ())


def repeated_batch(examples: Sequence[Tensor], samples: int, generator: torch.Generator) -> Batch:
    """The rows of example tensors over and over: whatever a model demands of its inputs, these have it."""
    import torch

    index = torch.arange(samples, device=examples[0].device) % len(examples[0])
    return Batch(tuple(example[index] for example in examples), ())


CONFIG_FILE = "config.json"
FORMS = "a model is a .onnx file, a .pt2 file, script.py:factory, module:factory or a folder with a config.json"
TOKENS = 128  # of a sample, where the config allows as many


def is_config(value: object) -> bool:
    """Whether it is a config of transformers; where that is not imported, nothing is."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(value, transformers.PretrainedConfig)


def read_config(text: str) -> Any:
    """The config in a folder, or in the file itself; code that comes with it is never run."""
    path = Path(text).expanduser()
    if path.is_dir() and not (path / CONFIG_FILE).is_file():
        raise refusal("missing-file", text, f": there is no {CONFIG_FILE} in this folder", CONFIG)
    path = path / CONFIG_FILE if path.is_dir() else path
    if not path.is_file():
        raise refusal("missing-file", text, f" does not exist; paths begin at {Path.cwd()}; {FORMS}")
    if path.name != CONFIG_FILE:
        raise refusal("unknown-form", text, f" is in no form that is known; {FORMS}")
    try:
        auto = mended(lambda: __import__("transformers").AutoConfig)
    except ImportError as error:
        raise MissingDependency("transformers", f"pip install transformers ({error})") from None
    try:
        return auto.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise refusal(
            "not-a-config", text, f": transformers does not read its {CONFIG_FILE}: {lines[0]}", CONFIG
        ) from error


def build_from_config(
    text: str, config: Any, specs: Sequence[InputSpec]
) -> tuple[nn.Module, tuple[InputSpec, ...], dict[str, Any]]:
    """The module of a config, the inputs that it takes, and facts for the record."""
    import transformers
    from torch import nn

    if hasattr(config, "use_cache"):
        config.use_cache = False  # a whole sequence is computed at once, as in training
    names = config.architectures or []
    try:
        kind = mended(lambda: getattr(transformers, names[0]) if names else transformers.AutoModel)
        make = kind.from_config if not names else kind._from_config
        model = mended(lambda: make(config))
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        what = names[0] if names else "AutoModel"
        raise refusal("not-a-config", text, f": {what} is not built from it: {lines[0]}", CONFIG) from error
    main = str(model.main_input_name)

    class Named(nn.Module):
        """Calls the model by the names of its inputs, and gives a plain tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            named = {main: inputs[0]}
            if getattr(config, "is_encoder_decoder", False):
                named["decoder_input_ids"] = inputs[-1]
            return self.model(**named, return_dict=False)

    facts = {"built_from": f"a config of transformers {transformers.__version__}: {type(model).__name__}"}
    return Named(), tuple(specs) or _inputs_of(text, config, main), facts


def _inputs_of(text: str, config: Any, main: str) -> tuple[InputSpec, ...]:
    """One sample as the config describes it."""
    if main == "input_ids" and getattr(config, "vocab_size", None):
        length = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
        return (InputSpec((1, length), "int64", config.vocab_size),)
    if main == "pixel_values" and getattr(config, "image_size", None):
        size = config.image_size
        edges = tuple(size) if isinstance(size, list | tuple) else (size, size)
        return (InputSpec((1, getattr(config, "num_channels", 3), *edges)),)
    why = f": its config does not say what '{main}' looks like; give --input SIZES"
    raise refusal("missing-input", text, why, CONFIG)


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
    if is_config(value):
        module, described, facts = build_from_config(text, value, specs)
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
