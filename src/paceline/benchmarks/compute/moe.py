"""One layer of a mixture of experts: choosing experts for tokens, bringing them together, and their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    COMPUTE_RATE,
    PRODUCT_SHARE,
    TIME,
    MicroParameters,
    TorchBenchmark,
    counted_work,
    join_words,
    product_share,
    rate_metric,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession, watched
from paceline.benchmarks.compute.gemm import CHECKED_ROWS, product_rate
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.core.record import Record, Result
from paceline.core.subject import Description, MatmulPrecision
from paceline.devices import Device, open_device
from paceline.models.base import seed_everything, set_fp32_mode
from paceline.models.mixtral import TINY

if TYPE_CHECKING:
    from torch import Tensor

DISPATCH_TIME = time_metric("dispatch_time", "routing, bringing tokens to their experts, and adding up what comes back")
PRODUCT_TIME = time_metric("product_time", "the experts' products alone, of tokens that are in order")
PRODUCT_RATE = rate_metric("product_rate", "operations of the experts' products over their time alone", unit="FLOP/s")
_FORMULA = "the weights of all experts and each token's copies read once, what they give written once"


class MoeParameters(MicroParameters):
    """How many tokens, of which size, go to how many experts."""

    warm_up: Duration = 2.0
    """Time to spend on warming up, at most: a GPU takes this long to settle at its power limit"""
    precision: MatmulPrecision | None = None
    """fp32 (true), tf32, fp16, bf16; unset takes bf16 on a GPU and fp32 on a CPU"""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens at once; unset takes 8192 on a GPU, 256 on a CPU"""
    hidden: int | None = Field(default=None, ge=1)
    """Numbers of a token; unset takes 4096 on a GPU, 256 on a CPU"""
    width: int | None = Field(default=None, ge=1)
    """Numbers between the two layers of an expert; unset takes 14336 on a GPU, 512 on a CPU"""
    experts: int = Field(default=8, ge=1)
    """How many there are"""
    top_k: int = Field(default=2, ge=1)
    """How many of them each token goes to"""


class Moe(TorchBenchmark[MoeParameters]):
    """A feed-forward layer of experts (SwiGLU) on random tokens, checked against a higher precision."""

    name = "moe"
    summary = "one layer of a mixture of experts: dispatch and grouped products, apart and together, result checked"
    category = "compute"
    metrics = (COMPUTE_RATE, TIME, DISPATCH_TIME, PRODUCT_TIME, PRODUCT_RATE, PRODUCT_SHARE)

    @classmethod
    def title(cls, parameters: MoeParameters) -> str:
        given = {"tokens": parameters.tokens, "hidden": parameters.hidden, "width": parameters.width}
        return join_words(
            parameters.precision,
            f"{parameters.experts} experts top {parameters.top_k}",
            *(f"{name} {value}" for name, value in given.items() if value is not None),
        )

    @classmethod
    def check(cls, parameters: MoeParameters, case: Case) -> None:
        if parameters.top_k > parameters.experts:
            message = f"top_k = {parameters.top_k}: there are only {parameters.experts} experts"
            raise InputError("out-of-range", message, key="top_k", value=parameters.top_k)

    @classmethod
    def describe(cls, record: Record, parameters: MoeParameters, environment: Environment) -> Description:
        return Description(work=counted_work(record))

    def measure(self, parameters: MoeParameters, context: Context) -> Result:
        import torch

        device = open_device(context.target)
        with torch.no_grad():
            layer = Layer(parameters, device)
            formats.check_device(layer.precision, device)
            layer.check()
            with MicroSession(parameters, context, device) as session:
                whole = session.time(layer.call, TIME, work=layer.flops, rate_unit="FLOP/s", graph=layer.is_grouped)
                dispatch = session.time(layer.dispatch, DISPATCH_TIME, graph=True)
                products = session.time(layer.multiply, PRODUCT_TIME, graph=layer.is_grouped)
                product = product_rate(session, layer.precision, parameters.seed)
            layer.check()
        measurements = [
            whole.rate(COMPUTE_RATE, layer.flops),
            *(point.time for point in (whole, dispatch, products)),
            products.rate(PRODUCT_RATE, layer.flops),
            product_share(product, layer.flops, products.time),
        ]
        facts = {
            "precision": layer.precision,
            "engine": "torch's grouped product" if layer.is_grouped else "one product after the other",
            "shape": layer.shape,
            "operations": f"6 tokens top_k hidden width = {layer.flops:g}",
            "bytes": layer.bytes,
            "counted": _FORMULA,
            "fullest_expert": f"{layer.fullest} of {layer.shape['tokens'] * parameters.top_k} copies of tokens",
            "product": product.rate,
            "product_source": product.source,
            "checked": f"{CHECKED_ROWS} tokens before and after, against fp64; largest error {layer.worst:.3g} of what "
            "the format allows",
        }
        result = session.result(measurements, facts)
        result.warnings += emulated(layer.precision, device)
        return result


class Layer:
    """A layer of the zoo with its tokens, its parts as calls, and the check of its result."""

    def __init__(self, parameters: MoeParameters, device: Device) -> None:
        import torch

        from paceline.models._modules.experts import MixtureOfExperts

        on_gpu = device.kind.is_accelerator
        self.precision: MatmulPrecision = parameters.precision or ("bf16" if on_gpu else "fp32")
        tokens, self.top_k = parameters.tokens or (8192 if on_gpu else 256), parameters.top_k
        hidden, width = parameters.hidden or (4096 if on_gpu else 256), parameters.width or (14336 if on_gpu else 512)
        experts = parameters.experts
        self.shape = {"tokens": tokens, "hidden": hidden, "width": width, "experts": experts, "top_k": self.top_k}
        self.flops = 6.0 * tokens * self.top_k * hidden * width
        dtype = formats.dtype_of(self.precision)
        self.bytes = dtype.itemsize * (3.0 * experts * hidden * width + 2.0 * tokens * self.top_k * hidden)
        self.worst, self._without_products = 0.0, False
        set_fp32_mode(self.precision)
        seed_everything(parameters.seed)
        sizes = replace(TINY, hidden=hidden, feed_forward=width, experts=experts, experts_used=self.top_k)
        with torch.device(device.torch()):
            self.module: Any = MixtureOfExperts(sizes).to(dtype).requires_grad_(False)
        self.module.exchange = self._exchange
        generator = torch.Generator(device.torch()).manual_seed(parameters.seed)
        self.tokens = formats.random_operand(self.precision, (1, tokens, hidden), generator)
        operators: list[str] = []
        watched(self.call, operators)
        self.is_grouped = any("grouped_mm" in name for name in operators)
        self.fullest = int(self._counts.max())

    def call(self) -> Tensor:
        """The whole layer."""
        return self.module(self.tokens)  # type: ignore[no-any-return]

    def dispatch(self) -> Tensor:
        """The layer without its products: the tokens come back as they were."""
        self._without_products = True
        try:
            return self.call()
        finally:
            self._without_products = False

    def multiply(self) -> Tensor:
        """The products alone."""
        return self.module.experts(self._rows, self._counts)  # type: ignore[no-any-return]

    def check(self) -> None:
        """Compare some tokens with a higher precision; a difference is silent corruption."""
        import torch

        from paceline.models._modules.decoder import gated

        experts, result = self.module.experts, self.call()[0]
        weights, chosen = self.module.router(self.tokens[0]).float().softmax(-1).topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        picked = torch.linspace(0, len(result) - 1, min(CHECKED_ROWS, len(result)), device=result.device).long()
        exact = torch.zeros_like(result[picked], dtype=torch.float64)
        for row, token in enumerate(picked.tolist()):
            for expert, weight in zip(chosen[token].tolist(), weights[token].tolist(), strict=True):
                inside = gated(experts.expand_weights[expert].double() @ self.tokens[0, token].double(), experts.block)
                exact[row] += weight * (experts.contract_weights[expert].double() @ inside)
        wrong = f"of the checked tokens, the layer in {self.precision} is wrong"
        self.worst = max(self.worst, formats.chained_error(wrong, self.precision, result[picked], exact))

    def _exchange(self, experts: Callable[[Tensor, Tensor], Tensor], rows: Tensor, counts: Tensor) -> Tensor:
        if self._without_products:
            return rows
        self._rows, self._counts = rows, counts
        return experts(rows, counts)
