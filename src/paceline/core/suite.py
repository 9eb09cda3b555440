"""A suite: an ordered list of cases; a list under a parameter expands to a matrix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from paceline.core.benchmark import Benchmark
from paceline.core.case import Case, Origin
from paceline.core.errors import InputError, nearest, unknown
from paceline.core.parameters import Parameters, explain
from paceline.core.quantity import Duration

DEFAULT_TIMEOUT = 600.0
MOST_CASES = 20_000

AnyBenchmark = Benchmark[Any]


class CaseKeys(BaseModel):
    """What an entry of a suite may say beside the parameters of its benchmark."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    benchmark: str
    """Which benchmark to run"""
    target: str = "auto"
    """Where to run: auto, cpu, cuda:0, cuda:*"""
    ranks: int | None = Field(default=None, ge=1)
    """How many processes measure together (data parallel)"""
    timeout: Duration = Field(default=DEFAULT_TIMEOUT, gt=0)
    """End the case after this time"""
    repeat: int = Field(default=1, ge=1, le=10_000)
    """Measure the case this many times, each in a process of its own"""
    require: bool = False
    """Count it as a failure when this machine cannot do it; else an unsupported case is only reported"""
    only_on: Literal["cpu", "cuda", "gpus", "layout"] | None = None
    """Leave the case out unless the machine has such a device (cpu: unless it has no GPU; gpus: several of them;
    layout: as many as the case's layout names, on as many hosts)"""

    @field_validator("target")
    @classmethod
    def _known_target(cls, value: str) -> str:
        kind, _, index = value.partition(":")
        if kind in ("auto", "cpu") and not index:
            return kind
        if kind == "cuda" and (index in ("", "*") or index.isdecimal()):
            return value if index else "cuda:0"
        raise ValueError(f"'{value}' is not a target; write auto, cpu, cuda:0 or cuda:*")


class Suite(BaseModel):
    """A suite as it was written."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str = ""
    cases: list[dict[str, Any]]
    origin: Origin = "local"
    is_written: bool = True  # by somebody, as a file; False for a benchmark that was named alone

    @classmethod
    def of_benchmark(cls, name: str) -> Suite:
        """One benchmark as a suite of one case, its parameters still to come."""
        return cls(name=name, cases=[{"benchmark": name}], is_written=False)

    @classmethod
    def read(cls, document: object, where: str, *, origin: Origin = "local") -> Suite:
        """Check a parsed document's outer shape; the cases are checked when they are expanded."""
        if not isinstance(document, Mapping):
            kind = "empty" if document is None else f"a {type(document).__name__}"
            raise InputError(f"{where}: a suite is a mapping with 'name' and 'cases', but this is {kind}")
        known = {"name", "description", "cases"}
        for key in document:
            if key not in known:
                guess = nearest(str(key), known)
                hint = f"did you mean '{guess}'?" if guess else "what belongs to a case stands in its entry, indented"
                raise InputError(f"{where}: unknown key '{key}': {hint}")
        cases = document.get("cases")
        if not cases:
            raise InputError(f"{where}: the suite has no cases; add at least one '- benchmark: NAME' under 'cases:'")
        if not isinstance(cases, list):
            raise InputError(f"{where}: 'cases' must be a list of mappings, each beginning with '- benchmark: NAME'")
        for number, entry in enumerate(cases, start=1):
            _refuse_other_shape(entry, f"{where}, case {number}")
        if "name" not in document:
            raise InputError(f"{where}: 'name' is missing; add 'name: ...' at the top")
        try:
            return cls.model_validate({**document, "cases": [dict(entry) for entry in cases], "origin": origin})
        except ValidationError as error:
            raise InputError(f"{where}: {explain(error, cls)}") from None


def _refuse_other_shape(entry: object, where: str) -> None:
    """An entry of a suite is a mapping whose keys are texts."""
    if not isinstance(entry, Mapping):
        found = "empty" if entry is None else repr(entry)
        raise InputError(f"{where} is {found}, but must be a mapping; write '- benchmark: NAME'")
    for key in entry:
        if not isinstance(key, str):
            raise InputError(f"{where}: the key {key!r} is no name of a parameter; write 'NAME: {entry[key]}'")


class Here(BaseModel):
    """What expansion must know of the machine."""

    gpus: int = 0
    world: int = 1  # ranks that measure together: processes of a launcher, or on several hosts
    nodes: int = 1  # hosts that they are on

    def resolve(self, target: str) -> str:
        """`auto` becomes the first GPU, or the CPU where there is none."""
        if target == "auto":
            return "cuda:0" if self.gpus else "cpu"
        return target

    def offers(self, device: str | None) -> bool:
        """Whether a case that is `only_on` this device belongs here."""
        if device == "gpus":
            return self.gpus > 1
        return device is None or (device in ("cuda", "layout")) == (self.gpus > 0)

    def fits(self, ranks: int | None, nodes: int | None) -> bool:
        """Whether that many ranks on that many hosts can measure here, each with a GPU of its own."""
        if self.world > 1:
            return (ranks or self.world) == self.world and (nodes or self.nodes) == self.nodes
        return (ranks or 1) <= self.gpus and (nodes or 1) == 1


def expand(
    suite: Suite,
    lookup: Callable[[str], type[AnyBenchmark]],
    here: Here,
    overrides: Mapping[str, Any] | None = None,
    most_cases: int = MOST_CASES,
) -> list[Case]:
    """Every case of the suite with all its parameters, in order; bad input is refused before anything runs."""
    entries = [_checked_name(entry, f"{suite.name}, case {n}") for n, entry in enumerate(suite.cases, start=1)]
    benchmarks = [_found(lookup, entry["benchmark"], suite, n) for n, entry in enumerate(entries, start=1)]
    entries = _override(entries, benchmarks, overrides or {})
    cases: list[Case] = []
    for number, (entry, benchmark) in enumerate(zip(entries, benchmarks, strict=True), start=1):
        where = f"{suite.name}, case {number} ({benchmark.name})"
        for choice in _matrix(entry, {**CaseKeys.model_fields, **benchmark.Parameters.model_fields}, where):
            keys, parameters = _split(choice, benchmark, where)
            wanted, nodes = benchmark.ranks(parameters), benchmark.nodes(parameters)
            if not here.offers(keys.only_on) or (keys.only_on == "layout" and not here.fits(wanted, nodes)):
                continue
            target = here.resolve(keys.target)
            ranks = _ranks(keys, target, here, benchmark, wanted, where)
            if ranks > 1 and target.startswith("cuda:") and target not in ("cuda:*", "cuda:0"):
                raise InputError(
                    f"{where}: {ranks} ranks take {ranks} GPUs, but the target is {target} alone; "
                    "use target cuda:* and choose GPUs with CUDA_VISIBLE_DEVICES"
                )
            if ranks > 1 and not benchmark.distributed:
                raise InputError(f"{where}: '{benchmark.name}' runs on one rank, but ranks = {ranks}")
            for repeat in range(1, keys.repeat + 1):
                case = Case(
                    index=len(cases),
                    benchmark=benchmark.name,
                    parameters=parameters.model_dump(mode="json"),
                    title=benchmark.title(parameters) + (f" x{ranks}" if ranks > 1 else ""),
                    target=target,
                    ranks=ranks,
                    timeout=keys.timeout,
                    repeat=repeat,
                    require=keys.require,
                    category=benchmark.category,
                    origin=suite.origin,
                )
                if repeat == 1:
                    try:
                        benchmark.check(parameters, case)
                    except InputError as error:
                        raise InputError(f"{where}: {error}") from None
                    _refuse_other_nodes(nodes, here, where)
                cases.append(case)
                if len(cases) > most_cases:
                    raise InputError(f"{where}: the suite has more than {most_cases:,} cases; shorten its lists")
    if not cases:
        device = "a GPU" if here.gpus else "no GPU"
        raise InputError(f"{suite.name}: no case is left on this machine, which has {device}; see 'only_on'")
    return cases


def _ranks(
    keys: CaseKeys, target: str, here: Here, benchmark: type[AnyBenchmark], wanted: int | None, where: str
) -> int:
    if wanted is not None:
        told = keys.ranks or (here.world if here.world > 1 else wanted)
        if told != wanted:
            raise InputError(f"{where}: its parameters call for {wanted} ranks, but there are {told}")
        return wanted
    if here.world > 1:
        if keys.ranks not in (None, here.world):
            raise InputError(f"{where}: ranks = {keys.ranks}, but {here.world} processes were started together")
        # What one process measures alone is measured by the first.
        return here.world if benchmark.distributed else 1
    return keys.ranks or (max(1, here.gpus) if target == "cuda:*" else 1)


def _refuse_other_nodes(wanted: int | None, here: Here, where: str) -> None:
    if wanted not in (None, here.nodes):
        remedy = "name the hosts with --hosts a,b" if here.nodes == 1 else "change the layout, or name other hosts"
        raise InputError(f"{where}: its layout is for {wanted} nodes, but it would run on {here.nodes}: {remedy}")


def _found(lookup: Callable[[str], type[AnyBenchmark]], name: str, suite: Suite, number: int) -> type[AnyBenchmark]:
    try:
        return lookup(name)
    except InputError as error:
        raise InputError(f"{suite.name}, case {number}: {error}") from None


def _checked_name(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    name = entry.get("benchmark")
    if name is None:
        guess = next((key for key in entry if nearest(str(key), ["benchmark"])), None)
        hint = f"did you mean 'benchmark' by '{guess}'?" if guess else "write '- benchmark: NAME'"
        raise InputError(f"{where}: 'benchmark' is missing; {hint}")
    if not isinstance(name, str):
        raise InputError(f"{where}: 'benchmark' = {name!r} must be one name")
    return dict(entry)


def _override(
    entries: list[dict[str, Any]], benchmarks: list[type[AnyBenchmark]], overrides: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Put `key=value` into every entry that has the key; `benchmark.key=value` into that benchmark's alone.

    A key with a dot names a part of a parameter that has parts: `load.rate=100`, `serve.load.rate=100`.
    """
    entries = [dict(entry) for entry in entries]
    names = {benchmark.name.replace("-", "_"): benchmark.name for benchmark in benchmarks}
    for path, value in overrides.items():
        first, _, rest = path.partition(".")
        scope = names.get(first.replace("-", "_"), "") if rest else ""  # keys are read with underscores
        key, _, part = (rest if scope else path).partition(".")
        used = False
        known: set[str] = set()
        for entry, benchmark in zip(entries, benchmarks, strict=True):
            fields = set(benchmark.Parameters.model_fields) | set(CaseKeys.model_fields) - {"benchmark"}
            if scope in ("", benchmark.name):
                known |= fields
                if key in fields:
                    entry[key] = _with_part(entry.get(key), part, value, path) if part else value
                    used = True
        if not used and part and not scope:
            raise unknown("benchmark in --set", key, names.values())
        if not used:
            raise InputError(f"--set {path}: {unknown('key', key, known)}")
    return entries


def _with_part(whole: object, part: str, value: Any, path: str) -> dict[str, Any]:
    """A parameter that has parts, with one of them changed."""
    if whole is not None and not isinstance(whole, Mapping):
        raise InputError(f"--set {path}: the suite gives {path.rpartition('.')[0]} as {whole!r}, which has no parts")
    return {**(whole or {}), part: value}


def _split(choice: Mapping[str, Any], benchmark: type[AnyBenchmark], where: str) -> tuple[CaseKeys, Parameters]:
    own = {key: value for key, value in choice.items() if key in CaseKeys.model_fields}
    rest = {key: value for key, value in choice.items() if key not in CaseKeys.model_fields}
    fields = benchmark.Parameters.model_fields
    for key in rest:
        if key not in fields:
            raise InputError(f"{where}: {unknown('key', str(key), [*fields, *CaseKeys.model_fields])}")
    try:
        keys = CaseKeys.model_validate(own)
    except ValidationError as error:
        raise InputError(f"{where}: {explain(error, CaseKeys)}") from None
    return keys, benchmark.Parameters.read(rest, where)


def _matrix(entry: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Every combination of the lists in the entry; the last list varies fastest."""
    axes = [
        _choices(value, fields[key].annotation if key in fields else None, f"{where}: '{key}'")
        for key, value in entry.items()
    ]
    for combination in itertools.product(*axes):
        yield dict(zip(entry, combination, strict=True))


def _choices(value: object, annotation: Any, where: str) -> list[Any]:
    if isinstance(value, list):
        if not _takes_list(annotation):
            if not value:
                raise InputError(f"{where} is an empty list; give at least one value, or leave the key out")
            return value
        return value if value and all(isinstance(item, list) for item in value) else [value]
    if isinstance(value, Mapping):
        parts = parts_of(annotation, value)
        if parts is not None:
            return list(_matrix(value, parts, where))
    return [value]


def _takes_list(annotation: Any) -> bool:
    if get_origin(annotation) in (list, tuple, set):
        return True
    return any(_takes_list(part) for part in get_args(annotation) if part is not annotation)


def parts_of(annotation: Any, values: Mapping[str, Any]) -> dict[str, FieldInfo] | None:
    """The fields of a parameter that has parts, where these have the values; None for one without parts."""
    inner = model_of(annotation)
    if inner is None:
        return None
    more = inner.more_fields(values) if issubclass(inner, Parameters) else {}
    return {**inner.model_fields, **more}


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model among the types of a parameter that has parts, if there is one."""
    candidates = [annotation, *get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
