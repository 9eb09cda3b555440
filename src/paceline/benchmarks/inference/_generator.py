"""A decoder that makes text: its weights in the asked format, a prompt, and each next token from a static cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from paceline.core.errors import MissingDependency, SilentCorruption, Unsupported
from paceline.devices import Device
from paceline.models.base import ModelSpec, Scale, low_dtype, seed_everything, set_fp32_mode

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Weights = Literal["same", "fp8", "fp8_dynamic", "int8", "int4"]

ALIGNMENT = 64  # tokens: the length of a cache is a multiple of it
SPLITS = 16
FEW = 128  # sequences times heads of keys: fewer do not fill a device with one block of threads each
COMPARED_STEPS = 3
# The norm of the difference to an uncompiled pass without a cache, as a part of the norm: 16 bits are magnified by
# depth, and logits that have nothing to do with each other differ by 1.4.
MOST_APART = {"fp32": 0.01, "tf32": 0.1}
MOST_APART_16 = 0.5


class Generator:
    """A decoder of the zoo with weights in one format."""

    def __init__(
        self, spec: ModelSpec, scale: Scale, precision: str, weights: Weights, device: Device, seed: int
    ) -> None:
        import torch

        self.device, self.precision, self.seed, self.weights = device, precision, seed, weights
        set_fp32_mode(precision)
        seed_everything(seed)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(low_dtype(precision) or torch.float32)  # no copy in fp32, which may not fit
        try:
            with torch.device(device.torch()):
                module: Any = spec.build(scale).module
        finally:
            torch.set_default_dtype(usual)
        if not hasattr(module, "make_cache"):
            raise Unsupported(f"model {spec.name} has no cache of keys and values: use a decoder such as llama3-8b")
        self.module: Any = module.eval().requires_grad_(False)
        self.shape: Any = module.shape
        self.parameter_count = sum(one.numel() for one in module.parameters())
        self.weights_apart: str | None = None
        if weights != "same":
            prompt = self.prompt(1, min(64, self.shape.context))
            exact = module(prompt, last_only=True)
            narrow_weights(module, weights, device)
            apart = _apart(module(prompt, last_only=True), exact)
            self.weights_apart = f"{apart:.2%} of the norm of the logits with weights in {precision}"

    @property
    def read_bytes(self) -> int:
        """Bytes of all weights that the next token passes; of an embedding by itself it takes one row."""
        module = self.module
        alone = [] if self.shape.tied else [module.token_embedding.weight]
        return sum(stored_bytes(one) for one in module.parameters()) - sum(stored_bytes(one) for one in alone)

    def prefill_flops(self, batch: int, context: int) -> float:
        """By the formula of the zoo, but the head is for the last token alone."""
        head = 2 * self.shape.hidden * self.shape.vocabulary
        return float(batch * (replace(self.shape, sequence=context).forward_flops - (context - 1) * head))

    def step_flops(self, batch: int, context: int) -> float:
        """Of one token of each sequence, by the same formula."""
        return float(batch * replace(self.shape, sequence=context).forward_flops / context)

    def prompt(self, batch: int, context: int) -> Tensor:
        """Random tokens."""
        import torch

        generator = torch.Generator(self.device.torch()).manual_seed(self.seed)
        shape = (batch, context)
        return torch.randint(self.shape.vocabulary, shape, generator=generator, device=self.device.torch())


class Conversation:
    """A batch of sequences of one length, their cache, and the two calls that make text: `prefill` and `step`.

    A step writes its token and position where the next one reads them, so that it can be replayed as a graph. After
    `new_tokens` it goes back to the end of the prompt: the cache never overflows, however many steps are measured.
    """

    def __init__(
        self, generator: Generator, batch: int, context: int, new_tokens: int, *, compiled: bool, split: bool
    ) -> None:
        import torch

        from paceline.models._modules.decoder import attend

        self._generator, self.context, self.new_tokens = generator, context, new_tokens
        module, device = generator.module, generator.device.torch()
        if context + new_tokens > generator.shape.context:
            raise Unsupported(
                f"context = {context} and new_tokens = {new_tokens}: the model takes at most {generator.shape.context} "
                "tokens together"
            )
        self.cache = module.make_cache(batch, -(-(context + new_tokens) // ALIGNMENT) * ALIGNMENT)
        self.prompt = generator.prompt(batch, context)
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        for block in module.blocks:
            if hasattr(block.attention, "attend"):
                block.attention.attend = split_attend if split else attend
        self._blocks, self._finish = list(module.blocks), self._pick
        if compiled:
            torch._dynamo.reset()  # each length is compiled by itself, and only so many forms of a function are kept
            # Where a batch is one row, this also makes the products plain sums, which read weights at memory's pace.
            tuned: Any = {"coordinate_descent_tuning": True} if generator.device.kind.is_accelerator else None
            # Block by block: those that are alike share one compiled form, however many layers there are.
            self._blocks = [torch.compile(block, dynamic=False, options=tuned) for block in self._blocks]
            self._finish = torch.compile(self._pick, dynamic=False, options=tuned)

    def prefill(self) -> Tensor:
        """Read the prompt and make the first token; returns the logits."""
        logits = self._pass(self.prompt, None)
        self.position.fill_(self.context)
        return logits

    def step(self) -> Tensor:
        """Make the next token; returns the logits."""
        logits = self._pass(self.token, self.position)
        self.position.copy_((self.position + 1 - self.context) % self.new_tokens + self.context)
        return logits

    def check(self) -> float:
        """Compare some steps with an uncompiled pass without a cache; how far the last logits are apart."""
        import torch

        module, text = self._generator.module, [self.prompt[:1]]
        self.prefill()
        for _ in range(min(COMPARED_STEPS, self.new_tokens)):
            text.append(self.token[:1].clone())
            logits = self.step()
        apart = _apart(logits[:1], module(torch.cat(text, 1), last_only=True)[:, -1])
        if not apart <= MOST_APART.get(self._generator.precision, MOST_APART_16):
            what = f"after {len(text) - 1} steps with a cache, the logits differ by {apart:.0%} of their norm"
            raise SilentCorruption(f"{what} from those of an uncompiled pass without one; try --compile off")
        return apart

    def _pass(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        x = self._generator.module.embed(tokens)
        for block, cache in zip(self._blocks, self.cache.layers, strict=True):
            x = block(x, cache, positions)
        return self._finish(x[:, -1:])

    def _pick(self, x: Tensor) -> Tensor:
        """The logits, and as the next token the likeliest."""
        logits: Tensor = self._generator.module.head(x)[:, -1]
        self.token.copy_(logits.argmax(-1, keepdim=True))
        return logits


def split_attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, mask: Tensor | None = None
) -> Tensor:
    """Attention of one token over a cache as two products, the second in parts that many blocks of threads share.

    torch's fused kernel with a mask reads a head's whole cache in one block, so that a small batch leaves most of a
    device idle.
    """
    from paceline.models._modules.decoder import attend

    if query.shape[2] != 1 or mask is None:
        return attend(query, key, value, causal=causal, mask=mask)
    batch, heads, length = key.shape[:3]
    rows = query.view(batch, heads, -1, query.shape[3])
    scores = (rows @ key.mT).float() / math.sqrt(query.shape[3])
    shares = scores.masked_fill(~mask, -math.inf).softmax(-1).to(value.dtype)
    parts = math.gcd(SPLITS, length)
    shares = shares.view(batch, heads, -1, parts, length // parts).transpose(2, 3)
    mixed = shares @ value.view(batch, heads, parts, length // parts, value.shape[3])
    return mixed.sum(2).view(batch, -1, 1, value.shape[3])


def narrow_weights(module: nn.Module, weights: Weights, device: Device) -> None:
    """Hold the weights of every linear layer whose sizes fit in 8 or 4 bits; `fp8_dynamic` multiplies in 8 bits too."""
    from torch import nn

    if weights != "int8" and not device.kind.is_accelerator:
        raise Unsupported(f"weights = {weights} has kernels for GPUs alone: use int8 on a CPU")
    support = device.format("fp8" if weights.startswith("fp8") else "int8")
    if support.how == "none":
        raise Unsupported(f"weights = {weights}: {support.reason}")
    try:
        from torchao.quantization import (
            Float8DynamicActivationFloat8WeightConfig,
            Float8WeightOnlyConfig,
            Int4WeightOnlyConfig,
            Int8WeightOnlyConfig,
            PerRow,
            quantize_,
        )
    except ImportError as error:
        raise MissingDependency(f"torchao (for weights = {weights})", f"pip install '.[fp8]' ({error})") from None

    def config() -> Any:
        if weights == "fp8":
            return Float8WeightOnlyConfig(set_inductor_config=False)
        if weights == "fp8_dynamic":
            return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
        if weights == "int8":
            return Int8WeightOnlyConfig(set_inductor_config=False)
        packed: Any = "tile_packed_to_4d"
        return Int4WeightOnlyConfig(group_size=128, int4_packing_format=packed, set_inductor_config=False)

    def fits(layer: nn.Module, _name: str) -> bool:
        return isinstance(layer, nn.Linear) and layer.in_features % 16 == 0 and layer.out_features % 16 == 0

    quantize_(module, config(), filter_fn=fits)


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes in memory of a tensor, or of the parts that one in a narrow format is made of."""
    flatten: Callable[[], tuple[list[str], object]] | None = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return tensor.numel() * tensor.element_size()
    return sum(stored_bytes(getattr(tensor, name)) for name in flatten()[0])


def _apart(logits: Tensor, exact: Tensor) -> float:
    import torch

    distance, norm = (torch.linalg.vector_norm(one.float()) for one in (logits - exact, exact))
    return float(distance / norm)
