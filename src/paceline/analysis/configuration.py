"""What a case does, and which of its settings are somebody's choice: server, batches, precision, machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.core.errors import InputError
from paceline.core.layout import Layout
from paceline.core.record import Record
from paceline.core.run import Run

# How a measurement was taken, what was promised and what it costs: the work is the same.
_MEASURING = {
    "budget", "warm_up", "interval", "steps", "min_steps", "max_steps", "seed", "search_budget", "search_tolerance",
    "timeout_per_request", "workers", "check_answers", "instance", "price", "carbon", "slo", "phases", "iterations",
    "warm_up_iterations",
}  # fmt: skip
_CHOICES = (
    "server", "wire", "precision", "batch_size", "compile", "channels_last", "autotune", "graph", "deterministic",
    "in_flight", "engine", "backend", "tensor_cores", "data", "tensor", "pipeline", "checkpointing", "micro_batch",
    "schedule", "shard", "sequence_parallel", "fp8_recipe", "threads", "zero_stage", "tensor_parallel",
    "pipeline_parallel", "micro_batch_size", "code_base",
)  # fmt: skip
_OF_LAYOUT = ("data", "tensor", "pipeline", "checkpointing", "micro_batch", "precision")
_USUAL = ("auto", "off")  # values that go without saying
MACHINE, TARGET, RANKS = "machine", "target", "ranks"


@dataclass(frozen=True)
class Configuration:
    """One way to do a piece of work."""

    work: str  # for people
    choices: Mapping[str, str]  # the machine among them

    @property
    def machine(self) -> str:
        """What it ran on."""
        return self.choices[MACHINE]

    @cached_property
    def key(self) -> str:
        """The same for the same choices at the same work."""
        return json.dumps([self.work, sorted(self.choices.items())])


def configuration_of(record: Record, run: Run, *, with_load: bool = False) -> Configuration:
    """A record's case, cut in two; how much load there was is part of the work only if asked for."""
    case = record.case
    work = dict(case.parameters)
    choices: dict[str, Any] = {}
    layout = _layout(record.subject.layout)
    if layout is not None:
        work = {name: value for name, value in work.items() if value != record.subject.layout}
        own = layout.model_dump()
        choices |= {name: own[name] for name in _OF_LAYOUT}
        work |= {name: own[name] for name in ("model", "layers", "global_batch")}
    for name in _CHOICES:
        value = work.pop(name, None)
        if value is not None and name not in choices:
            choices[name] = value
    told = [_told(name, value) for name, value in _work(record, work, with_load=with_load).items()]
    flat = {name: _word(value) for name, value in _flat(choices).items()}
    flat |= {MACHINE: machine_of(record, run), TARGET: case.target.partition(":")[0]}
    if case.target == "cpu":  # of GPUs the machine's name tells how many
        flat[RANKS] = str(case.ranks)
    return Configuration(work=" ".join([case.benchmark, *(word for word in told if word)]), choices=flat)


def device_count(record: Record, run: Run) -> int:
    """How many devices a case used: GPUs, or the one machine that its processor belongs to."""
    target, ranks = record.case.target, record.case.ranks
    if target == "cpu":
        return 1
    return max(ranks, len(run.environment.gpus) if target.endswith("*") and ranks == 1 else 1)


def device_of(record: Record, run: Run) -> str:
    """The name of what computed: a GPU's, or a processor's."""
    if record.load is not None and record.load.server:
        return record.load.server  # whatever stands behind it
    if record.case.target != "cpu":
        names = [gpu.name or "" for gpu in run.environment.gpus]
        return record.subject.device or next(iter(names), "unknown GPU")
    return run.environment.cpu.model or record.subject.device or "unknown processor"


def machine_of(record: Record, run: Run) -> str:
    """What computed, and how much of it: `2x NVIDIA H200`, `Neoverse-N1, 2 cores`."""
    name, count = device_of(record, run), device_count(record, run)
    if record.case.target != "cpu" or "://" in name:
        return f"{count}x {name}" if count > 1 else name
    cores = run.environment.cpu.usable or run.environment.cpu.physical_cores
    return f"{name}, {cores:g} cores" if cores else name


def labels(configurations: Sequence[Configuration]) -> list[str]:
    """What tells each from the others, in a few words; where there is one, what it is."""
    names = list(dict.fromkeys(name for one in configurations for name in one.choices))
    differing = [name for name in names if len({one.choices.get(name) for one in configurations}) > 1]
    if not differing:
        differing = [
            name for name in names if name not in (TARGET, RANKS) and _is_news(configurations[0].choices[name])
        ]
    if differing == [MACHINE]:
        return [one.machine for one in configurations]
    words = [[_phrase(name, one.choices[name]) for name in differing if name in one.choices] for one in configurations]
    return [" ".join(own) or "as set by default" for own in words]


def shared_choices(configurations: Sequence[Configuration]) -> str:
    """What all of them have in common."""
    if len(configurations) < 2:
        return ""
    first = configurations[0].choices
    same = [name for name in first if len({one.choices.get(name) for one in configurations}) == 1]
    told = [name for name in same if name not in (TARGET, RANKS) and _is_news(first[name])]
    return " ".join(_phrase(name, first[name]) for name in told)


def _is_news(value: str) -> bool:
    return value not in _USUAL


def _phrase(name: str, value: str) -> str:
    if name == MACHINE:
        return f"on {value}"
    bare = name in ("server.kind", "server.engine", "server.url", "precision", "wire", "engine", "backend", TARGET)
    return value if bare else f"{name.removeprefix('server.')}={value}"


def _work(record: Record, parameters: Mapping[str, Any], *, with_load: bool) -> dict[str, Any]:
    """The parameters that say what is done."""
    kept = {name: value for name, value in parameters.items() if name not in _MEASURING and value is not None}
    if record.load is not None:
        kept |= {"load": record.load.traffic if with_load else record.load.kind, "requests": record.load.requests}
    return kept


def _told(name: str, value: Any) -> str:
    """One part of the work, for people."""
    if name in ("model", "operation") or (name == "scale" and value != "full"):
        return str(value)
    if name == "scale":
        return ""
    if isinstance(value, Mapping):
        inner = {key: item for key, item in _flat(value).items() if item is not None}
        return " ".join(str(item) if key == "arrival" else f"{key}={_word(item)}" for key, item in inner.items())
    return f"{name}={_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _layout(word: object) -> Layout | None:
    try:
        return Layout.parse(word) if isinstance(word, str) else None
    except InputError:
        return None
