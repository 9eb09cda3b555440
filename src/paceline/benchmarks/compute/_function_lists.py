"""Lists of functions to measure one after another: read from models by tracing them, or from a user's file.

A model is traced on the meta device: its forward pass runs without numbers, and every call of a matrix product or a
convolution is noted with its shape. So the list cannot differ from what the model calls. Attention is traced in its
unfused form, as two batched products.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import (
    COMPUTE_RATE,
    PEAK_SHARE,
    TIME,
    MicroParameters,
    OneOrMore,
    join_words,
    peak_share,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Benchmark, Context
from paceline.core.case import Case
from paceline.core.errors import InputError, Unsupported, located
from paceline.core.files import read_text
from paceline.core.metric import Metric
from paceline.core.parameters import refusal
from paceline.core.quantity import Duration
from paceline.core.record import At, Measurement, Result
from paceline.core.subject import MatmulPrecision
from paceline.core.yaml_text import read_yaml
from paceline.devices import Device, open_device
from paceline.measure.memory import peak_flops
from paceline.models.base import ModelSpec, Scale
from paceline.models.sources import MODEL_NAME, check_model, find_model

if TYPE_CHECKING:
    from paceline.benchmarks.compute.dnn_functions import Convolution
    from paceline.benchmarks.compute.gemm import Product

MOST_TRACED = 12

TOTAL_TIME = time_metric("total_time", "one pass over the list, each function as often as the models call it")

Names = Annotated[list[str], OneOrMore, Field(min_length=1)]


class FunctionListParameters(MicroParameters):
    """Where the list comes from, and the number format."""

    precision: MatmulPrecision = "fp32"
    """fp32 (true), tf32, fp16, bf16"""
    models: Annotated[Names, MODEL_NAME]
    """Models whose functions to measure: of the zoo (paceline list models), or your own as package.module:factory"""
    scale: Scale | None = None
    """full, or tiny: the same kind of model, small enough for a slow machine; unset takes tiny on a CPU"""
    batch_size: int | None = Field(default=None, ge=1)
    """Samples in the traced batch; unset takes each model's own on a GPU, 1 on a CPU"""
    file: Path | None = None
    """A YAML or JSON file with a list of functions, instead of models"""
    most: int | None = Field(default=None, ge=1)
    """Measure at most this many functions, those with the most work; unset takes 12 of models, all of a file"""
    budget: Duration = Field(default=0.2, gt=0)
    """Time to spend on measuring each function, at most"""
    warm_up: Duration = 0.1
    """Time to spend on warming up each function, at most; it ends sooner when the time is steady"""


class Function(BaseModel):
    """One call with its shape; equal ones are the same function."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    EXAMPLE: ClassVar[str]

    name: str = Field(default="", max_length=100)  # a user's own

    @property
    @abstractmethod
    def label(self) -> str:
        """What distinguishes it from others."""

    @property
    @abstractmethod
    def work(self) -> float:
        """FLOPs of one call; a multiply-add is two."""

    def complaint(self) -> str:
        """What is wrong with the values together, if anything is."""
        return ""


F = TypeVar("F", bound=Function)
P = TypeVar("P", bound=FunctionListParameters)
Counted = dict[F, int]  # how often each function is called
Recognise = Callable[[str, Sequence[Any]], F | None]  # an operator's name and arguments; None where it is another


class FunctionListBenchmark(Benchmark[P]):
    """Measures the functions of a list, one point for each, and all of them together."""

    category = "compute"
    is_within_device = True
    metrics: ClassVar[tuple[Metric, ...]] = (COMPUTE_RATE, TOTAL_TIME, PEAK_SHARE, TIME)
    kind: ClassVar[type[Function]]
    what: ClassVar[str]  # the functions, for messages
    how: ClassVar[dict[str, str]]  # how they are called, for the facts

    @classmethod
    def title(cls, parameters: P) -> str:
        if parameters.file:
            return join_words(parameters.precision, parameters.file.name)
        batch = f"b{parameters.batch_size}" if parameters.batch_size else ""
        return join_words(parameters.precision, ", ".join(parameters.models), parameters.scale, batch)

    @classmethod
    def check(cls, parameters: P, case: Case) -> None:
        """Refuse a list that cannot be read, and unknown models."""
        if parameters.file is not None:
            if case.origin != "local":
                message = (
                    f"file = {parameters.file} is refused: a job from the network may not read files here; name models"
                )
                raise InputError("not-from-network", message, key="file", value=str(parameters.file))
            both = sorted({"models", "scale", "batch_size"} & parameters.model_fields_set)
            if both:
                message = f"file = {parameters.file} alongside {', '.join(both)}: give the file alone, or models"
                raise InputError("conflicting-keys", message, key="file", value=str(parameters.file))
            read_list(parameters.file, cls.kind)
            return
        for name in parameters.models:
            check_model(name, is_local=case.origin == "local", key="models")

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        from paceline.models import MODELS

        specs = [MODELS.registry().entries.get(str(name)) for name in parameters.get("models", ())]
        names = ["torch", "torch.utils.flop_counter"]
        if parameters.get("file") is None:
            names += [name for spec in specs if spec for name in spec.imports]
        return tuple(dict.fromkeys(names))

    @abstractmethod
    def recognise(self, operator: str, arguments: Sequence[Any]) -> Function | None:
        """The function that an operator of torch is called for, if it is of this kind."""

    @abstractmethod
    def calls(
        self, parameters: P, device: Device, function: Any
    ) -> Iterator[tuple[At, Callable[[], Product | Convolution]]]:
        """The points that one function makes, each with what brings the operands of its call into memory."""

    def compare(
        self, parameters: P, device: Device, session: MicroSession, times: Mapping[Any, Measurement]
    ) -> list[Measurement]:
        """What else there is to say of the functions, in view of the time of each."""
        return []

    def measure(self, parameters: P, context: Context) -> Result:
        device = open_device(context.target)
        formats.check_device(parameters.precision, device)
        functions, source = self._list(parameters, device, context)
        chosen = largest(functions, parameters.most or (None if parameters.file else MOST_TRACED))
        measurements: list[Measurement] = []
        worst = seconds = work = 0.0
        times: dict[Function, Measurement] = {}
        with MicroSession(parameters, context, device) as session:
            points = [(one, *call) for one in chosen for call in self.calls(parameters, device, one)]
            for one, at, prepare in points:
                prepared = prepare()
                prepared.check()
                point = session.time(prepared.call, TIME, at=at, work=one.work, rate_unit="FLOP/s", graph=True)
                prepared.check()
                worst = max(worst, prepared.worst)
                measurements += [point.rate(COMPUTE_RATE, one.work), point.time]
                times[one] = point.time
                seconds += chosen[one] * point.time.summary.mean
                work += chosen[one] * one.work
            measurements += self.compare(parameters, device, session, times)
        total = Measurement.of_value(TOTAL_TIME, seconds)
        share, peak_facts = peak_share(peak_flops(device.name, parameters.precision), work, total)
        whole = [Measurement.of_rate(COMPUTE_RATE, work, total), *share, total]
        facts = {
            "source": source,
            "functions": [
                {"function": one.label, "count": count} | one.model_dump(exclude={"name"}, mode="json")
                for one, count in chosen.items()
            ],
            "distinct": f"{len(chosen)} of {len(functions)} distinct {self.what}, "
            f"{work_share(chosen, functions):.1%} of the work",
            "operations": f"{work:g} in one pass; all work over all time, each function counted as often as called",
            **peak_facts,
            "checked": f"each function before and after, against fp64; largest error {worst:.3g} of what the format "
            "allows",
        }
        return session.result(whole + measurements, facts | self.how)

    def _list(self, parameters: P, device: Device, context: Context) -> tuple[Counted[Any], str]:
        if parameters.file is not None:
            return read_list(parameters.file, self.kind), f"the file {parameters.file.name}"
        on_cpu = not device.kind.is_accelerator
        scale: Scale = parameters.scale or ("tiny" if on_cpu else "full")
        functions: Counter[Any] = Counter()
        sources = []
        for name in parameters.models:
            spec = find_model(name, allow_import=context.case.origin == "local", key="models")
            batch = parameters.batch_size or (1 if on_cpu else spec.batch_size)
            functions.update(trace(spec, scale, batch, self.recognise))
            sources.append(f"{name} with batch {batch}")
        if not functions:
            raise Unsupported(f"{', '.join(parameters.models)} has no {self.what}: choose other models")
        return dict(functions), f"forward pass of {'; '.join(sources)}; scale {scale}"


def trace(spec: ModelSpec, scale: Scale, batch: int, recognise: Recognise[F]) -> Counted[F]:
    """Every function that a model's forward pass calls, and how often; in evaluation mode, nothing is computed."""
    import torch
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    functions: Counter[F] = Counter()

    class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            function = recognise(func.overloadpacket.__name__, args)
            if function is not None:
                functions[function] += 1
            return func(*args, **(kwargs or {}))

    with torch.device("meta"):
        workload = spec.build(scale)
    module = workload.module.eval()
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        raise Unsupported(
            f"{spec.name}: a recurrent layer is one kernel, not a list of functions; choose another model"
        )
    inputs = workload.make_batch(batch, torch.Generator()).to(torch.device("meta")).inputs
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Notes():  # type: ignore[no-untyped-call]
        module(*inputs)
    return dict(functions)


def read_list(file: Path, kind: type[F]) -> Counted[F]:
    """The functions in a user's file, in their order; a mistake is refused with its place and what to write."""
    text = read_text(file, "the file", key="file", hint="give the path of a YAML or JSON list")
    with located(str(file), key="file"):
        document = read_yaml(text)
    if not isinstance(document, list) or not document:
        what = "is empty" if not document else f"holds a {type(document).__name__}"
        message = f"{file} {what}: write a list of functions, each like {kind.EXAMPLE}"
        raise InputError("not-a-list" if document else "empty-list", message, key="file", value=str(file))
    functions: Counter[F] = Counter()
    labels: dict[str, F] = {}
    for number, entry in enumerate(document, start=1):
        with located(f"{file}, entry {number}"):
            function, count = _function(entry, kind)
            if labels.setdefault(function.label, function) != function:
                message = f"another function is called '{function.label}' already; choose another name"
                raise InputError("duplicate-name", message, key="file", value=function.label)
        functions[function] += count
    return dict(functions)


def _function(entry: object, kind: type[F]) -> tuple[F, int]:
    """One entry of the list, and how often it is called."""
    if not isinstance(entry, dict):
        message = f"{entry!r} is not a function; write it like {kind.EXAMPLE}"
        raise InputError("not-a-function", message, key="file", value=entry)
    fields = dict(entry)
    count = fields.pop("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        message = f"'count' = {count!r} must be a whole number from 1: how often it is called"
        raise InputError("invalid-count", message, key="file", value=count)
    try:
        function = kind.model_validate(fields)
    except ValidationError as error:
        first = refusal(error.errors(), kind)
        message = f"{first.message}; write it like {kind.EXAMPLE}"
        raise InputError(first.code, message, key="file", value=first.value, suggestion=first.suggestion) from None
    if function.complaint():
        raise InputError("impossible-function", function.complaint(), key="file", value=entry)
    return function, count


def largest(functions: Counted[F], most: int | None) -> Counted[F]:
    """Those with the most work in all their calls, most first; everything in its own order where nothing is cut."""
    if most is None or most >= len(functions):
        return functions
    # Stable: ties stay in their order.
    ordered = sorted(functions, key=lambda function: -functions[function] * function.work)
    return {function: functions[function] for function in ordered[:most]}


def work_share(chosen: Counted[F], functions: Counted[F]) -> float:
    """How much of the list's work is chosen."""
    part, whole = (sum(count * one.work for one, count in counted.items()) for counted in (chosen, functions))
    return part / whole
