"""Attention by itself: forward, backward or the decoding of one token, through each backend that torch has."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    COMPUTE_RATE,
    PEAK_SHARE,
    PRODUCT_SHARE,
    TIME,
    MicroParameters,
    TorchBenchmark,
    counted_work,
    join_words,
    peak_share,
    product_share,
)
from paceline.benchmarks._micro.session import MicroSession, watched
from paceline.benchmarks.compute.gemm import product_rate
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.quantity import Duration
from paceline.core.record import Record, Result
from paceline.core.subject import Description, MatmulPrecision
from paceline.devices import Device, open_device
from paceline.measure.memory import exhausted, peak_flops, peak_memory_bandwidth
from paceline.models.base import set_fp32_mode

if TYPE_CHECKING:
    from torch import Tensor

Direction = Literal["forward", "backward", "decode"]
Backend = Literal["auto", "flash", "cudnn", "efficient", "math", "flex"]

BACKWARD = 2.5  # products of the backward pass for each of the forward pass: five for two
CHECKED_ROWS = 512  # of queries at a time: all scores of a long sequence in fp64 would not fit
_OPERATOR = re.compile(r"_scaled_dot_product_(flash|cudnn|efficient)_attention")
_FORMULA = "each of queries, keys and values read once, the result written once; backward also all gradients"


class AttentionParameters(MicroParameters):
    """Shape of an attention, its direction, and what computes it."""

    warm_up: Duration = 2.0
    """Time to spend on warming up, at most: a GPU takes this long to settle at its power limit"""
    direction: Direction = "forward"
    """forward, backward (alone, without the forward pass), or decode: one token for each sequence against its cache"""
    backend: Backend = "auto"
    """flash, cudnn, efficient or math of torch's scaled_dot_product_attention, flex (compiled); auto lets torch choose,
    and the record says what it chose"""
    precision: MatmulPrecision | None = None
    """fp32 (true), tf32, fp16, bf16; unset takes bf16 on a GPU and fp32 on a CPU"""
    causal: bool = True
    """A token sees itself and those before it; the one of decode sees its whole cache"""
    batch_size: int | None = Field(default=None, ge=1)
    """Sequences; unset takes 4 on a GPU, 1 on a CPU"""
    heads: int | None = Field(default=None, ge=1)
    """Heads of queries; unset takes 32 on a GPU, 8 on a CPU"""
    kv_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values, each shared by a group of the others; unset takes as many as there are heads"""
    head_size: int = Field(default=128, ge=1)
    """Numbers in each head's vector"""
    length: int | None = Field(default=None, ge=1)
    """Tokens of a sequence, or of its cache; unset takes 4096 on a GPU, 512 on a CPU"""
    page: int = Field(default=0, ge=0)
    """For decode: tokens in a block of a paged cache, whose last block is full: a length is rounded up to whole blocks;
    0 keeps each cache in one piece"""


class Attention(TorchBenchmark[AttentionParameters]):
    """One attention on random data, checked against a higher precision."""

    name = "attention"
    summary = "attention forward, backward or decoding, by backend: FLOP/s, share of a matrix product, result checked"
    category = "compute"
    metrics = (COMPUTE_RATE, PRODUCT_SHARE, PEAK_SHARE, BANDWIDTH, TIME)

    @classmethod
    def title(cls, parameters: AttentionParameters) -> str:
        given = {"b": parameters.batch_size, "h": parameters.heads, "kv": parameters.kv_heads, "l": parameters.length}
        length, rounded = parameters.length, ""
        if length is not None and parameters.page and (keys := _whole_pages(length, parameters.page)) != length:
            rounded = f", {keys} keys"
        return join_words(
            parameters.precision,
            parameters.backend,
            parameters.direction,
            "" if parameters.causal or parameters.direction == "decode" else "not causal",
            *(f"{name}{value}" for name, value in given.items() if value is not None),
            f"d{parameters.head_size}",
            f"pages of {parameters.page}{rounded}" if parameters.page else "",
        )

    @classmethod
    def check(cls, parameters: AttentionParameters, case: Case) -> None:
        heads, shared = parameters.heads or 0, parameters.kv_heads
        if shared is not None and (not heads or heads % shared):
            message = f"kv_heads = {shared}: heads is {heads or 'unset'}, and has to be a multiple of it"
            raise InputError("not-a-multiple", message, key="kv_heads", value=shared)
        if parameters.page and parameters.direction != "decode":
            message = f"page = {parameters.page}: {parameters.direction} reads no paged cache; use --direction decode"
            raise InputError("conflicting-keys", message, key="page", value=parameters.page)

    @classmethod
    def describe(cls, record: Record, parameters: AttentionParameters, environment: Environment) -> Description:
        leading = BANDWIDTH if parameters.direction == "decode" else COMPUTE_RATE
        return Description(work=counted_work(record), primary=leading.name)

    def measure(self, parameters: AttentionParameters, context: Context) -> Result:
        device = open_device(context.target)
        problem = Problem(parameters, device)
        formats.check_device(problem.precision, device)
        decode = parameters.direction == "decode"
        with problem.chosen(), MicroSession(parameters, context, device) as session:
            problem.check()
            can_record = parameters.direction != "backward"  # a recorded backward pass would run on another stream
            point = session.time(problem.call, TIME, work=problem.flops, rate_unit="FLOP/s", graph=can_record)
            problem.check()
            product = None if decode else product_rate(session, problem.precision, parameters.seed)
        if decode:
            shares, peak_facts = peak_share(peak_memory_bandwidth(device.name), problem.bytes, point.time)
        else:
            shares, peak_facts = peak_share(peak_flops(device.name, problem.precision), problem.flops, point.time)
            shares = [product_share(product, problem.flops, point.time), *shares] if product else shares
        rates = [point.rate(COMPUTE_RATE, problem.flops), *shares, point.rate(BANDWIDTH, problem.bytes)]
        facts = {
            "precision": problem.precision,
            "backend": problem.backend,
            "library_call": problem.how,
            "shape": problem.shape,
            **({"length": problem.rounded} if problem.rounded else {}),
            "operations": problem.formula,
            "bytes": problem.bytes,
            "counted": _FORMULA,
            **peak_facts,
            **({"product": product.rate, "product_source": product.source} if product else {}),
            "checked": f"two groups of heads before and after, against fp64; largest error {problem.worst:.3g} of what "
            "the format allows",
            "pace": session.pace(point).model_dump(mode="json"),
        }
        result = session.result([*rates, point.time], facts)
        result.warnings += emulated(problem.precision, device)
        return result


def _whole_pages(length: int, page: int) -> int:
    """Tokens of all blocks that so many tokens need."""
    return -(-length // page) * page


class Problem:
    """The operands of one attention, the call that computes it, what it counts, and the check of its result."""

    def __init__(self, parameters: AttentionParameters, device: Device) -> None:
        import torch

        on_gpu, self._parameters = device.kind.is_accelerator, parameters
        self.precision: MatmulPrecision = parameters.precision or ("bf16" if on_gpu else "fp32")
        batch, heads = parameters.batch_size or (4 if on_gpu else 1), parameters.heads or (32 if on_gpu else 8)
        shared, length = parameters.kv_heads or heads, parameters.length or (4096 if on_gpu else 512)
        asked = length
        if parameters.page:
            length = _whole_pages(length, parameters.page)
        self.rounded = f"{asked} tokens, rounded up to whole blocks: {length} are measured" if length != asked else ""
        decode, size = parameters.direction == "decode", parameters.head_size
        queries = 1 if decode else length
        self._causal = parameters.causal and not decode
        self.shape = {"batch": batch, "heads": heads, "kv_heads": shared, "queries": queries, "keys": length}
        self.shape["head_size"] = size
        pairs = length * (length + 1) / 2 if self._causal else float(queries) * length
        backward = parameters.direction == "backward"
        self.flops = 4.0 * batch * heads * size * pairs * (BACKWARD if backward else 1.0)
        seen = "n (n + 1) / 2" if self._causal else "queries x keys"
        self.formula = f"{10 if backward else 4} batch heads head_size {seen} = {self.flops:g}"
        width = formats.dtype_of(self.precision).itemsize
        operands = 2.0 * batch * size * (heads * queries + shared * length)  # queries, result; keys, values
        self.bytes = width * operands * (2.0 if backward else 1.0)
        self.backend, self.how, self.worst = "", "", 0.0
        set_fp32_mode(self.precision)
        generator = torch.Generator(device.torch()).manual_seed(parameters.seed)

        def operand(count: int, tokens: int) -> Tensor:  # laid out as the product before it leaves them
            return formats.random_operand(self.precision, (batch, tokens, count, size), generator).transpose(1, 2)

        self.query, self.key, self.value = operand(heads, queries), operand(shared, length), operand(shared, length)
        self._gradient = operand(heads, queries) if backward else None
        if backward:
            for one in (self.query, self.key, self.value):
                one.requires_grad_()
        self._generator = generator
        self._ready: Callable[[], object] | None = None

    def chosen(self) -> AbstractContextManager[object]:
        """Within, torch computes attention by the backend that was asked for alone."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = self._parameters.backend
        if backend in ("auto", "flex"):
            return nullcontext()
        name = "MATH" if backend == "math" else f"{backend.upper()}_ATTENTION"
        return sdpa_kernel(getattr(SDPBackend, name))

    def call(self) -> object:
        """Compute it once: the result, or of backward the three gradients."""
        if self._ready is None:
            self._ready = self._prepare()
        return self._ready()

    def check(self) -> None:
        """Compare the first and the last group of heads with fp64; a difference is silent corruption."""
        results: Any = self.call()
        results = results if isinstance(results, tuple) else (results,)
        names = ("the result",) if self._gradient is None else ("dQ", "dK", "dV")
        for sequence, head in {(0, 0), (self.shape["batch"] - 1, self.shape["kv_heads"] - 1)}:
            for name, result, exact in zip(names, results, self._exact(sequence, head), strict=True):
                mine = _group(result, sequence, head, self.shape["kv_heads"])
                wrong = f"{name} of attention by {self.backend} in {self.precision} is wrong"
                wrong += f" in sequence {sequence}, group {head} of heads"
                self.worst = max(self.worst, formats.chained_error(wrong, self.precision, mine, exact))

    def _prepare(self) -> Callable[[], object]:
        forward = self._flex() if self._parameters.backend == "flex" else self._sdpa()
        if self._gradient is None:
            return forward
        import torch

        operands, gradient = (self.query, self.key, self.value), self._gradient
        result = forward()
        return lambda: torch.autograd.grad(result, operands, gradient, retain_graph=True)

    def _sdpa(self) -> Callable[[], Tensor]:
        import torch.nn.functional as F

        gather, key, value = self._paged()

        def attend() -> Tensor:
            return F.scaled_dot_product_attention(
                self.query, gather(key), gather(value), is_causal=self._causal, enable_gqa=self._is_grouped
            )

        self.how = "torch's scaled_dot_product_attention" + (
            ", after copying the blocks of each cache by its table into one piece" if self._parameters.page else ""
        )
        operators: list[str] = []
        self._attempt(lambda: watched(attend, operators))
        self.backend = next((match.group(1) for name in operators if (match := _OPERATOR.search(name))), "math")
        return attend

    def _flex(self) -> Callable[[], Tensor]:
        import torch
        from torch._functorch import config
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.backend, self.how = "flex", "torch's flex_attention, compiled"
        # A buffer that the compiler gives away in a backward pass would be missing in the next one.
        config.donated_buffer = False
        compiled = torch.compile(flex_attention, dynamic=False)
        if self._parameters.page:
            key, value, mask = self.paged_operands()
            self.how += ", which reads the blocks of each cache where they lie"
        else:
            key, value, mask = self.key, self.value, None
            if self._causal:
                tokens = self.shape["keys"]
                mask = create_block_mask(
                    lambda _b, _h, i, j: i >= j, None, None, tokens, tokens, device=str(self.query.device)
                )

        def attend() -> Tensor:
            return compiled(self.query, key, value, block_mask=mask, enable_gqa=self._is_grouped)

        self._attempt(attend)
        return attend

    def _attempt(self, attend: Callable[[], object]) -> None:
        """The first call; a backend that cannot do it is unsupported, with torch's reasons."""
        with warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                attend()
            except Exception as error:
                if exhausted(error):
                    raise
                said = [str(one.message).partition(" (Triggered")[0] for one in reasons]
                said = [one for one in said if not one.endswith(("because:", "runtime disabled."))]
                words = " ".join(dict.fromkeys([*said, str(error).partition("\n")[0]])).rstrip(".")
                message = f"backend = {self._parameters.backend} cannot compute this attention here: {words}"
                raise Unsupported(f"{message}; use --backend auto") from None

    @property
    def _is_grouped(self) -> bool:
        return self.shape["kv_heads"] != self.shape["heads"]

    def _blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The cache in blocks that lie in random order, and each sequence's table of its own."""
        import torch

        page, batch, tokens = self._parameters.page, self.shape["batch"], self.shape["keys"]
        count = batch * tokens // page
        order = torch.randperm(count, generator=self._generator, device=self._generator.device)

        def pool(cache: Tensor) -> Tensor:  # [blocks, page, heads, head size]
            blocks = cache.transpose(1, 2).reshape(count, page, *cache.transpose(1, 2).shape[2:])
            return torch.empty_like(blocks).index_copy_(0, order, blocks)

        return pool(self.key), pool(self.value), order.view(batch, -1)

    def _paged(self) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
        """How a cache is put together before each call, and what of."""
        if not self._parameters.page:
            return lambda cache: cache, self.key, self.value
        key, value, table = self._blocks()
        batch, tokens, flat = self.shape["batch"], self.shape["keys"], table.flatten()

        def gather(pool: Tensor) -> Tensor:
            return pool.index_select(0, flat).view(batch, tokens, *pool.shape[2:]).transpose(1, 2)

        return gather, key, value

    def paged_operands(self) -> tuple[Tensor, Tensor, Any]:
        """The whole pool as one sequence, and a mask by which each query sees the blocks of its own table."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask

        key, value, table = self._blocks()
        batch, own = table.shape
        whole = [pool.flatten(0, 1).unsqueeze(0).transpose(1, 2) for pool in (key, value)]
        indices = torch.zeros(batch, 1, 1, batch * own, dtype=torch.int32, device=table.device)
        indices[:, 0, 0, :own] = table
        counts = torch.full((batch, 1, 1), own, dtype=torch.int32, device=table.device)
        mask = BlockMask.from_kv_blocks(
            torch.zeros_like(counts),
            torch.zeros_like(indices),
            counts,
            indices,
            BLOCK_SIZE=(128, self._parameters.page),
            seq_lengths=(1, whole[0].shape[2]),
        )
        return whole[0], whole[1], mask

    def _exact(self, sequence: int, head: int) -> Sequence[Tensor]:
        """What one group of heads should give, in fp64: the result, or the gradients."""
        import torch

        shared = self.shape["kv_heads"]
        query, key, value = (
            _group(one, sequence, head, shared).detach().double() for one in (self.query, self.key, self.value)
        )
        gradient = None if self._gradient is None else _group(self._gradient, sequence, head, shared).double()
        rows, keys = [], torch.arange(key.shape[-2], device=key.device)
        sums = [torch.zeros_like(key), torch.zeros_like(value)]
        for begin in range(0, query.shape[-2], CHECKED_ROWS):
            part = query[:, begin : begin + CHECKED_ROWS]
            operands = [one.detach().requires_grad_(gradient is not None) for one in (part, key, value)]
            scores = operands[0] @ operands[1].mT / math.sqrt(self.shape["head_size"])
            if self._causal:
                positions = begin + torch.arange(part.shape[-2], device=key.device)
                scores = scores.masked_fill(keys > positions[:, None], -math.inf)
            result = scores.softmax(-1) @ operands[2]
            if gradient is None:
                rows.append(result)
                continue
            mine = gradient[:, begin : begin + CHECKED_ROWS]
            of_query, *others = torch.autograd.grad(result, operands, mine)
            rows.append(of_query)
            sums = [total + one for total, one in zip(sums, others, strict=True)]
        whole = torch.cat(rows, 1)
        return (whole,) if gradient is None else (whole, *sums)


def _group(tensor: Tensor, sequence: int, head: int, shared: int) -> Tensor:
    """The heads of one group of one sequence: several of queries, one of keys and values."""
    each = tensor.shape[1] // shared
    return tensor[sequence, head * each : (head + 1) * each]
