"""One matrix product as a user of the framework calls it: the whole operator, on one device.

This differs from gemm, which asks what the arithmetic units can do. Here each call is `torch.matmul(a, b)`: it passes
the framework's dispatch, allocates its result and leaves the old one to be freed, is never recorded into a CUDA graph,
and writes into no prepared output. Besides the time of a call in a busy stream, the latency of a single call that is
waited for is measured. The distance from gemm's rate at the same shape is what the framework costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    COMPUTE_RATE,
    PEAK_SHARE,
    TIME,
    MicroParameters,
    TorchBenchmark,
    join_words,
    peak_share,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.compute.gemm import GemmParameters, Product, product_work
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.record import Record, Result
from paceline.core.subject import Description, MatmulPrecision
from paceline.devices import Device, DeviceKind, open_device
from paceline.measure.memory import peak_flops

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, int, int]  # m, n, k

GPU_SHAPE: Shape = (16000, 12288, 12288)  # what cluster acceptance tests commonly take
CPU_SHAPE: Shape = (1000, 768, 768)  # a sixteenth of it each way
CPU_SMALL: Shape = (250, 192, 192)  # formats that many a processor computes in software

LATENCY = time_metric("latency", "one call on an idle device until its result is there")


class MatmulParameters(MicroParameters):
    """Shape and format of a product C = A B."""

    precision: MatmulPrecision = "fp32"
    """fp32 (true), tf32, fp16, bf16"""
    m: int | None = Field(default=None, ge=1)
    """Rows of A and C; unset takes 16000 on a GPU, 1000 or less on a CPU"""
    n: int | None = Field(default=None, ge=1)
    """Columns of B and C; unset takes 12288 on a GPU, 768 or less on a CPU"""
    k: int | None = Field(default=None, ge=1)
    """Columns of A and rows of B; unset takes 12288 on a GPU, 768 or less on a CPU"""

    def shape_on(self, device_kind: DeviceKind) -> Shape:
        """m, n and k: those that were given, and for the rest what suits the device."""
        cpu = CPU_SHAPE if self.precision == "fp32" else CPU_SMALL
        m, n, k = GPU_SHAPE if device_kind.is_accelerator else cpu
        return self.m or m, self.n or n, self.k or k

    def show_shape(self) -> str:
        """The sizes that were given, in a title."""
        given = {"m": self.m, "n": self.n, "k": self.k}
        return " ".join(f"{name} {size}" for name, size in given.items() if size is not None)


class Matmul(TorchBenchmark[MatmulParameters]):
    """torch.matmul on random data, checked against a higher precision."""

    name = "matmul"
    summary = "one matrix product as the framework calls it: time, latency, FLOP/s, percent of peak"
    category = "compute"
    is_within_device = True
    metrics = (TIME, COMPUTE_RATE, PEAK_SHARE, LATENCY)

    @classmethod
    def title(cls, parameters: MatmulParameters) -> str:
        return join_words(parameters.precision, parameters.show_shape())

    @classmethod
    def describe(cls, record: Record, parameters: MatmulParameters, environment: Environment) -> Description:
        # There, every call is waited for.
        metric = "latency" if record.measurement("latency") else "time"
        values = _superbench.means(record, {"nosharding_time": (metric, _superbench.MS)})
        return Description(
            work=product_work(record, parameters.precision, parameters.precision),
            aliases=_superbench.alias(record, "pytorch-matmul", values, gpu=True),
        )

    def measure(self, parameters: MatmulParameters, context: Context) -> Result:
        device = open_device(context.target)
        formats.check_device(parameters.precision, device)
        operator = Operator(parameters, device)
        m, n, k = operator.shape
        operator.check()
        work = 2.0 * m * n * k
        with MicroSession(parameters, context, device) as session:
            point = session.time(operator.call, TIME, work=work, rate_unit="FLOP/s")
            alone = session.time(operator.call, LATENCY, each=True)
        operator.check()
        share, peak_facts = peak_share(peak_flops(device.name, parameters.precision), work, point.time)
        facts = {
            "shape": {"m": m, "n": n, "k": k},
            "operations": f"2 m n k = {work:g}",
            "library_call": operator.how,
            **peak_facts,
            "checked": operator.checked,
            "pace": session.pace(point).model_dump(mode="json"),
        }
        return session.result([point.time, point.rate(COMPUTE_RATE, work), *share, alone.time], facts)


class Operator(Product):
    """The product as an operator that makes its own result."""

    def __init__(self, parameters: MatmulParameters, device: Device) -> None:
        m, n, k = parameters.shape_on(device.kind)
        super().__init__(GemmParameters(precision=parameters.precision, m=m, n=n, k=k, seed=parameters.seed), device)

    def _make_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch

        a, b = self._a, self._b
        self.how = "torch.matmul, result allocated in each call"
        return lambda: torch.matmul(a, b)
