"""A benchmark: a name, typed parameters, the metrics it yields, and `measure()`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import ValidationError

from paceline.core.case import Case
from paceline.core.device import ALL, split_target
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.metric import Metric
from paceline.core.parameters import Parameters, is_size
from paceline.core.record import Record, Result
from paceline.core.registry import Kind
from paceline.core.subject import Description, Economy, Pace, Precision, StepTrace, Subject


def usual_description(record: Record, primary: str) -> Description:
    """What any benchmark's record says, by the usual names of facts and parameters."""
    facts, parameters = record.facts, record.case.parameters
    precision = facts.get("precision") or parameters.get("precision")
    batch = facts.get("global_batch_size") or facts.get("batch_size") or parameters.get("batch_size")
    compiled, timing = facts.get("compiled"), facts.get("timing")
    subject = Subject(
        model=_text(parameters.get("model")) or _text(facts.get("model")),
        scale=_text(parameters.get("scale")),
        precision=precision if precision in get_args(Precision) else None,
        batch=_whole(batch),
        layout=_text(facts.get("layout")),
        device=_text(facts.get("device")),
        engine=_text(facts.get("engine")) or _text(facts.get("backend")) or _text(facts.get("framework")),
        threads=_whole(facts.get("threads")),
        compiled=compiled if isinstance(compiled, bool) else None,
        seed=_whole(parameters.get("seed")),
    )
    carbon = parameters.get("carbon")
    economy = Economy(
        energy_source=_text(facts.get("energy_source")) or "",
        price_basis=_text(facts.get("price_basis")) or "",
        carbon=float(carbon) if isinstance(carbon, int | float) and not isinstance(carbon, bool) else None,
    )
    fields, trace = facts.get("trace"), None
    if isinstance(fields, Mapping) and fields.keys() & {"spent", "missing", "file"}:
        fields = dict(fields)
        if "cut_short" in facts:
            fields["missing"] = f"{fields.get('missing', '')}: {facts['cut_short']}"
        try:
            trace = StepTrace.model_validate(fields)
        except ValidationError:
            files = {key: value for key, value in fields.items() if key in ("file", "no_file")}
            trace = StepTrace(missing="another version of Paceline took it; the file may still exist", **files)
    return Description(
        primary=primary,
        subject=subject,
        economy=economy,
        trace=trace,
        timing="; ".join(map(str, timing)) if isinstance(timing, list) else _text(timing) or "",
        pace=_pace(facts.get("pace")),
    )


def _pace(fields: object) -> Pace | None:
    try:
        return Pace.model_validate(fields) if isinstance(fields, Mapping) else None
    except ValidationError:  # another version's, or a plug-in's fact of the same name
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


P = TypeVar("P", bound=Parameters)
START_SECONDS = 5.0  # of a case beyond its budget: start-up, making the model


@dataclass(frozen=True)
class Progress:
    """Where a case stands while it runs; samples are those taken since the last report."""

    phase: str  # preparing, compiling, warming up, measuring, ...
    metric: str = ""
    unit: str = ""
    samples: tuple[float, ...] = ()
    work: float | None = None  # per sample, to show a rate
    rate_unit: str = ""
    load: Mapping[str, float] = field(default_factory=dict)  # of a server's last second: rate, failures, p50, p99


@dataclass(frozen=True)
class Context:
    """What a case's process knows besides its parameters."""

    case: Case
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    report: Callable[[Progress], None] = field(default=lambda _progress: None)
    keep: Callable[[Result], None] = field(default=lambda _result: None)  # this stands, whatever happens from now on
    began: float = field(default_factory=time.perf_counter)

    @property
    def target(self) -> str:
        """Where this rank runs; `KIND:*` and several ranks give each rank the device of its local rank."""
        kind, index = split_target(self.case.target)
        if index and (index == ALL or self.world_size > 1):
            return f"{kind}:{self.local_rank}"
        return self.case.target


class Benchmark(ABC, Generic[P]):
    """Base of every benchmark; a subclass in a scanned module is registered by its `name`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    category: ClassVar[str] = "other"  # compute, memory, communication, storage, training, ...: a report's sections
    Parameters: ClassVar[type[Parameters]]  # the class in the brackets of its base, unless another is named
    metrics: ClassVar[tuple[Metric, ...]]
    primary: ClassVar[str]  # the metric that leads a report: the first one, unless another is named
    distributed: ClassVar[bool] = False  # whether several ranks may measure it together
    launches_ranks: ClassVar[bool] = False  # those of one host itself, so that a case has several over hosts alone
    traceable: ClassVar[bool] = False  # whether it takes a trace of its steps where the case wants one
    is_within_device: ClassVar[bool] = False  # whatever its parameters are; see within_device

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "primary") and hasattr(cls, "metrics"):
            cls.primary = cls.metrics[0].name
        arguments = [one for base in vars(cls).get("__orig_bases__", ()) for one in get_args(base)]
        if arguments and isinstance(arguments[0], type) and "Parameters" not in vars(cls):
            cls.Parameters = arguments[0]

    @abstractmethod
    def measure(self, parameters: P, context: Context) -> Result:
        """Do the work and return what was seen; runs in a process of its own."""

    @classmethod
    def title(cls, parameters: P) -> str:
        """What tells this case from others, in a few words."""
        changed = parameters.model_dump(exclude_defaults=True, mode="json")
        return " ".join(f"{key}={value}" for key, value in changed.items())

    @classmethod
    def written_out(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values as parameters have them, of a user who named them in another form, such as a file that says them.

        Never called for a case that came over the network.
        """
        return values

    @classmethod
    def check(cls, parameters: P, case: Case) -> None:
        """Refuse, before anything runs, what the parameters alone do not show to be wrong (raise InputError)."""

    @classmethod
    def describe(cls, record: Record, parameters: P, environment: Environment) -> Description:
        """What a record of this benchmark says of itself to programs; asked once, however the case ended.

        Fields that are not set are the usual ones: facts of the usual names are read for every record.
        """
        return usual_description(record, cls.primary)

    @classmethod
    def ranks(cls, parameters: P) -> int | None:
        """How many ranks the parameters themselves call for; None leaves it to the suite and the target."""
        return None

    @classmethod
    def nodes(cls, parameters: P) -> int | None:
        """Over how many hosts the parameters themselves spread the ranks; None leaves it to where they are started."""
        return None

    @classmethod
    def within_device(cls, parameters: P) -> bool:
        """Whether it needs of the host and its links next to nothing, so that devices are measured at the same time."""
        return cls.is_within_device

    @classmethod
    def expected_seconds(cls, parameters: P) -> float | None:
        """How long a case would take that nobody has run yet; None where nobody can say."""
        budget = getattr(parameters, "budget", None)
        return float(budget) + START_SECONDS if isinstance(budget, int | float) and budget > 0 else None

    @classmethod
    def shortened(cls, parameters: P, part: float) -> P:
        """The same measured for this part of its time; InputError where nothing says how long it takes."""
        budget = getattr(parameters, "budget", None)
        if not isinstance(budget, int | float):
            message = f"'{cls.name}' has no budget of time that shorter trials could take a part of"
            raise InputError("no-budget", message, value=cls.name)
        return parameters.model_copy(update={"budget": part * budget})

    @classmethod
    def sends(cls, parameters: P) -> str:
        """What a case sends to a server, in words, before it does; empty for one that sends nothing."""
        return ""

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """Heavy modules that the warm server should have imported before it forks a case.

        Next to the parameters there is the `target`.
        """
        return ()


BENCHMARKS: Kind[type[Benchmark[Any]]] = Kind("benchmark", "benchmarks", Benchmark)


@cache
def size_parameters(name: str) -> frozenset[str]:
    """The parameters of a benchmark that are sizes in bytes; none of one that is not here."""
    try:
        fields = BENCHMARKS.get(name).Parameters.model_fields
    except InputError:
        return frozenset()
    return frozenset(key for key, field in fields.items() if is_size(field))


def described(record: Record, environment: Environment) -> Record:
    """The record with what its benchmark says of it; if that is missing or wrong, with what all records say."""
    description = usual_description(record, "")
    try:
        benchmark = BENCHMARKS.get(record.case.benchmark)
        description = usual_description(record, benchmark.primary)
        parameters = benchmark.Parameters.read(record.case.parameters)
        own = benchmark.describe(record, parameters, environment)
        description = description.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
    except InputError:  # a plug-in that is not here, or parameters of another version
        pass
    except Exception as error:  # a plug-in's mistake: nothing measured may be lost
        reason = f"{type(error).__name__}: {error}"
        return record.model_copy(update={"facts": record.facts | {"not_described_because": reason}})
    return record.model_copy(update={name: getattr(description, name) for name in Description.model_fields})
