"""A suite: an ordered list of cases; a list under a parameter expands to a matrix."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from paceline.core.benchmark import Benchmark
from paceline.core.case import RENAMED, Case, Origin, current_names
from paceline.core.device import ALL, AUTO, EACH, HOST, TARGET_KINDS, accelerator_kinds, read_target, split_target
from paceline.core.errors import InputError, located, nearest, unknown
from paceline.core.grouping import group_by
from paceline.core.parameters import EachPart, Parameters, refusal
from paceline.core.quantity import Duration, Frequency, Power, Size

MOST_CASES = 20_000
PATIENCE = 2.0  # times what a case is made to take, before it is ended

AnyBenchmark = Benchmark[Any]


class CaseKeys(BaseModel):
    """What an entry of a suite may say besides the parameters of its benchmark."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    benchmark: str
    """Which benchmark to run"""
    target: Annotated[str, AfterValidator(read_target)] = "auto"
    """Where to run: auto, cpu, or a device as KIND:INDEX (cuda:0, rocm:1), one case over all of a kind as KIND:*, one
    case for each as KIND:each; the kind may be auto"""
    at_once: bool | None = None
    """With KIND:each, measure the devices at the same time; unset does where they share nothing of what is measured"""
    most_devices: int | None = Field(default=None, ge=1)
    """With KIND:each and KIND:*, take at most so many devices, the first ones; unset takes all"""
    ranks: int | None = Field(default=None, ge=1)
    """How many processes measure together (data parallel)"""
    timeout: Duration = Field(default=600.0, gt=0)
    """End the case after this time; unset is 10 minutes, or twice what a longer case is made to take"""
    memory_limit: Size | None = Field(default=None, gt=0)
    """End the case when its processes on a machine together take more host memory than this, as in 8GiB; unset is
    95 % of what is free when it starts"""
    power_limit: Power | None = Field(default=None, gt=0)
    """Hold each of its devices to this power while it runs, as in 400W, and then to what was set before; needs the
    permission to do so. On a CPU it is the limit of each package"""
    clock_limit: Frequency | None = Field(default=None, gt=0)
    """Hold the clock of each of its devices to at most this while it runs, as in 1400MHz; a clock that was locked by
    hand before is unlocked afterwards"""
    repeat: int = Field(default=1, ge=1, le=10_000)
    """Measure the case this many times, each in a process of its own, with the other cases in between"""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the environment of its processes, such as NCCL_P2P_DISABLE: "1" """
    superbench: str = ""
    """The name of its benchmark in SuperBench's results, where these are to have one with a note: nccl-bw:gdr-only"""
    require: bool = False
    """Count it as a failure when this machine cannot do it; otherwise an unsupported case is only reported"""
    only_on: str | None = None
    """Leave the case out unless the machine has such a device: gpu, gpus (several of them), cpu (no GPU), a kind of
    device (cuda, rocm), or layout (as many GPUs as the case's layout names, on as many hosts)"""

    @field_validator("only_on")
    @classmethod
    def _known_device(cls, value: str | None) -> str | None:
        devices = [HOST, "gpu", "gpus", "layout", *accelerator_kinds()]
        if value is None or value in devices:
            return value
        raise ValueError(f"'{value}' is not a device; write {', '.join(devices[:-1])} or {devices[-1]}")


AskedOf = Literal["hosts", "ranks", "each"]  # hosts, processes of each that measure together, or one by one


class Asked(BaseModel):
    """How many hosts or processes another tool's file asks for, where the machine decides how many measure."""

    model_config = ConfigDict(extra="forbid")

    what: str  # as its file says it: `nccl-bw, mode mpi, proc_num, 8`
    count: int
    of: AskedOf


class Suite(BaseModel):
    """A suite as it was written."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str = ""
    cases: list[dict[str, Any]]
    origin: Origin = "local"
    notes: list[str] = Field(default_factory=list)  # what of another tool's file has no counterpart, and why
    needless: list[str] = Field(default_factory=list)  # what of it is not needed here, and why
    asked: list[Asked] = Field(default_factory=list)  # what of it depends on the machine
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
            message = f"a suite is a mapping with 'name' and 'cases', but this is {kind}"
            raise InputError("not-a-suite", message, where=where)
        keys = {"name", "description", "cases"}
        for key in document:
            if key not in keys:
                guess = nearest(str(key), keys)
                hint = f"did you mean '{guess}'?" if guess else "keys of a case belong in its entry, indented"
                message = f"unknown key '{key}': {hint}"
                raise InputError("unknown-key", message, where=where, key=str(key), suggestion=guess)
        cases = document.get("cases")
        if not cases:
            message = "the suite has no cases; add at least one '- benchmark: NAME' under 'cases:'"
            raise InputError("no-cases", message, where=where, key="cases")
        if not isinstance(cases, list):
            message = "'cases' must be a list of mappings, each beginning with '- benchmark: NAME'"
            raise InputError("not-a-list", message, where=where, key="cases")
        for number, entry in enumerate(cases, start=1):
            in_entry = f"{where}, case {number}"
            if not isinstance(entry, Mapping):
                shown = "empty" if entry is None else repr(entry)
                message = f"the entry is {shown}, but must be a mapping; write '- benchmark: NAME'"
                raise InputError("not-a-mapping", message, where=in_entry, case=number)
            for key in entry:
                if isinstance(key, str):
                    continue
                message = f"the key {key!r} is not the name of a parameter; write 'NAME: {entry[key]}'"
                raise InputError("not-a-name", message, where=in_entry, case=number, key=str(key))
        if "name" not in document:
            raise InputError("missing-key", "'name' is missing; add 'name: ...' at the top", where=where, key="name")
        try:
            return cls.model_validate({**document, "cases": [dict(entry) for entry in cases], "origin": origin})
        except ValidationError as error:
            raise refusal(error.errors(), cls).within(where) from None


class Here(BaseModel):
    """What expansion must know of the machine."""

    model_config = ConfigDict(extra="forbid")

    devices: dict[str, int] = Field(default_factory=dict)  # kind: how many; `auto` takes the first that has any
    world: int = 1  # ranks that measure together: processes of a launcher, or on several hosts
    nodes: int = 1  # hosts that they are on
    parts: dict[str, list[int | str]] = Field(default_factory=dict)  # that a parameter can name, by what they are

    @classmethod
    def with_devices(cls, count: int, kind: str | None, *, world: int, nodes: int) -> Here:
        """A machine with so many devices of one kind, the first there is unless another is named."""
        kind = kind or next(iter(accelerator_kinds()), HOST)
        return cls(devices={kind: count} if count else {}, world=world, nodes=nodes)

    @property
    def kind(self) -> str:
        """The kind of device that `auto` takes."""
        return next((kind for kind, count in self.devices.items() if count), HOST)

    @property
    def gpus(self) -> int:
        """How many devices there are of that kind, the host's processors not counted."""
        return self.devices.get(self.kind, 0)

    def resolve(self, target: str) -> list[str]:
        """Where the cases of a target run: `auto` is the first device, or the CPU where there is none."""
        kind, index = split_target(target)
        if kind == AUTO:
            if not self.gpus:
                return [HOST]
            kind, index = self.kind, index or "0"
        if index == EACH:  # of a kind that is not here, the first is what cannot be measured
            return [f"{kind}:{number}" for number in range(max(1, self.devices.get(kind, 0)))]
        return [f"{kind}:{index}" if index else kind]

    def offers(self, device: str | None) -> bool:
        """Whether a case that is `only_on` this device belongs here."""
        if device is None:
            return True
        if device == "gpus":
            return self.gpus > 1
        if device in ("gpu", "layout"):
            return self.gpus > 0
        return self.gpus == 0 if device == HOST else self.devices.get(device, 0) > 0

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
    benchmarks = []
    for number, entry in enumerate(suite.cases, start=1):
        with located(f"{suite.name}, case {number}", case=number):
            name = entry.get("benchmark")
            if name is None:
                guess = next((key for key in entry if nearest(str(key), ["benchmark"])), None)
                hint = f"did you mean 'benchmark' by '{guess}'?" if guess else "write '- benchmark: NAME'"
                raise InputError("missing-key", f"'benchmark' is missing; {hint}", key="benchmark")
            if not isinstance(name, str):
                message = f"'benchmark' = {name!r} must be one name"
                raise InputError("not-a-name", message, key="benchmark", value=name)
            benchmarks.append(lookup(name))
    named = []
    for number, (entry, benchmark) in enumerate(zip(suite.cases, benchmarks, strict=True), start=1):
        with located(f"{suite.name}, case {number} ({benchmark.name})", case=number):
            for old, new in RENAMED.get(benchmark.name, {}).items():
                if old in entry and new in entry:
                    message = f"'{old}' is the earlier name of '{new}': leave '{old}' out"
                    raise InputError("duplicate-key", message, key=old, suggestion=new)
            named.append(current_names(benchmark.name, entry))
    entries = _override(named, benchmarks, overrides or {})
    cases: list[Case] = []
    for number, (entry, benchmark) in enumerate(zip(entries, benchmarks, strict=True), start=1):
        with located(f"{suite.name}, case {number} ({benchmark.name})", case=number):
            for case in _expand_entry(entry, benchmark, here, suite.origin):
                cases.append(case.model_copy(update={"index": len(cases)}))
                if len(cases) > most_cases:
                    message = f"the suite has more than {most_cases:,} cases; shorten its lists"
                    raise InputError("too-many-cases", message)
    if not cases:
        device = "a GPU" if here.gpus else "no GPU"
        message = f"no case is left on this machine, which has {device}; see 'only_on'"
        raise InputError("no-case-left", message, where=suite.name)
    return _spread(cases)


def _spread(cases: list[Case]) -> list[Case]:
    """The cases with their places in time: one repetition of each before the next of any, every time in another order.

    Repetitions one right after the other would see the same state of the machine, and call its drift a difference
    between cases. The order follows from the cases alone, so that all who expand a suite agree on it.
    """
    if all(case.repeat == 1 for case in cases):
        return cases
    draw = random.Random(" ".join(case.key for case in cases))
    order: list[int] = []
    for repetition in group_by(cases, lambda case: case.repeat).values():
        draw.shuffle(repetition)
        order += [case.index for case in repetition]
    places = {index: place for place, index in enumerate(order)}
    return [case.model_copy(update={"position": places[case.index]}) for case in cases]


def _expand_entry(
    entry: Mapping[str, Any], benchmark: type[AnyBenchmark], here: Here, origin: Origin
) -> Iterator[Case]:
    """The cases of one entry, each with the index 0."""
    entry = _with_parts(entry, benchmark.Parameters.model_fields, here)
    for choice in _matrix(entry, {**CaseKeys.model_fields, **benchmark.Parameters.model_fields}):
        of_case = {key: choice.pop(key) for key in list(choice) if key in CaseKeys.model_fields}
        if (key := next((key for key in choice if key not in benchmark.Parameters.model_fields), None)) is not None:
            raise unknown("key", key, [*benchmark.Parameters.model_fields, *CaseKeys.model_fields], key=key)
        try:
            keys = CaseKeys.model_validate(of_case)
        except ValidationError as error:
            raise refusal(error.errors(), CaseKeys) from None
        if keys.env and origin != "local":
            message = "'env' sets variables of processes, which nobody may do over the network; leave it out"
            raise InputError("not-from-network", message, key="env")
        for key in ("power_limit", "clock_limit"):
            if getattr(keys, key) is not None and origin != "local":
                message = f"'{key}' changes how a machine runs, which nobody may do over the network; leave it out"
                raise InputError("not-from-network", message, key=key)
        written = benchmark.written_out(choice) if origin == "local" else choice
        parameters = benchmark.Parameters.read(written, is_typed=True)
        is_launcher = benchmark.launches_ranks and here.nodes == 1
        required, nodes = 1 if is_launcher else benchmark.ranks(parameters), benchmark.nodes(parameters)
        if not here.offers(keys.only_on) or (keys.only_on == "layout" and not here.fits(required, nodes)):
            continue
        each = split_target(keys.target)[1] == EACH
        targets = here.resolve(keys.target)[: keys.most_devices if each else None]
        at_once = benchmark.within_device(parameters) if keys.at_once is None else keys.at_once
        cases = []
        for target in targets:
            ranks = _ranks(keys, target, here, benchmark, required) if not each else _one_rank(keys, required)
            case = Case(
                index=0,
                benchmark=benchmark.name,
                parameters=parameters.model_dump(mode="json"),
                title=benchmark.title(parameters) + (f" x{ranks}" if ranks > 1 else ""),
                target=target,
                ranks=ranks,
                timeout=keys.timeout,
                memory_limit=keys.memory_limit,
                power_limit=keys.power_limit,
                clock_limit=keys.clock_limit,
                require=keys.require,
                category=benchmark.category,
                origin=origin,
                env=keys.env,
                superbench=keys.superbench,
                at_once=at_once and len(targets) > 1,
            )
            case = case.model_copy(update={"title": f"{case.title} at {case.limits}"}) if case.limits else case
            benchmark.check(parameters, case)
            expected = benchmark.expected_seconds(parameters)
            # Who asks for hours need not ask for more time as well.
            most = PATIENCE * expected if expected and "timeout" not in of_case else 0.0
            known = {"sends": benchmark.sends(parameters), "expected": expected, "timeout": max(case.timeout, most)}
            cases.append(case.model_copy(update=known))
        if nodes not in (None, here.nodes):
            remedy = "name the hosts with --hosts a,b" if here.nodes == 1 else "change the layout, or name other hosts"
            message = f"its layout is for {nodes} nodes, but it would run on {here.nodes}: {remedy}"
            raise InputError("wrong-number-of-nodes", message, value=nodes)
        for case, repeat in itertools.product(cases, range(1, keys.repeat + 1)):
            yield case.model_copy(update={"repeat": repeat})


def _with_parts(entry: Mapping[str, Any], fields: Mapping[str, FieldInfo], here: Here) -> dict[str, Any]:
    """The entry with the parts of this machine in place of `each`; where there are not several, without the key."""
    written = dict(entry)
    for key, value in entry.items():
        part = next((one for one in fields[key].metadata if isinstance(one, EachPart)), None) if key in fields else None
        if part is not None and value == EACH:
            parts = here.parts.get(part.of, [])
            written = {**written, key: parts} if len(parts) > 1 else {k: v for k, v in written.items() if k != key}
    return written


def _one_rank(keys: CaseKeys, required: int | None) -> int:
    """With KIND:each every device is measured by itself."""
    ranks = keys.ranks or required or 1
    if ranks > 1:
        message = f"target {keys.target} measures each device alone, but ranks = {ranks}: use KIND:* for all at once"
        raise InputError("one-device-for-several-ranks", message, key="target", value=keys.target)
    return 1


def _ranks(keys: CaseKeys, target: str, here: Here, benchmark: type[AnyBenchmark], required: int | None) -> int:
    kind, index = split_target(target)
    if required is not None:
        ranks = keys.ranks or (here.world if here.world > 1 else required)
        if ranks != required:
            message = f"its parameters call for {required} ranks, but there are {ranks}"
            raise InputError("wrong-number-of-ranks", message, key="ranks", value=ranks)
    elif here.world > 1:
        if keys.ranks not in (None, here.world):
            message = f"ranks = {keys.ranks}, but {here.world} processes were started together"
            raise InputError("wrong-number-of-ranks", message, key="ranks", value=keys.ranks)
        # What one process measures alone is measured by the first.
        ranks = here.world if benchmark.distributed else 1
    else:
        devices = max(1, here.devices.get(kind, 0))
        ranks = keys.ranks or (min(devices, keys.most_devices or devices) if index == ALL else 1)
    if ranks > 1 and index not in ("", ALL, "0"):
        device = TARGET_KINDS.get(kind)
        choose = f" and choose {device.noun}s with {device.visible_variable}" if device.visible_variable else ""
        message = (
            f"{ranks} ranks take {ranks} {device.noun}s, but the target is {target} alone; use target {kind}:*{choose}"
        )
        raise InputError("one-device-for-several-ranks", message, key="target", value=target)
    if ranks > 1 and not benchmark.distributed:
        message = f"'{benchmark.name}' runs on one rank, but ranks = {ranks}"
        raise InputError("not-distributed", message, key="ranks", value=ranks)
    return ranks


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
        valid: set[str] = set()
        matched = False
        for entry, benchmark in zip(entries, benchmarks, strict=True):
            if scope not in ("", benchmark.name):
                continue
            fields = set(benchmark.Parameters.model_fields) | set(CaseKeys.model_fields) - {"benchmark", "superbench"}
            valid |= fields
            name = RENAMED.get(benchmark.name, {}).get(key, key)
            if name in fields:
                matched = True
                whole = _parts_of_word(entry.get(name), benchmark.Parameters.model_fields.get(name))
                if part and whole is not None and not isinstance(whole, Mapping):
                    message = f"the suite gives {path.rpartition('.')[0]} as {whole!r}, which has no parts"
                    raise InputError("no-parts", message, where=f"--set {path}", key=path, value=whole)
                entry[name] = {**(whole or {}), part: value} if part else value
        if not matched and part and not scope:
            raise unknown("benchmark in --set", key, names.values(), key=path)
        if not matched:
            raise unknown("key", key, valid, key=path).within(f"--set {path}")
    return entries


def _parts_of_word(value: Any, field: FieldInfo | None) -> Any:
    """`url` as {kind: url}, where a word stands for a part of a parameter."""
    shorthand = shorthand_of(field.annotation) if field is not None and isinstance(value, str) else ""
    return {shorthand: value} if shorthand else value


def shorthand_of(annotation: Any) -> str:
    """The part of a parameter that a single word stands for; empty where it stands for none."""
    candidates = [annotation, *get_args(annotation)]
    return next((c.shorthand for c in candidates if isinstance(c, type) and issubclass(c, Parameters)), "")


def _matrix(entry: Mapping[str, Any], fields: Mapping[str, Any], path: str = "") -> Iterator[dict[str, Any]]:
    """Every combination of the lists in the entry; the last list varies fastest."""
    axes: list[list[Any]] = []
    for key, value in entry.items():
        annotation = fields[key].annotation if key in fields else None
        parts = parts_of(annotation, value) if isinstance(value, Mapping) else None
        if parts is not None:
            axes.append(list(_matrix(value, parts, f"{path}{key}.")))
        elif not isinstance(value, list):
            axes.append([value])
        elif takes_list(annotation):
            axes.append(value if value and all(isinstance(item, list) for item in value) else [value])
        elif value:
            axes.append(value)
        else:
            message = f"'{path}{key}' is an empty list; give at least one value, or leave the key out"
            raise InputError("empty-list", message, key=f"{path}{key}")
    for combination in itertools.product(*axes):
        yield dict(zip(entry, combination, strict=True))


def takes_list(annotation: Any) -> bool:
    """Whether a parameter of this type may be a list, which is then one value and not several cases."""
    if get_origin(annotation) in (list, tuple, set):
        return True
    return any(takes_list(part) for part in get_args(annotation))


def parts_of(annotation: Any, values: Mapping[str, Any]) -> dict[str, FieldInfo] | None:
    """The fields of a parameter that has parts, where these have the values; None for one without parts."""
    inner = part_of(annotation)
    if inner is None:
        return None
    more = inner.more_fields(values) if issubclass(inner, Parameters) else {}
    return {**inner.model_fields, **more}


def part_of(annotation: Any) -> type[BaseModel] | None:
    """The class of a parameter that has parts; None for one without parts."""
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def only(cases: Sequence[Case], filters: Sequence[str], suite: str) -> list[Case]:
    """The cases whose name has all words of one of the `filters`; all of them where there are none.

    What is a whole word of any name is looked for as a word, so that `resnet50` does not take wide_resnet50_2; anything
    else as a part of one.
    """
    if not filters:
        return list(cases)
    names = {case.index: f"{f'{case.benchmark} {case.title}'.strip()} on {case.target}" for case in cases}
    split = {index: frozenset(name.lower().split()) for index, name in names.items()}
    whole = frozenset().union(*split.values())
    chosen: set[int] = set()
    for text in filters:
        words = text.lower().split()
        matches = {
            index
            for index, name in names.items()
            if all(word in (split[index] if word in whole else name.lower()) for word in words)
        }
        if not matches:
            some = f"the first one is '{next(iter(names.values()))}'" if names else "there are none here"
            all_of_them = "and `paceline run` with --dry-run shows them all"
            message = f"--only '{text}' is in the name of no case of '{suite}': {some}, {all_of_them}"
            raise InputError("no-such-case", message, key="--only", value=text)
        chosen |= matches
    left = [case for case in cases if case.index in chosen]
    return [case.model_copy(update={"index": position}) for position, case in enumerate(left)]


def command_line(verb: str, name: str, overrides: Mapping[str, Any], only: Sequence[str] = ()) -> list[str]:
    """What one would type for the same; the record has it."""
    words = ["paceline", verb, name]
    for key, value in overrides.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{key.replace('_', '-')}", ",".join(map(_typed, values))]
    for one in only:
        words += ["--only", one]
    return words


def _typed(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
