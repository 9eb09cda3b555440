"""General matrix products: how many operations per second in each number format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import COMPUTE_RATE, PEAK_SHARE, TIME, MicroParameters
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, SilentCorruption, Unsupported
from paceline.core.parameters import OnOff
from paceline.core.quantity import Duration
from paceline.core.record import Record, Result
from paceline.core.subject import BYTES, Alias, Description, NumberFormat, Precision, ShownCeiling, Work
from paceline.devices import Device, open_device
from paceline.devices.timeline import monotonic
from paceline.measure.memory import peak_flops
from paceline.models.base import set_fp32_mode

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.devices import Device


FORMULA = "each operand read once and the result written once"
RESULT = {**BYTES, "fp8": 2, "int8": 4}  # bytes of a result's number


def product_work(record: Record, precision: Precision, units: str) -> Work | None:
    """What one product does, as its record says; None where it has no rate or no shape."""
    rate, shape = record.measurement(COMPUTE_RATE.name), record.facts.get("shape")
    if rate is None or not rate.value > 0 or not isinstance(shape, dict):
        return None
    m, n, k, batch = (int(shape.get(name, 1)) for name in ("m", "n", "k", "batch"))
    return Work(
        flops=2.0 * m * n * k * batch,
        bytes=float(batch * ((m * k + k * n) * BYTES[precision] + m * n * RESULT[precision])),
        rate=rate.value,
        unit=rate.metric.unit,
        number_format=units,
        formula=FORMULA,
    )


TILE = 128
DEPTH = 8
THREADS = 256

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

_SOURCE = """
typedef %(word)s Word;
typedef %(element)s Element;
// Memory is read two neighbours at a time: an alignment that the compiler knows makes it one instruction.
struct __align__(2 * sizeof(Word)) Words { Word first, second; };
struct __align__(2 * sizeof(Element)) Elements { Element first, second; };
#define FILL(x) %(fill)s
#define MULTIPLY_ADD(acc, a, b) %(multiply_add)s
#define TILE 128
#define DEPTH 8

extern "C" __global__ void __launch_bounds__(256)
plain_product(const Element *A, const Word *B, Word *C, int words, int k)
{
    __shared__ __align__(16) Word tileA[2][DEPTH][TILE], tileB[2][DEPTH][TILE];
    const int thread = threadIdx.x, x = thread %% 16 * 2, y = thread / 16 * 2;
    const int rowA = thread / 2, depthA = thread %% 2 * 4;
    const int rowB = thread / 32, columnB = thread %% 32 * 4;
    const Element *nextA = A + (long long)(blockIdx.y * TILE + rowA) * k + depthA;
    const Word *nextB = B + (long long)rowB * words + blockIdx.x * TILE + columnB;
    Word sums[8][8] = {};
    Elements heldA[2];
    Words heldB[2];

#define FETCH()                                                                     \\
    heldA[0] = ((const Elements *)nextA)[0], heldA[1] = ((const Elements *)nextA)[1]; \\
    heldB[0] = ((const Words *)nextB)[0], heldB[1] = ((const Words *)nextB)[1];       \\
    nextA += DEPTH;                                                                 \\
    nextB += (long long)DEPTH * words
#define KEEP(half)                                                                  \\
    for (int i = 0; i < 2; i++) {                                                   \\
        tileA[half][depthA + 2 * i][rowA] = FILL(heldA[i].first);                   \\
        tileA[half][depthA + 2 * i + 1][rowA] = FILL(heldA[i].second);              \\
        *(Words *)&tileB[half][rowB][columnB + 2 * i] = heldB[i];                   \\
    }

    FETCH();
    KEEP(0);
    __syncthreads();
    int half = 0;
    for (int done = 0; done < k; done += DEPTH, half ^= 1) {
        const bool more = done + DEPTH < k;
        if (more) { FETCH(); }
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            Word a[8], b[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Words pair = *(const Words *)&tileA[half][depth][i * 32 + y];
                a[2 * i] = pair.first, a[2 * i + 1] = pair.second;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const Words pair = *(const Words *)&tileB[half][depth][j * 32 + x];
                b[2 * j] = pair.first, b[2 * j + 1] = pair.second;
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) { MULTIPLY_ADD(sums[i][j], a[i], b[j]); }
        }
        if (more) { KEEP(half ^ 1); }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long row = blockIdx.y * TILE + i / 2 * 32 + y + i %% 2;
            const Words pair = {sums[i][2 * j], sums[i][2 * j + 1]};
            *(Words *)&C[row * words + blockIdx.x * TILE + j * 32 + x] = pair;
        }
}
"""


def source(precision: str) -> str:
    """The kernel for a format, as CUDA C++."""
    _, word, element, fill, multiply_add = _WORDS[precision]
    return _SOURCE % {"word": word, "element": element, "fill": fill, "multiply_add": multiply_add}


def plain_product(precision: str, a: Tensor, b: Tensor, out: Tensor, device: Device) -> Callable[[], object]:
    """A call that computes `out = a @ b`, all of them stored by rows, without Tensor Cores."""
    m, k = a.shape
    n = b.shape[1]
    halves = _WORDS[precision][0]
    if m % TILE or n % (TILE * halves) or k % DEPTH:
        raise Unsupported(
            f"without Tensor Cores {precision} goes with m a multiple of {TILE}, n of {TILE * halves} and k of "
            f"{DEPTH}, but they are {m}, {n} and {k}"
        )
    kernel = device.build_kernel(source(precision), "plain_product")
    grid = (n // (TILE * halves), m // TILE, 1)
    arguments = [a, b, out, n // halves, k]
    return lambda: kernel(grid=grid, block=(THREADS, 1, 1), args=arguments)


GPU_SIZE = 8192
CPU_SIZE = 1024
SLOW_SIZE = 256  # for formats that take a processor longer than this for a product of this size
SLOW_SECONDS = 2e-3
CHECKED_ROWS = 16


class GemmParameters(MicroParameters):
    """Shapes and format of a product C = A B."""

    budget: Duration = Field(default=2.0, gt=0)
    """Time to spend on measuring, at most"""
    warm_up: Duration = 2.0
    """Time to spend on warming up, at most: a GPU takes this long to settle at its power limit"""
    precision: NumberFormat = "fp32"
    """fp64, fp32 (true), tf32, fp16, bf16, fp8 (e4m3), int8"""
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


class Gemm(Benchmark[GemmParameters]):
    """One matrix product on random data, checked against a higher precision."""

    name = "gemm"
    summary = "matrix product in one number format: FLOP/s, percent of peak, result checked"
    category = "compute"
    Parameters = GemmParameters
    metrics = (COMPUTE_RATE, PEAK_SHARE, TIME)
    primary = "compute_rate"

    @classmethod
    def title(cls, parameters: GemmParameters) -> str:
        given = [parameters.m, parameters.n, parameters.k]
        shape = "x".join(map(str, given)) if None not in given else f"{parameters.size}" if parameters.size else ""
        words = [
            parameters.precision,
            "plain units" if parameters.tensor_cores == "off" else "",
            shape,
            f"batch {parameters.batch}" if parameters.batch > 1 else "",
            "A transposed" if parameters.transpose_a else "",
            "B transposed" if parameters.transpose_b else "",
        ]
        return " ".join(word for word in words if word)

    @classmethod
    def check(cls, parameters: GemmParameters, case: Case) -> None:
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
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        return ("torch",)

    @classmethod
    def describe(cls, record: Record, parameters: GemmParameters, environment: Environment) -> Description:
        said = super().describe(record, parameters, environment)
        plain = " plain units" if parameters.tensor_cores == "off" else ""
        units = f"{parameters.precision}{plain}"
        return said.model_copy(
            update={
                "work": product_work(record, parameters.precision, units),
                "ceilings": (ShownCeiling(kind="compute", name=units, metric=COMPUTE_RATE.name),),
                "aliases": _superbench_names(record, parameters),
            }
        )

    def measure(self, parameters: GemmParameters, context: Context) -> Result:
        device = open_device(context.target)
        formats.check_device(parameters.precision, device)
        context.report(Progress(phase="preparing"))
        product = Product(parameters, device)
        m, n, k = product.shape
        product.check()
        work = 2.0 * m * n * k * parameters.batch
        kind = "OP/s" if parameters.precision == "int8" else "FLOP/s"
        rate = COMPUTE_RATE.model_copy(update={"unit": kind})
        plain = parameters.tensor_cores == "off"
        peak = peak_flops(device.name, parameters.precision, tensor_cores=not plain)
        with MicroSession(parameters, context, device) as session:
            point = session.time(product.call, TIME, work=work, rate_unit=kind, graph=True)
        product.check()
        found = [point.rate(rate, work), point.time]
        if peak is not None:
            found.insert(1, point.rate(PEAK_SHARE, 100.0 * work / peak.rate))
        facts = {
            "shape": {"m": m, "n": n, "k": k, "batch": parameters.batch},
            "operations": f"2 m n k batch = {work:g}",
            "library_call": product.how,
            "peak": peak.rate if peak else None,
            "peak_source": peak.source if peak else "no datasheet is known for this device",
            "checked": f"{CHECKED_ROWS} rows before and after, against fp64; largest error "
            f"{product.worst:.3g} of what the format allows",
        }
        result = session.result(found, facts)
        result.warnings += emulated(parameters.precision, device)
        return result


def _superbench_names(record: Record, parameters: GemmParameters) -> dict[str, Alias]:
    note = _superbench.cpu_note(record.case)
    if parameters.precision == "fp8":
        size = "" if parameters.size is None else str(parameters.size)
        return _superbench.alias(record, "cublaslt-gemm", _fp8_names(record), part=size, note=note)
    # Of fp32 the plain units are measured either way; tf32 is what Tensor Cores make of it.
    on_units = record.case.target != "cpu" and parameters.tensor_cores == "auto" and parameters.precision != "fp32"
    key = f"{parameters.precision}{'_tc' if on_units else ''}_{'iops' if parameters.precision == 'int8' else 'flops'}"
    values = _superbench.means(record, {key: (COMPUTE_RATE.name, _superbench.GIGA)})
    return _superbench.alias(record, "gemm-flops", values, part=key, note=note)


def _fp8_names(record: Record) -> dict[str, float]:
    shape, rate = record.facts.get("shape"), record.measurement(COMPUTE_RATE.name)
    if not isinstance(shape, dict) or rate is None:
        return {}
    batch = 0 if shape.get("batch", 1) == 1 else shape["batch"]  # there, no batch is written as 0
    parts = "_".join(str(size) for size in (batch, shape.get("m"), shape.get("n"), shape.get("k")))
    return {f"fp8e4m3_{parts}_flops": rate.summary.mean / _superbench.TERA}


class Product:
    """The operands of one product, the call that computes it, and the check of its result."""

    def __init__(self, parameters: GemmParameters, device: Device) -> None:
        import torch

        size = parameters.size or _own_size(parameters, device)
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
        self._a = _operand(parameters.precision, lead, m, k, parameters.transpose_a, generator)
        self._b = _operand(parameters.precision, lead, k, n, parameters.transpose_b, generator)
        set_fp32_mode(parameters.precision)
        self.call: Callable[[], Tensor] = self._make_call(lead)

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
        error = (result[..., rows, :].double() - exact).abs()
        allowed = formats.tolerance(self._rounding, exact, a.abs() @ b.abs(), k)
        share = torch.where(error == 0, 0.0, error / allowed)
        worst = float(share.max())
        if not worst <= 1.0:  # not a number is no agreement
            where = [int(i) for i in (~(share <= 1.0)).nonzero()[0]]
            raise SilentCorruption(
                f"the product in {self._parameters.precision} is wrong at {where} of the checked rows: "
                f"{worst:.3g} times as far from the fp64 result as the format allows"
            )
        self.worst = max(self.worst, worst)

    def _make_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch

        a, b = self._a, self._b
        m, n, _ = self.shape
        if self._parameters.tensor_cores == "off":
            return self._plain_call(lead)
        if self._parameters.precision == "fp8":
            return self._fp8_call(lead)
        if self._parameters.precision == "int8":
            return self._int8_call(lead)
        out = torch.empty((*lead, m, n), dtype=a.dtype, device=a.device)
        self.how = "torch.bmm" if lead else "torch.mm"
        multiply = torch.bmm if lead else torch.mm
        return lambda: multiply(a, b, out=out)

    def _fp8_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch

        if lead or self._parameters.transpose_a:
            raise Unsupported("fp8 goes with batch = 1 and A as it is: the hardware takes no other layout")
        a, b = self._a, _by_columns(self._b)
        one = torch.ones((), device=a.device)
        self.how = "torch._scaled_mm, e4m3 operands, B by columns, bf16 result, fast accumulation"
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    def _int8_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch

        if lead:
            raise Unsupported("int8 has no batched product here: use batch = 1")
        a, b = self._a, _by_columns(self._b)
        out = torch.empty((self.shape[0], self.shape[1]), dtype=torch.int32, device=a.device)
        self.how = "torch._int_mm, B by columns, int32 result"
        return lambda: torch._int_mm(a, b, out=out)

    def _plain_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        """Without Tensor Cores."""
        import torch

        precision = self._parameters.precision
        if not self._device.kind.is_accelerator:
            raise Unsupported("a CPU has no Tensor Cores to leave out: use tensor_cores = auto")
        if precision not in ("fp64", "fp32", "fp16"):
            raise Unsupported(f"{precision} is a format of Tensor Cores: without them use fp64, fp32 or fp16")
        a, b = self._a, self._b
        out = torch.empty((*lead, self.shape[0], self.shape[1]), dtype=a.dtype, device=a.device)
        if precision == "fp32":  # true fp32 has never been theirs
            multiply = torch.bmm if lead else torch.mm
            self.how = "torch.bmm" if lead else "torch.mm"
            return lambda: multiply(a, b, out=out)
        if lead or self._parameters.transpose_a or self._parameters.transpose_b:
            raise Unsupported(f"without Tensor Cores {precision} goes with batch = 1 and no transposes")
        product = plain_product(precision, a, b, out, self._device)
        self.how = f"a kernel of our own, multiply-add instructions of the plain units, {precision} sums"

        def call() -> Tensor:
            product()
            return out

        return call


def _own_size(parameters: GemmParameters, device: Device) -> int:
    """An edge that fills the device; many a CPU computes short formats in software, a thousand times slower."""
    if device.kind.is_accelerator:
        return GPU_SIZE
    if parameters.precision in ("fp64", "fp32") or parameters.m is not None:
        return CPU_SIZE
    trial = Product(parameters.model_copy(update={"size": SLOW_SIZE}), device)
    trial.call()
    begun = monotonic()
    trial.call()
    return SLOW_SIZE if monotonic() - begun > SLOW_SECONDS else CPU_SIZE


def _by_columns(b: Tensor) -> Tensor:
    """The units read 8-bit operands by columns: laid out so once, outside the timed region."""
    return b.t().contiguous().t()


def wipe(result: Tensor) -> None:
    """Overwrite a result, so that a call after it that writes nothing is not taken for right."""
    result.fill_(float("nan") if result.is_floating_point() else -(2**31))


def _operand(
    precision: str, lead: tuple[int, ...], rows: int, columns: int, transposed: bool, generator: Any
) -> Tensor:
    shape = (*lead, columns, rows) if transposed else (*lead, rows, columns)
    made = formats.random_operand(precision, shape, generator)
    return made.transpose(-1, -2) if transposed else made
