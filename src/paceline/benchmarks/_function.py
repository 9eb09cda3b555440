"""Times a Python function, call after call; `paceline.benchmark` makes a benchmark of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from paceline.benchmarks._micro.parameters import MicroParameters
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Benchmark, Context
from paceline.core.metric import Better, Metric
from paceline.core.record import Result
from paceline.devices import open_device

TIME = Metric(name="time", unit="s", better=Better.LOWER, description="of one call")


class FunctionBenchmark(Benchmark[MicroParameters]):
    """One call after the other; on an accelerator each is waited for, as its caller would."""

    category = "other"
    metrics = (TIME,)
    call: ClassVar[Callable[..., object]]
    arguments: ClassVar[tuple[str, ...]]  # which of the parameters the function takes

    @classmethod
    def title(cls, parameters: MicroParameters) -> str:
        given = parameters.model_dump(mode="json")
        return " ".join(f"{name}={given[name]}" for name in cls.arguments)

    def measure(self, parameters: MicroParameters, context: Context) -> Result:
        device = open_device(context.target)
        function = type(self).call
        call = partial(function, **{name: getattr(parameters, name) for name in self.arguments})
        with MicroSession(parameters, context, device) as session:
            point = session.time(call, TIME, each=device.kind.is_accelerator)
        source = f"{function.__module__}.{function.__qualname__}"
        return session.result([point.time], {"function": source, "calls_per_sample": point.calls})
