"""What a case does, and which of its settings are somebody's choice: server, batches, precision, machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.core.errors import InputError
from paceline.core.layout import Layout
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Record
from paceline.core.run import Run

# How a measurement was taken, its SLO and what it costs: the work is the same.
_MEASURING = {
    *MeasuringParameters.model_fields,
    *("search_budget", "search_tolerance", "timeout_per_request", "workers", "check_answers"),
    *("instance", "price", "carbon", "slo", "phases", "iterations", "warm_up_iterations"),
}
_CHOICES = (
    "server", "wire", "precision", "batch_size", "compile", "channels_last", "autotune", "graph", "deterministic",
    "in_flight", "engine", "backend", "tensor_cores", "data", "tensor", "pipeline", "context", "expert",
    "checkpointing", "micro_batch", "schedule", "shard", "sequence_parallel", "fp8_recipe", "threads", "zero_stage",
    "tensor_parallel", "pipeline_parallel", "micro_batch_size", "code_base",
)  # fmt: skip
_OF_LAYOUT = ("data", "tensor", "pipeline", "checkpointing", "micro_batch", "precision")
_USUAL = ("auto", "off")  # values that go without saying
MACHINE, TARGET, RANKS, LIMIT = "machine", "target", "ranks", "limit"


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
    """A record's case, divided into work and choices; with `with_load` its load is part of the work."""
    case = record.case
    work = dict(case.parameters)
    choices: dict[str, Any] = {}
    layout = layout_of(record)
    if layout is not None:
        work = {name: value for name, value in work.items() if value != record.subject.layout}
        fields = layout.model_dump()
        choices |= {name: fields[name] for name in _OF_LAYOUT}
        choices |= {name: fields[name] for name in ("context", "expert") if fields[name] > 1}
        work |= {name: fields[name] for name in ("model", "layers", "global_batch")}
    for name in _CHOICES:
        value = work.pop(name, None)
        if value is not None and name not in choices:
            choices[name] = value
    work = {name: value for name, value in work.items() if name not in _MEASURING and value is not None}
    if record.load is not None:
        work |= {"load": record.load.traffic if with_load else record.load.kind, "requests": record.load.requests}
    words = [case.benchmark, *(_work_word(name, value) for name, value in work.items())]
    flat = {name: _word(value) for name, value in flattened(choices).items()}
    flat |= {MACHINE: machine_of(record, run), TARGET: case.target.partition(":")[0]}
    if case.limits:
        flat[LIMIT] = case.limits
    if case.target == "cpu":  # of GPUs the machine's name says how many
        flat[RANKS] = str(case.ranks)
    return Configuration(work=" ".join(filter(None, words)), choices=flat)


def layout_of(record: Record) -> Layout | None:
    """How the ranks of a case are laid out, where its record says so."""
    try:
        return Layout.parse(record.subject.layout) if record.subject.layout else None
    except InputError:
        return None


def device_count(record: Record, run: Run) -> int:
    """How many devices a case used: GPUs, or the one machine that its processor belongs to."""
    target, ranks = record.case.target, record.case.ranks
    if target == "cpu":
        return 1
    return max(ranks, len(run.environment.gpus) if target.endswith("*") and ranks == 1 else 1)


def device_of(record: Record, run: Run) -> str:
    """The name of what computed: a GPU's, or a processor's."""
    if record.load is not None and record.load.server:
        return record.load.server  # whatever is behind it
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
    """What distinguishes each from the others, in a few words; where there is one, what it is."""
    names = list(dict.fromkeys(name for one in configurations for name in one.choices))
    differing = [name for name in names if len({one.choices.get(name) for one in configurations}) > 1]
    if configurations and not differing:
        differing = _notable(configurations[0], names)
    if differing == [MACHINE]:
        return [one.machine for one in configurations]
    words = [[_phrase(name, one.choices[name]) for name in differing if name in one.choices] for one in configurations]
    return [" ".join(phrases) or "as set by default" for phrases in words]


def shared_choices(configurations: Sequence[Configuration]) -> str:
    """What all of them have in common."""
    if len(configurations) < 2:
        return ""
    first = configurations[0]
    same = [name for name in first.choices if len({one.choices.get(name) for one in configurations}) == 1]
    return " ".join(_phrase(name, first.choices[name]) for name in _notable(first, same))


def _notable(configuration: Configuration, names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in (TARGET, RANKS) and configuration.choices[name] not in _USUAL]


def _phrase(name: str, value: str) -> str:
    if name == MACHINE:
        return f"on {value}"
    bare = name in ("server.kind", "server.engine", "server.url", "precision", "wire", "engine", "backend", TARGET)
    return value if bare else f"{name.removeprefix('server.')}={value}"


def _work_word(name: str, value: Any) -> str:
    """One part of the work, for people."""
    if name == "scale":
        return "" if value == "full" else str(value)
    if name in ("model", "operation"):
        return str(value)
    if isinstance(value, Mapping):
        inner = {key: item for key, item in flattened(value).items() if item not in (None, [], ())}
        return " ".join(str(item) if key == "arrival" else f"{key}={_word(item)}" for key, item in inner.items())
    return f"{name}={_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values on the top level, by names like `server.kind`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
