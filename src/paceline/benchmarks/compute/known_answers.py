"""Known answers: what each unit of a device computes in each format, bit for bit, and what its memory gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import TorchBenchmark, time_metric
from paceline.benchmarks.compute.burn import WRONG
from paceline.benchmarks.compute.gemm import GemmParameters, Product
from paceline.core.benchmark import Context, Progress
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.metric import Better, Metric
from paceline.core.parameters import Parameters
from paceline.core.quantity import Size, show_size
from paceline.core.record import At, Measurement, Record, Result
from paceline.core.subject import Description, NumberFormat
from paceline.devices import Device, open_device
from paceline.measure.digest import bits, digest, fingerprint_of, joined_digest

if TYPE_CHECKING:
    from torch import Tensor

CHECKED = Metric(
    name="checked_elements", unit="", better=Better.NEITHER, description="elements whose bits were compared, in all"
)
TIME = time_metric("time", "time of all checks together, without making what they are compared with")
DISTINCT = 256  # rows and columns that the host computes; larger products repeat them
GPU_EDGE = 4096  # so that every processor of a large GPU has a part of each product
CPU_EDGE = 64  # many a CPU computes short formats in software
GPU_ELEMENTS, CPU_ELEMENTS = 1 << 22, 1 << 14  # of operations on single elements
GPU_MEMORY, CPU_MEMORY = 1 << 30, 16 << 20
# How large the whole numbers are that are multiplied: no sum of DISTINCT products is rounded before the result is, even
# where a unit keeps 14 bits of it, as those of fp8 do.
_LARGEST = {"fp64": 1000, "fp32": 127, "tf32": 127, "fp16": 7, "bf16": 127, "fp8": 4, "int8": 127}
_PATTERNS = {"zeros": 0, "ones": -1, "5555": 0x5555555555555555, "aaaa": -0x5555555555555556}
ULPS = 4.0  # a function may be as far from the exact value, in units of its last place


class KnownAnswersParameters(Parameters):
    """How often, and how much memory."""

    rounds: int = Field(default=10, ge=2, le=1_000_000)
    """How often every answer is computed"""
    memory: Size | None = Field(default=None, ge=1 << 20)
    """How much memory is filled with patterns and read back; unset is 1 GiB on a GPU, 16 MiB on a CPU"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of the data"""


@dataclass(frozen=True)
class Answer:
    """One computation, and what it must give."""

    unit: str
    format: str
    compute: Callable[[], Tensor]
    expected: Tensor | None  # bit for bit; None for a function that standards leave some room
    exact: Tensor | None = None  # in fp64, of such a function


class KnownAnswers(TorchBenchmark[KnownAnswersParameters]):
    """Every unit and format of a device once, in seconds; the answer says which is wrong."""

    name = "known-answers"
    summary = "results that are known beforehand, by unit and format, and memory that is read back: wrong elements"
    category = "compute"
    is_within_device = True
    metrics = (WRONG, CHECKED, TIME)

    @classmethod
    def describe(cls, record: Record, parameters: KnownAnswersParameters, environment: Environment) -> Description:
        return Description(fingerprint=fingerprint_of(record, environment))

    def measure(self, parameters: KnownAnswersParameters, context: Context) -> Result:
        device = open_device(context.target)
        rows, skipped = list[dict[str, Any]](), dict[str, str]()
        measured, digests, seconds = list[Measurement](), dict[str, int](), 0.0
        for answer in _answers(parameters, device, skipped):
            name = f"{answer.unit} in {answer.format}"
            context.report(Progress(phase=name))
            begun = device.clock()
            wrong, elements, first = _ask(answer, parameters.rounds)
            seconds += device.clock() - begun
            if answer.expected is None:
                digests[name] = int(digest(first))
            at: At = {"unit": answer.unit, "format": answer.format}
            rows.append({**at, "elements": elements, "wrong": wrong})
            measured += [Measurement.of_value(WRONG, wrong, at=at)] if wrong else []
        measured.insert(0, Measurement.of_value(WRONG, sum(row["wrong"] for row in rows)))
        measured.insert(1, Measurement.of_value(CHECKED, sum(row["elements"] for row in rows)))
        measured.insert(2, Measurement.of_value(TIME, seconds))
        facts = {
            "device": device.name,
            "answers": rows,
            "skipped": skipped,
            "fingerprint": {"digest": joined_digest(digests), "parts": {k: f"{v:x}" for k, v in digests.items()}},
        }
        result = Result(measurements=measured, facts=facts)
        if bad := [row for row in rows if row["wrong"]]:
            context.keep(result)
            named = ", ".join(
                f"{row['unit']} in {row['format']} ({row['wrong']:,} of {row['elements']:,})" for row in bad
            )
            right = f"{len(rows) - len(bad)} of {len(rows)} kinds of answers are right"
            message = f"{context.target} ({device.name}) gives wrong answers: {named}; {right}"
            raise SilentCorruption(f"{message}. Take it out of use, and run 'burn' on it to see how often it errs")
        return result


def _ask(answer: Answer, rounds: int) -> tuple[int, int, Tensor]:
    """Compute it so often: how many elements are wrong, how many were compared, and the first result."""
    import torch

    first = answer.compute().clone()
    expected = first if answer.expected is None else answer.expected
    wrong = torch.zeros((), dtype=torch.int64, device=first.device)
    if answer.exact is not None:
        wrong += _beyond(first, answer.exact)
    for _ in range(rounds):
        result = answer.compute()
        wrong += (bits(result) != bits(expected)).sum()
        bits(result).fill_(0x55)  # a computation that writes nothing must not pass
    return int(wrong), rounds * first.numel(), first


def _beyond(result: Tensor, exact: Tensor) -> Tensor:
    """How many elements are further from the exact value than a function may be."""
    import torch

    step = exact.abs() * torch.finfo(result.dtype).eps + torch.finfo(result.dtype).tiny
    return (~((result.double() - exact).abs() <= ULPS * step)).sum()


def _answers(parameters: KnownAnswersParameters, device: Device, skipped: dict[str, str]) -> Iterator[Answer]:
    """All that the device can do; what it cannot is noted with why."""
    import torch

    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for precision in get_args(NumberFormat):
        for unit in ("matrix product", "matrix product, plain units"):
            is_plain = "plain" in unit
            if is_plain and (not device.kind.is_accelerator or precision not in ("fp64", "fp16")):
                continue  # nothing else has units apart
            try:
                formats.check_device(precision, device)
                yield _product(unit, precision, parameters.seed, device, is_plain=is_plain)
            except (Unsupported, NotImplementedError) as error:
                skipped[f"{unit} in {precision}"] = str(error).splitlines()[0]
    generator = torch.Generator().manual_seed(parameters.seed)
    yield from _arithmetic(generator, device)
    yield from _functions(generator, device)
    yield from _reductions(generator, device)
    size = parameters.memory or (GPU_MEMORY if device.kind.is_accelerator else CPU_MEMORY)
    yield from _memory(size, generator, device)


def _product(unit: str, precision: NumberFormat, seed: int, device: Device, *, is_plain: bool) -> Answer:
    """Of whole numbers, rows and columns of which are multiplied by powers of two: only the result is rounded."""
    import torch

    edge = GPU_EDGE if device.kind.is_accelerator else CPU_EDGE
    distinct = min(edge, DISTINCT)
    generator = torch.Generator().manual_seed(seed)
    largest = 2 if is_plain and precision == "fp16" else _LARGEST[precision]  # plain units keep sums in fp16
    dtype = formats.dtype_of(precision)
    # No zeros, which would hide what is wrong with the other operand.
    whole = torch.randint(1, largest + 1, (2, distinct, distinct), generator=generator)
    signs = 2 * torch.randint(0, 2, whole.shape, generator=generator) - 1
    a, b = (whole * signs).double()
    if precision != "int8":
        scale = 2.0 ** (torch.arange(distinct) % 5 - 2)
        a, b = a * scale[:, None], b * scale
    exact = a @ b
    times = edge // distinct
    operands = a.repeat(times, 1).to(dtype).to(device.torch()), b.repeat(1, times).to(dtype).to(device.torch())
    of = GemmParameters(
        precision=precision, m=edge, n=edge, k=distinct, tensor_cores="off" if is_plain else "auto", seed=seed
    )
    product = Product(of, device, operands)
    result = product.call()
    expected = exact.float() if result.dtype in (torch.float16, torch.bfloat16) else exact
    expected = expected.to(result.dtype).repeat(times, times).to(device.torch())
    return Answer(unit, precision, product.call, expected)


def _arithmetic(generator: Any, device: Device) -> Iterator[Answer]:
    """Operations whose every rounding a standard prescribes."""
    import torch

    operations: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "sum": torch.add,
        "difference": torch.sub,
        "product": torch.mul,
        "quotient": torch.div,
        "square root": lambda a, _: a.abs().sqrt(),
    }
    for precision in ("fp64", "fp32", "fp16", "bf16"):
        a, b = _spread(generator, precision, _elements(device))
        for name, operation in operations.items():
            compute = partial(operation, a.to(device.torch()), b.to(device.torch()))
            if name != "square root":
                yield Answer(name, precision, compute, operation(a, b).to(device.torch()))
            elif device.kind.is_accelerator:
                yield Answer(name, precision, compute, _root(a.abs()).to(device.torch()))
            else:  # the vector library behind torch on a CPU may leave the last place wrong
                yield Answer(name, precision, compute, None, _root(a.abs().double()))
    a, b = torch.randint(-(2**31), 2**31, (2, _elements(device)), generator=generator).int()
    for name, operation in (("sum", torch.add), ("product", torch.mul), ("exclusive or", torch.bitwise_xor)):
        there = a.to(device.torch()), b.to(device.torch())
        yield Answer(name, "int32", partial(operation, *there), operation(a, b).to(device.torch()))


def _root(numbers: Tensor) -> Tensor:
    """Rounded as the standard prescribes."""
    import numpy as np
    import torch

    wide = numbers if numbers.dtype is torch.float64 else numbers.float()
    return torch.from_numpy(np.sqrt(wide.numpy())).to(numbers.dtype)


def _functions(generator: Any, device: Device) -> Iterator[Answer]:
    """Functions that may differ in their last places from library to library, but not from time to time."""
    import torch

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "exponential": torch.exp,
        "logarithm": lambda x: x.abs().log1p(),
        "reciprocal square root": lambda x: (x.abs() + 1).rsqrt(),
        "hyperbolic tangent": torch.tanh,
    }
    numbers = _spread(generator, "fp32", _elements(device))[0].clamp(-80, 80)
    there = numbers.to(device.torch())
    for name, function in functions.items():
        exact = function(numbers.double()).to(device.torch())
        yield Answer(name, "fp32", partial(function, there), None, exact)


def _reductions(generator: Any, device: Device) -> Iterator[Answer]:
    """Sums of whole numbers, which are exact in any order, and extremes."""
    import torch

    for precision in ("fp64", "fp32", "int32"):
        whole = torch.randint(-100, 101, (_elements(device) >> 10, 1024), generator=generator)
        numbers = whole.int() if precision == "int32" else whole.to(formats.dtype_of(precision))
        there = numbers.to(device.torch())
        for name, reduce in (("sum of rows", torch.sum), ("largest of rows", torch.amax)):
            yield Answer(name, precision, partial(reduce, there, 1), reduce(numbers, 1).to(device.torch()))


def _memory(size: int, generator: Any, device: Device) -> Iterator[Answer]:
    """What was written is read back: patterns, every word's own place, and bytes that go to the device and return."""
    import torch

    words, place = torch.empty(size // 8, dtype=torch.int64, device=device.torch()), show_size(size)
    for name, pattern in _PATTERNS.items():
        expected = torch.tensor([pattern], device=device.torch())
        yield Answer("memory", f"{name}, {place}", partial(words.fill_, pattern), expected.expand(words.shape))
    places = torch.arange(words.numel(), device=device.torch())
    yield Answer("memory", f"addresses, {place}", lambda: words.copy_(places), places)
    here = torch.randint(-(2**63), 2**63 - 1, (min(size, 64 << 20) // 8,), generator=generator)
    there, copied = here.to(device.torch()), show_size(8 * here.numel())
    yield Answer("copy within the device", copied, there.clone, there)
    if device.kind.is_accelerator:
        yield Answer("copy to the device and back", copied, lambda: here.to(device.torch()).cpu(), here)


def _elements(device: Device) -> int:
    return GPU_ELEMENTS if device.kind.is_accelerator else CPU_ELEMENTS


def _spread(generator: Any, precision: str, count: int) -> Sequence[Tensor]:
    """Two operands with many exponents, far from what a format cannot hold."""
    import torch

    dtype = formats.dtype_of(precision)
    exponents = torch.randint(-5, 6, (2, count), generator=generator)
    numbers = torch.randn(2, count, dtype=torch.float64, generator=generator) * 2.0**exponents
    first, second = numbers.to(dtype)
    return first, torch.where(second == 0, torch.ones_like(second), second)
