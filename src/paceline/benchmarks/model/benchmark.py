"""What every benchmark of a whole model says of itself before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from paceline.benchmarks.model.metrics import FLOP_RATE
from paceline.benchmarks.model.parameters import ModelParameters
from paceline.benchmarks.model.superbench import Action as SuperbenchAction
from paceline.benchmarks.model.superbench import superbench_names
from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.record import Record
from paceline.core.subject import Description

P = TypeVar("P", bound=ModelParameters)


class ModelBenchmark(Benchmark[P]):
    """A benchmark whose parameters name a model."""

    action: ClassVar[SuperbenchAction]
    primary = "throughput"
    distributed = True
    traceable = True

    @classmethod
    def title(cls, parameters: P) -> str:
        """Model, precision and whatever else was asked for."""
        words = [parameters.model, parameters.precision]
        if parameters.scale != "full":
            words.append(parameters.scale)
        if parameters.batch_size is not None:
            words.append("auto batch" if parameters.batch_size == "auto" else f"b{parameters.batch_size}")
        if parameters.compile == "on":
            words.append("compiled")
        if parameters.graph:
            words.append("graph")
        if parameters.deterministic:
            words.append("deterministic")
        return " ".join(words)

    @classmethod
    def check(cls, parameters: P, case: Case) -> None:
        """Refuse an unknown model, and a user's own where it may not be imported."""
        from paceline.models.user import find_model, is_reference

        if not is_reference(parameters.model):
            find_model(parameters.model, allow_import=False)
        elif case.origin != "local":
            message = (
                f"model '{parameters.model}' would import code, which a job from the network may not do; "
                "name a model of the zoo"
            )
            raise InputError("not-from-network", message, key="model", value=parameters.model)

    @classmethod
    def describe(cls, record: Record, parameters: P, environment: Environment) -> Description:
        """Its work, SuperBench's names for it, and what could be switched on to give the device more at once."""
        said = super().describe(record, parameters, environment)
        trace = said.trace
        if trace is not None:
            ways = [] if said.subject.compiled else ["--compile on"]
            ways += [] if parameters.graph else ["--graph"]
            trace = trace.model_copy(update={"switches": tuple(ways)})
        return said.model_copy(
            update={
                "trace": trace,
                "counts_work": record.measurement(FLOP_RATE.name) is not None,
                "aliases": superbench_names(record, parameters, cls.action),
            }
        )

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What the first step would otherwise import again in every case."""
        from paceline.models import registry

        spec = registry().entries.get(str(parameters.get("model")))
        wanted = list(spec.imports) if spec else ["torch"]
        # The first optimizer step imports the compiler, whether it compiles or not.
        wanted += ["torch._dynamo", "torch.utils.flop_counter", "torch.nn.parallel"]
        if str(parameters.get("precision")).startswith("fp8"):
            wanted.append("torchao.float8")
        return tuple(wanted)
