"""The matrix products that models are made of, each measured by itself, and all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import rate_metric, time_metric
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.compute._function_lists import Function, FunctionListBenchmark, FunctionListParameters, Names
from paceline.benchmarks.compute.gemm import GemmParameters, Product
from paceline.core.environment import Environment
from paceline.core.metric import Merge
from paceline.core.record import At, Measurement, Record
from paceline.core.subject import Description, key_word
from paceline.devices import Device
from paceline.models.sources import MODEL_NAME

if TYPE_CHECKING:
    from torch import Tensor

# Of torch's operators: where among the arguments the two factors stand.
FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}


class BlasFunctionsParameters(FunctionListParameters):
    """Whose matrix products, and the number format."""

    models: Annotated[Names, MODEL_NAME] = ["resnet50", "bert-large", "gpt2-small"]
    """Models whose matrix products to measure: of the zoo (paceline list models), or your own as module:factory"""
    pad: int | None = Field(default=None, ge=2)
    """Measure each product again whose sizes are not multiples of this, with sizes rounded up to them"""


class GemmFunction(Function):
    """A product C = A B, or a batch of them."""

    EXAMPLE: ClassVar[str] = "{m: 512, n: 1024, k: 4096, transpose_b: true}"

    m: int = Field(ge=1)
    n: int = Field(ge=1)
    k: int = Field(ge=1)
    batch: int = Field(default=1, ge=1)
    transpose_a: bool = False
    transpose_b: bool = False

    @property
    def label(self) -> str:
        several = f"{self.batch} of " if self.batch > 1 else ""
        letters = "".join("t" if transposed else "n" for transposed in (self.transpose_a, self.transpose_b))
        return self.name or f"{several}{self.m}x{self.n}x{self.k} {letters}"

    @property
    def work(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


SHAPE_SHARE = rate_metric(
    "shape_share", "part of the rate of the list's fastest shape: what is low loses by its shape", Merge.MEAN, unit="%"
)
PADDED_TIME = time_metric(
    "padded_time", "time of one call with sizes rounded up by pad; the padding itself is not in it"
)
PADDING_GAIN = rate_metric(
    "padding_gain", "time of a call over that with padded sizes: above 1 padding gives time back", Merge.MEAN, unit="x"
)


class BlasFunctions(FunctionListBenchmark[BlasFunctionsParameters]):
    """Matrix products of models or of a user's list, checked against a higher precision."""

    name = "blas-functions"
    summary = "the matrix products of models, or of your own list: time and FLOP/s of each and of all"
    metrics = (*FunctionListBenchmark.metrics, SHAPE_SHARE, PADDED_TIME, PADDING_GAIN)
    kind = GemmFunction
    what = "matrix products"
    how = {
        "library_call": "torch.mm or torch.bmm into a prepared result; operands dense, biases left out",
        "letters": "n: an operand lies by rows, t: it lies transposed; A first",
    }

    @classmethod
    def describe(cls, record: Record, parameters: BlasFunctionsParameters, environment: Environment) -> Description:
        calls = ("cublasgemmex", "cublasgemmstridedbatchedex")
        if parameters.precision in ("fp32", "tf32"):
            calls = ("cublassgemm", "cublassgemmstridedbatched")
        listed = record.facts.get("functions")
        shapes = {one.get("function"): one for one in listed} if isinstance(listed, list) else {}
        values = {
            f"name_{_superbench_name(calls, point.at['function'], shapes)}_time": point.summary.mean / _superbench.US
            for point in _superbench.points(record, "time", ("function",))
        }
        aliases = _superbench.alias(record, "cublas-function", values, gpu=True)
        return Description(aliases=aliases)

    def recognise(self, operator: str, arguments: Sequence[Any]) -> GemmFunction | None:
        first = FACTORS.get(operator)
        if first is None:
            return None
        a, b = arguments[first : first + 2]
        return GemmFunction(
            m=a.shape[-2],
            n=b.shape[-1],
            k=a.shape[-1],
            batch=a.shape[0] if a.dim() == 3 else 1,
            transpose_a=_is_transposed(a),
            transpose_b=_is_transposed(b),
        )

    def calls(
        self, parameters: BlasFunctionsParameters, device: Device, function: GemmFunction
    ) -> Iterator[tuple[At, Callable[[], Product]]]:
        shape = function.model_dump(exclude={"name"})
        product = GemmParameters(precision=parameters.precision, seed=parameters.seed, **shape)
        yield {"function": function.label}, partial(Product, product, device)

    def compare(
        self,
        parameters: BlasFunctionsParameters,
        device: Device,
        session: MicroSession,
        times: Mapping[GemmFunction, Measurement],
    ) -> list[Measurement]:
        seconds = {one: time.summary.mean for one, time in times.items()}
        best = max(one.work / took for one, took in seconds.items())
        found = []
        for one, took in seconds.items():
            at: At = {"function": one.label}
            found.append(Measurement.of_value(SHAPE_SHARE, 100.0 * one.work / took / best, at=at))
            step = parameters.pad or 1
            sizes = {name: getattr(one, name) for name in ("m", "n", "k")}
            padded = {name: -(-size // step) * step for name, size in sizes.items()}
            if padded == sizes:
                continue
            ((_, prepare),) = self.calls(parameters, device, one.model_copy(update=padded))
            product = prepare()
            product.check()
            point = session.time(product.call, PADDED_TIME, at=at, graph=True)
            found += [point.time, Measurement.of_value(PADDING_GAIN, took / point.time.summary.mean, at=at)]
        return found


def _is_transposed(matrix: Tensor) -> bool:
    return matrix.stride(-2) == 1 and matrix.stride(-1) != 1


def _superbench_name(calls: tuple[str, str], function: object, shapes: Mapping[Any, Mapping[str, Any]]) -> str:
    shape = shapes.get(function, {})
    batched = shape.get("batch", 1) > 1
    parts = {"batchcount": shape.get("batch")} if batched else {}
    parts |= {key: shape[key] for key in ("k", "m", "n") if key in shape}
    parts |= {f"trans{side}": int(shape[f"transpose_{side}"]) for side in "ab" if f"transpose_{side}" in shape}
    return f"{calls[batched]}_" + ("_".join(f"{key}_{value}" for key, value in parts.items()) or key_word(function))
