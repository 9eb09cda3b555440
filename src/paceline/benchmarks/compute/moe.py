"""One layer of a mixture of experts: choosing experts for tokens, bringing them together, and their products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.metrics import (
    COMPUTE_RATE,
    PRODUCT_SHARE,
    TIME,
    product_share,
    rate_metric,
    time_metric,
)
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark, join_words
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.compute.gemm import CHECKED_ROWS, product_rate
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, SilentCorruption, Unsupported
from paceline.core.quantity import Duration
from paceline.core.record import Record, Result
from paceline.core.subject import Description, MatmulPrecision, Work
from paceline.devices import Device, open_device
from paceline.measure.memory import exhausted
from paceline.models.base import set_fp32_mode

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
    products: Literal["auto", "grouped", "loop", "padded"] = "auto"
    """grouped: one call of torch's grouped product; loop: one product after the other, for which the host must know how
    many tokens each has; padded: one batched product with as many rows for each expert as the fullest has; auto takes
    grouped where it can, otherwise loop"""
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
            parameters.products if parameters.products != "auto" else "",
        )

    @classmethod
    def check(cls, parameters: MoeParameters, case: Case) -> None:
        if parameters.top_k > parameters.experts:
            message = f"top_k = {parameters.top_k}: there are only {parameters.experts} experts"
            raise InputError("out-of-range", message, key="top_k", value=parameters.top_k)

    @classmethod
    def describe(cls, record: Record, parameters: MoeParameters, environment: Environment) -> Description:
        rate, precision = record.measurement(COMPUTE_RATE.name), record.facts.get("precision")
        if rate is None or not rate.work or not precision:
            return Description()
        work = Work(
            flops=rate.work,
            bytes=float(record.facts["bytes"]),
            rate=rate.value,
            unit=rate.unit,
            number_format=precision,
            formula=_FORMULA,
        )
        return Description(work=work)

    def measure(self, parameters: MoeParameters, context: Context) -> Result:
        device = open_device(context.target)
        layer = Layer(parameters, device)
        formats.check_device(layer.precision, device)
        layer.choose_products()
        layer.check()
        can_record = layer.how != "loop"  # which waits for the device in each call
        with MicroSession(parameters, context, device) as session:
            whole = session.time(layer.call, TIME, work=layer.flops, rate_unit="FLOP/s", graph=can_record)
            dispatch = session.time(layer.dispatch, DISPATCH_TIME, graph=True)
            products = session.time(layer.multiply, PRODUCT_TIME, graph=can_record)
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
            "engine": layer.library_call,
            **({"not_grouped_because": layer.not_grouped_because} if layer.not_grouped_because else {}),
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
    """The weights and tokens of one layer, its parts as calls, and the check of its result."""

    def __init__(self, parameters: MoeParameters, device: Device) -> None:
        import torch

        on_gpu = device.kind.is_accelerator
        self._parameters = parameters
        self.precision: MatmulPrecision = parameters.precision or ("bf16" if on_gpu else "fp32")
        tokens = parameters.tokens or (8192 if on_gpu else 256)
        hidden, width = parameters.hidden or (4096 if on_gpu else 256), parameters.width or (14336 if on_gpu else 512)
        experts, self.top_k = parameters.experts, parameters.top_k
        self.shape = {"tokens": tokens, "hidden": hidden, "width": width, "experts": experts, "top_k": self.top_k}
        self.flops = 6.0 * tokens * self.top_k * hidden * width
        copies = 2.0 * tokens * self.top_k * hidden
        self.bytes = formats.dtype_of(self.precision).itemsize * (3.0 * experts * hidden * width + copies)
        self.worst, self.how, self.library_call, self.not_grouped_because = 0.0, "", "", ""
        set_fp32_mode(self.precision)
        generator = torch.Generator(device.torch()).manual_seed(parameters.seed)

        def operand(*shape: int) -> Tensor:  # of a variance that leaves that of the tokens as it is
            return formats.random_operand(self.precision, shape, generator).div_(math.sqrt(shape[-2]))

        self.router, self.tokens = operand(hidden, experts), operand(tokens, hidden).mul_(math.sqrt(tokens))
        self.up, self.down = operand(experts, hidden, 2 * width), operand(experts, width, hidden)
        self._numbers = torch.arange(experts, device=device.torch())
        self._places = torch.arange(tokens * self.top_k, device=device.torch())
        _, self._rows, self._ends, _ = self.route()
        counts = self._ends.diff(prepend=self._ends.new_zeros(1))
        self.fullest = int(counts.max())
        self._products: Callable[[Tensor, Tensor], Tensor] = self._loop

    def route(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The order of the tokens' copies by expert, the copies in it, where each expert's end, and their weights."""
        scores = (self.tokens @ self.router).float().softmax(-1)
        weights, chosen = scores.topk(self.top_k, -1)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        ends = (flat[:, None] == self._numbers).sum(0).cumsum(0).int()
        return order, self.tokens.index_select(0, order // self.top_k), ends, weights / weights.sum(-1, keepdim=True)

    def combine(self, results: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        """Each token's results added up by their weights."""
        back = order.new_empty(order.shape).scatter_(0, order, self._places)
        mine = results.index_select(0, back).view(*weights.shape, -1)
        return (mine * weights.to(mine.dtype).unsqueeze(-1)).sum(1)

    def call(self) -> Tensor:
        """The whole layer."""
        order, rows, ends, weights = self.route()
        return self.combine(self._products(rows, ends), order, weights)

    def dispatch(self) -> Tensor:
        """The layer without its products."""
        order, rows, _, weights = self.route()
        return self.combine(rows, order, weights)

    def multiply(self) -> Tensor:
        """The products alone."""
        return self._products(self._rows, self._ends)

    def choose_products(self) -> None:
        """As the parameters say; of grouped products that cannot be had, the reason."""
        wanted = self._parameters.products
        ways: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
            "loop": (self._loop, "torch.mm, one after the other"),
            "padded": (self._padded, f"torch.bmm of {self.fullest} rows for each expert"),
        }
        if wanted in ("auto", "grouped"):
            try:
                self._products, self.how, self.library_call = self._grouped, "grouped", "torch's grouped_mm"
                self.multiply()
                return
            except Exception as error:
                if exhausted(error):
                    raise
                self.not_grouped_because = str(error).partition("\n")[0].rstrip(".")
            if wanted == "grouped":
                reason = f"products = grouped is not possible here: {self.not_grouped_because}"
                raise Unsupported(f"{reason}; use --products auto") from None
        self.how = "loop" if wanted == "auto" else wanted
        self._products, self.library_call = ways[self.how]

    def check(self) -> None:
        """Compare some tokens with a higher precision; a difference is silent corruption."""
        import torch

        result, count = self.call(), self.shape["tokens"]
        order, _, _, weights = self.route()
        sorted_experts = torch.searchsorted(self._ends, self._places.int(), right=True)
        chosen = torch.empty_like(order).scatter_(0, order, sorted_experts).view(count, self.top_k)
        if self.top_k > 1 and bool((chosen.sort(-1).values.diff(dim=-1) == 0).any()):
            raise SilentCorruption("a token went to the same expert twice")
        picked = torch.linspace(0, count - 1, min(CHECKED_ROWS, count), device=result.device).long()
        exact = []
        for token in picked.tolist():
            parts = []
            for expert, weight in zip(chosen[token].tolist(), weights[token].tolist(), strict=True):
                gate, value = (self.tokens[token].double() @ self.up[expert].double()).chunk(2)
                parts.append(weight * ((torch.nn.functional.silu(gate) * value) @ self.down[expert].double()))
            exact.append(torch.stack(parts).sum(0))
        wrong = f"of the checked tokens, the layer in {self.precision} by {self.library_call} is wrong"
        self.worst = max(self.worst, formats.chained_error(wrong, self.precision, result[picked], torch.stack(exact)))

    def _grouped(self, rows: Tensor, ends: Tensor) -> Tensor:
        import torch
        import torch.nn.functional as F

        multiply: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if multiply is None:
            raise Unsupported(f"torch {torch.__version__} has no grouped product")
        result: Tensor = multiply(_gated(multiply(rows, self.up, offs=ends)), self.down, offs=ends)
        return result

    def _loop(self, rows: Tensor, ends: Tensor) -> Tensor:
        results, begin = rows.new_empty(rows.shape), 0
        for expert, end in enumerate(ends.tolist()):
            results[begin:end] = _gated(rows[begin:end] @ self.up[expert]) @ self.down[expert]
            begin = end
        return results

    def _padded(self, rows: Tensor, ends: Tensor) -> Tensor:
        import torch

        experts = torch.searchsorted(ends, self._places.int(), right=True)
        begins = torch.nn.functional.pad(ends[:-1], (1, 0))
        slots = experts * self.fullest + self._places - begins[experts]
        padded = rows.new_zeros(self.shape["experts"] * self.fullest, rows.shape[1]).index_copy_(0, slots, rows)
        results = _gated(padded.view(self.shape["experts"], self.fullest, -1) @ self.up) @ self.down
        return results.flatten(0, 1).index_select(0, slots)


def _gated(both: Tensor) -> Tensor:
    """SwiGLU of the two halves of an expert's first product."""
    import torch.nn.functional as F

    gate, value = both.chunk(2, -1)
    return F.silu(gate) * value
