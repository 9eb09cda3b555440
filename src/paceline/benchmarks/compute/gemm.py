"""General matrix products: how many operations per second in each number format."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    CLOCK,
    COMPUTE_RATE,
    PEAK_SHARE,
    POWER,
    TIME,
    MicroParameters,
    TorchBenchmark,
    join_words,
    peak_share,
)
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.parameters import OnOff
from paceline.core.quantity import Duration
from paceline.core.record import Record, Result
from paceline.core.subject import BYTES, Alias, Description, NumberFormat, Precision, ProductFormat, ShownCeiling, Work
from paceline.devices import Device, open_device
from paceline.measure.memory import Peak, exhausted, peak_flops
from paceline.models.base import set_fp32_mode

if TYPE_CHECKING:
    from torch import Tensor

Route = Literal["auto", "cublas", "cublaslt", "autotuned", "triton", "cutlass"]
Call = Callable[[], "Tensor"]
MOST_NAMES = 4


def check_route(route: Route, device: Device, precision: str) -> None:
    """Raise Unsupported, with the remedy, for a route that a device or a format does not have."""
    if route == "auto":
        return
    if not device.kind.is_accelerator:
        raise Unsupported(f"route = {route} needs a GPU: on a CPU use --route auto, which is torch's own choice")
    if precision == "int4":
        raise Unsupported("torch computes with int4 weights by a kernel of its own: use --route auto")
    if precision in ("fp8", "int8", "fp4") and route == "cublas":
        raise Unsupported(f"torch computes {precision} by cuBLASLt alone: use --route cublaslt")
    if precision == "fp4" and route == "autotuned":
        raise Unsupported("the algorithms of cuBLASLt are not tried for fp4: use --route cublaslt")
    if route == "cutlass":
        _check_cutlass()


def by_route(route: Route, device: Device, product: Call) -> Call:
    """The product by one of the libraries that torch may choose from, or compiled."""
    if route in ("triton", "cutlass"):
        return _compiled(route, device, product)
    if route != "auto":
        device.prefer_library(route)
    return product


def _compiled(route: Route, device: Device, product: Call) -> Call:
    """Compiled by Inductor, which tries the templates of this kind alone and keeps the fastest."""
    import torch

    options: dict[str, str | int | bool | Callable[..., object]] = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": route.upper(),
    }
    compiled: Call = torch.compile(product, dynamic=False, options=options)
    try:
        compiled()
    except Exception as error:
        if exhausted(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(f"Inductor compiles no {route} kernel for this product: {reason}; use --route auto") from None
    names = kernels_of(compiled, device)
    # cuBLAS has kernels by CUTLASS of its own: where they are those of the plain product, nothing was compiled.
    is_plain = route == "cutlass" and names == kernels_of(product, device)
    if names and (is_plain or not any(route in name.lower() for name in names)):
        ran = ", ".join(names)
        raise Unsupported(f"Inductor has no {route} kernel for this product and ran {ran}; use --route auto")
    return compiled


def _check_cutlass() -> None:
    from torch._inductor import config

    folder = Path(config.cuda.cutlass_dir)
    if not (folder / "include" / "cutlass").is_dir():
        remedy = "set TORCHINDUCTOR_CUTLASS_DIR to a checkout of NVIDIA's CUTLASS"
        raise Unsupported(f"route = cutlass needs its sources, but {folder} does not have them: {remedy}")
    if shutil.which("nvcc") is None and not os.environ.get("CUDACXX"):
        raise Unsupported("route = cutlass needs nvcc: install the CUDA toolkit, or name it in CUDACXX")


def kernels_of(call: Callable[[], object], device: Device) -> list[str]:
    """The names of the kernels that one call runs on the device; none where no profiler sees them."""
    from torch.profiler import profile

    if not device.kind.is_accelerator:
        return []
    try:
        with profile(activities=device.profiler_activities()) as seen:
            call()
            device.synchronize()
    except RuntimeError:  # a profiler that another one keeps from the device
        return []
    names = [event.name for event in seen.events() if event.device_type.name == "CUDA"]
    kernels = [name for name in names if not name.startswith(("Memset", "Memcpy"))]
    return list(dict.fromkeys(kernels))[:MOST_NAMES]


RESULT = {**BYTES, "fp8": 2, "int8": 4, "fp4": 2, "int4": 2}  # bytes of a result's number
LEFT = {**BYTES, "fp4": 0.5, "int4": 2}  # of a number of A
RIGHT = {**BYTES, "fp4": 0.5, "int4": 0.5}  # of a number of B
INT4_GROUP, FP4_GROUP = 128, 16  # weights, numbers that share a factor
TILE, DEPTH, THREADS = 128, 8, 256  # as in the CUDA source
GPU_SIZE = 8192
CPU_SIZE = 1024
SLOW_SIZE = 256  # for formats that take a processor longer than this for a product of this size
SLOW_SECONDS = 2e-3
CHECKED_ROWS = 16


def product_work(record: Record, precision: Precision, units: str) -> Work | None:
    """What one product does, as its record says; None where it has no rate or no shape."""
    rate, shape = record.measurement(COMPUTE_RATE.name), record.facts.get("shape")
    if rate is None or not rate.value > 0 or not isinstance(shape, dict):
        return None
    m, n, k, batch = (int(shape.get(name, 1)) for name in ("m", "n", "k", "batch"))
    return Work(
        flops=2.0 * m * n * k * batch,
        bytes=float(batch * (m * k * LEFT[precision] + k * n * RIGHT[precision] + m * n * RESULT[precision])),
        rate=rate.value,
        unit=rate.metric.unit,
        number_format=units,
        formula="each operand read once and the result written once",
    )


_WORDS = {
    # halves in a word, its type, the type of an element of A, how an element of A fills a word, multiply and add
    "fp64": (1, "double", "double", "(x)", "acc = fma(a, b, acc)"),
    "fp16": (
        2,
        "unsigned int",
        "unsigned short",
        "((unsigned int)(x) * 0x10001u)",
        'asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b))',
    ),
}


class GemmParameters(MicroParameters):
    """Shapes and format of a product C = A B."""

    budget: Duration = Field(default=2.0, gt=0)
    """Time to spend on measuring, at most"""
    warm_up: Duration = 2.0
    """Time to spend on warming up, at most: a GPU takes this long to settle at its power limit"""
    precision: ProductFormat = "fp32"
    """fp64, fp32 (true), tf32, fp16, bf16, fp8 (e4m3), int8, fp4 (e2m1), int4 (weights alone, with bf16)"""
    size: int | None = Field(default=None, ge=1)
    """Edge of square matrices; unset takes what fills the device (8192 on a GPU, 1024 or less on a CPU)"""
    m: int | None = Field(default=None, ge=1)
    """Rows of A and C; with n and k instead of size"""
    n: int | None = Field(default=None, ge=1)
    """Columns of B and C"""
    k: int | None = Field(default=None, ge=1)
    """Columns of A and rows of B"""
    batch: int = Field(default=1, ge=1)
    """How many products at once"""
    transpose_a: bool = False
    """A lies transposed in memory"""
    transpose_b: bool = False
    """B lies transposed in memory"""
    tensor_cores: Annotated[Literal["auto", "off"], OnOff] = "auto"
    """auto lets the library use Tensor Cores as the format allows; off measures the plain units (fp64, fp32, fp16)"""
    route: Route = "auto"
    """auto is torch's choice; cublas, cublaslt: that library; autotuned: the fastest of cuBLASLt's
    algorithms, tried (of TunableOp's on an AMD GPU); triton, cutlass: the fastest of Inductor's templates, tried"""
    burst: bool = False
    """Measure bursts of some milliseconds, each after a rest, instead of a load that lasts; no warm-up"""


class Gemm(TorchBenchmark[GemmParameters]):
    """One matrix product on random data, checked against a higher precision."""

    name = "gemm"
    summary = "matrix product in one number format: FLOP/s, percent of peak, result checked"
    category = "compute"
    is_within_device = True
    metrics = (COMPUTE_RATE, PEAK_SHARE, TIME, POWER, CLOCK)

    @classmethod
    def title(cls, parameters: GemmParameters) -> str:
        given = [parameters.m, parameters.n, parameters.k]
        shape = "x".join(map(str, given)) if None not in given else f"{parameters.size}" if parameters.size else ""
        return join_words(
            parameters.precision,
            "plain units" if parameters.tensor_cores == "off" else "",
            shape,
            f"batch {parameters.batch}" if parameters.batch > 1 else "",
            "A transposed" if parameters.transpose_a else "",
            "B transposed" if parameters.transpose_b else "",
            f"by {parameters.route}" if parameters.route != "auto" else "",
            "burst" if parameters.burst else "",
        )

    @classmethod
    def check(cls, parameters: GemmParameters, case: Case) -> None:
        if parameters.tensor_cores == "off" and parameters.route != "auto":
            message = (
                f"route = {parameters.route} alongside tensor_cores = off: the plain units have a kernel of their own"
            )
            raise InputError("conflicting-keys", message, key="route", value=parameters.route)
        given = {name: getattr(parameters, name) for name in ("m", "n", "k")}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == 3:
            return
        if missing:
            message = f"{', '.join(missing)} missing: give m, n and k together, or size alone"
            raise InputError("missing-key", message, key=missing[0])
        if parameters.size is not None:
            message = f"size = {parameters.size} alongside m, n and k: give one or the other"
            raise InputError("conflicting-keys", message, key="size", value=parameters.size)

    @classmethod
    def describe(cls, record: Record, parameters: GemmParameters, environment: Environment) -> Description:
        if parameters.burst:  # no ceiling of work that lasts, and not what other tools measure
            return Description()
        if parameters.precision == "int4":  # units of bf16: no ceiling of a format
            return Description(work=product_work(record, "int4", "bf16"))
        units = f"{parameters.precision}{' plain units' if parameters.tensor_cores == 'off' else ''}"
        return Description(
            work=product_work(record, parameters.precision, units),
            ceilings=(ShownCeiling(kind="compute", name=units, metric=COMPUTE_RATE.name),),
            aliases=_superbench_names(record, parameters)
            if parameters.route == "auto" or record.case.superbench
            else {},
        )

    def measure(self, parameters: GemmParameters, context: Context) -> Result:
        device = open_device(context.target)
        formats.check_device(parameters.precision, device)
        product = Product(parameters, device)
        m, n, k = product.shape
        product.check()
        work = 2.0 * m * n * k * parameters.batch
        unit = "OP/s" if parameters.precision == "int8" else "FLOP/s"
        rate = COMPUTE_RATE.model_copy(update={"unit": unit})
        peak = peak_flops(device.name, parameters.precision, tensor_cores=parameters.tensor_cores != "off")
        with MicroSession(parameters, context, device) as session:
            if parameters.burst:
                point = session.time_bursts(product.call, TIME, work=work, rate_unit=unit)
            else:
                point = session.time(product.call, TIME, work=work, rate_unit=unit, graph=True)
            levels = session.levels_under(product.call, point)
        product.check()
        share, peak_facts = peak_share(peak, work, point.time)
        facts = {
            "shape": {"m": m, "n": n, "k": k, "batch": parameters.batch},
            "operations": f"2 m n k batch = {work:g}",
            "library_call": product.how,
            "route": parameters.route,
            "kernels": kernels_of(product.call, device),
            **peak_facts,
            "checked": product.checked,
            "pace": session.pace(point).model_dump(mode="json"),
        }
        result = session.result([point.rate(rate, work), *share, point.time, *levels], facts)
        result.warnings += emulated(parameters.precision, device)
        return result


def _superbench_names(record: Record, parameters: GemmParameters) -> dict[str, Alias]:
    library = record.case.superbench.partition(":")[0]
    long = {"fp8": "fp8e4m3", "fp4": "fp4e2m1"}.get(parameters.precision, parameters.precision)
    if parameters.precision in ("fp8", "fp4") or library.endswith("blaslt-gemm"):
        size = "" if parameters.size is None else str(parameters.size)
        shape, rate = record.facts.get("shape"), record.measurement(COMPUTE_RATE.name)
        values = {}
        if isinstance(shape, dict) and rate is not None:
            batch = 0 if shape.get("batch", 1) == 1 else shape["batch"]  # there, no batch is written as 0
            parts = "_".join(str(size) for size in (batch, shape.get("m"), shape.get("n"), shape.get("k")))
            name = "fp8" if library.startswith("hip") and parameters.precision == "fp8" else long
            values[f"{name}_{parts}_flops"] = rate.summary.mean / _superbench.TERA
            size = f"{name}_{parts}"
        return _superbench.alias(record, "cublaslt-gemm", values, part=size, gpu=True)
    # Of fp32 the plain units are measured either way; tf32 is what Tensor Cores make of it.
    on_units = record.case.target != "cpu" and parameters.tensor_cores == "auto" and parameters.precision != "fp32"
    key = f"{parameters.precision}{'_tc' if on_units else ''}_{'iops' if parameters.precision == 'int8' else 'flops'}"
    values = _superbench.means(record, {key: (COMPUTE_RATE.name, _superbench.GIGA)})
    return _superbench.alias(record, "gemm-flops", values, part=key, gpu=True)


class Product:
    """The operands of one product, the call that computes it, and the check of its result."""

    def __init__(
        self, parameters: GemmParameters, device: Device, operands: tuple[Tensor, Tensor] | None = None
    ) -> None:
        import torch

        size = parameters.size or _default_size(parameters, device)
        self._parameters = parameters
        self._device = device
        self.shape = (parameters.m or size, parameters.n or size, parameters.k or size)
        self.worst = 0.0  # error of the checked elements as a part of what is allowed
        self.how = ""
        plain = parameters.tensor_cores == "off" and parameters.precision == "fp16"
        self._rounding = "fp16, plain units" if plain else parameters.precision
        m, n, k = self.shape
        generator = torch.Generator(device.torch()).manual_seed(parameters.seed)
        lead = (parameters.batch,) if parameters.batch > 1 else ()

        def operand(precision: ProductFormat, rows: int, columns: int, transposed: bool) -> Tensor:
            shape = (*lead, columns, rows) if transposed else (*lead, rows, columns)
            data = formats.random_operand(precision, shape, generator)
            return data.transpose(-1, -2) if transposed else data

        left: ProductFormat = "bf16" if parameters.precision == "int4" else parameters.precision
        self._a, self._b = operands or (
            operand(left, m, k, parameters.transpose_a),
            operand(parameters.precision, k, n, parameters.transpose_b),
        )
        set_fp32_mode(parameters.precision)
        self.call: Callable[[], Tensor] = self._make_call(lead)

    @property
    def checked(self) -> str:
        """What was checked, for the facts."""
        error = f"largest error {self.worst:.3g} of what the format allows"
        return f"{CHECKED_ROWS} rows before and after, against fp64; {error}"

    def check(self) -> None:
        """Compare some rows of the result with a higher precision; a difference is silent corruption."""
        import torch

        m, _, k = self.shape
        wipe(self.call())
        result = self.call()
        rows = torch.linspace(0, m - 1, min(CHECKED_ROWS, m), device=result.device).long()
        a = self._a[..., rows, :].double()
        b = self._b.double()
        exact = a @ b
        wrong = f"of the checked rows, the product in {self._parameters.precision} is wrong"
        error = formats.largest_error(wrong, self._rounding, result[..., rows, :], exact, a.abs() @ b.abs(), k)
        self.worst = max(self.worst, error)

    def _make_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch

        a, b, precision = self._a, self._b, self._parameters.precision
        m, n, _ = self.shape
        check_route(self._parameters.route, self._device, precision)
        if self._parameters.tensor_cores == "off":
            if not self._device.kind.is_accelerator:
                raise Unsupported("a CPU has no Tensor Cores to leave out: use tensor_cores = auto")
            if precision not in ("fp64", "fp32", "fp16"):
                raise Unsupported(f"{precision} is a format of Tensor Cores: without them use fp64, fp32 or fp16")
            if precision != "fp32":  # Tensor Cores never compute true fp32
                return self._plain_call(lead)
        if precision in ("fp4", "int4"):
            return by_route(self._parameters.route, self._device, self._four_bit_call(lead))
        if precision in ("fp8", "int8"):  # as the units read 8-bit operands: laid out so once, outside the timed region
            b = b.mT.contiguous().mT
        if precision == "fp8" and (lead or self._parameters.transpose_a):
            raise Unsupported("fp8 goes with batch = 1 and A as it is: the hardware takes no other layout")
        if precision == "int8" and lead:
            raise Unsupported("int8 has no batched product here: use batch = 1")
        result = {"fp8": torch.bfloat16, "int8": torch.int32}.get(precision, a.dtype)
        if self._parameters.route == "autotuned":
            tuned = torch.empty((*lead, m, n), dtype=result, device=a.device)
            call, self.how = self._device.tuned_product(a, b, tuned, tf32=precision == "tf32")
            return cast(Callable[[], "Tensor"], call)
        compiles = self._parameters.route in ("triton", "cutlass")  # into a result of their own
        out = None if compiles or precision == "fp8" else torch.empty((*lead, m, n), dtype=result, device=a.device)
        if precision == "fp8":
            one = torch.ones((), device=a.device)
            self.how = "torch._scaled_mm, e4m3 operands, B by columns, bf16 result, fast accumulation"
            product = partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        elif precision == "int8":
            self.how = "torch._int_mm, B by columns, int32 result"
            product = partial(torch._int_mm, a, b, out=out)
        else:
            self.how, multiply = ("torch.bmm", torch.bmm) if lead else ("torch.mm", torch.mm)
            product = partial(multiply, a, b, out=out)
        return by_route(self._parameters.route, self._device, product)

    def _four_bit_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        """Two numbers in a byte: of both operands in fp4, of B alone in int4; every factor of a group is one."""
        import torch

        precision, (m, n, k) = self._parameters.precision, self.shape
        if lead or self._parameters.transpose_a:
            raise Unsupported(f"{precision} goes with batch = 1 and A as it is")
        if k % INT4_GROUP or n % 64:
            raise Unsupported(
                f"{precision} goes with k a multiple of {INT4_GROUP} and n of 64, but they are {k} and {n}"
            )
        device = self._a.device
        if precision == "int4":
            factors = torch.tensor([1.0, 0.0], dtype=torch.bfloat16, device=device).repeat(k // INT4_GROUP, n, 1)
            packed = formats.packed_int4(self._b)
            on_cpu = device.type == "cpu"
            multiply = torch._weight_int4pack_mm_for_cpu if on_cpu else torch._weight_int4pack_mm
            self.how = f"torch.{multiply.__name__}, int4 weights in groups of {INT4_GROUP}, computed in bf16"
            return partial(multiply, self._a, packed, INT4_GROUP, factors)
        a, b = (formats.packed_fp4(one.contiguous()).view(torch.float4_e2m1fn_x2) for one in (self._a, self._b.mT))
        # Blocks of 128 rows by 4 factors, which lie in an order of the hardware's own: equal ones need none.
        scale_a, scale_b = (
            torch.ones(-(-rows // 128) * 128, k // FP4_GROUP, dtype=torch.float8_e4m3fn, device=device)
            for rows in (m, n)
        )
        self.how = f"torch._scaled_mm, e2m1 operands in groups of {FP4_GROUP} with e4m3 factors, bf16 result"
        return partial(torch._scaled_mm, a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)

    def _plain_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        """Without Tensor Cores: a CUDA kernel for operands that are stored by rows."""
        import torch

        precision, (m, n, k) = self._parameters.precision, self.shape
        if lead or self._parameters.transpose_a or self._parameters.transpose_b:
            raise Unsupported(f"without Tensor Cores {precision} goes with batch = 1 and no transposes")
        halves, word, element, fill, multiply_add = _WORDS[precision]
        if m % TILE or n % (TILE * halves) or k % DEPTH:
            raise Unsupported(
                f"without Tensor Cores {precision} goes with m a multiple of {TILE}, n of {TILE * halves} and k of "
                f"{DEPTH}, but they are {m}, {n} and {k}"
            )
        definitions = (
            f"typedef {word} Word;\ntypedef {element} Element;\n"
            f"#define FILL(x) {fill}\n#define MULTIPLY_ADD(acc, a, b) {multiply_add}\n"
        )
        source = Path(__file__).with_name("plain_product.cu").read_text(encoding="utf-8")
        kernel = self._device.build_kernel(definitions + source, "plain_product")
        out = torch.empty((m, n), dtype=self._a.dtype, device=self._a.device)
        grid, arguments = (n // (TILE * halves), m // TILE, 1), [self._a, self._b, out, n // halves, k]
        self.how = f"a kernel of our own, multiply-add instructions of the plain units, {precision} sums"

        def call() -> Tensor:
            kernel(grid=grid, block=(THREADS, 1, 1), args=arguments)
            return out

        return call


def product_rate(session: MicroSession, precision: NumberFormat, seed: int) -> Peak:
    """What a plain product does in this format, timed in a session whose other work is a part of it."""
    product = Product(GemmParameters(precision=precision, seed=seed), session.device)
    m, n, k = product.shape
    time = session.time(product.call, TIME, at={"reference": "matrix product"}, graph=True).time
    how = f"measured in this case: {m}x{n}x{k} in {precision} by {product.how}"
    return Peak(2.0 * m * n * k / time.summary.mean, how)


def _default_size(parameters: GemmParameters, device: Device) -> int:
    """An edge that fills the device; many a CPU computes short formats in software, a thousand times slower."""
    if device.kind.is_accelerator:
        return GPU_SIZE
    if parameters.precision in ("fp64", "fp32") or parameters.m is not None:
        return CPU_SIZE
    trial = Product(parameters.model_copy(update={"size": SLOW_SIZE}), device)
    trial.call()
    return SLOW_SIZE if device.seconds_of(trial.call) > SLOW_SECONDS else CPU_SIZE


def wipe(result: Tensor) -> None:
    """Overwrite a result, so that a call after it that writes nothing is not taken for right."""
    result.fill_(float("nan") if result.is_floating_point() else -(2**31))
