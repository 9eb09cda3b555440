"""SuperBench's config files as suites: benchmarks, modes and parameters, and what has no counterpart, with why.

A benchmark of a config is `NAME[:note]` with modes (how many processes, and what starts them) and parameters. What it
measures keeps its name in `superbench`, so that results can be written under the keys that they had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.core.errors import InputError, located, unknown
from paceline.core.suite import Suite
from paceline.runner.superbench_benchmarks import MODELS_BENCHMARK, Unmapped, counterpart

_OUTER = {"enable", "monitor", "env", "var", "benchmarks"}
_BENCHMARK = {"enable", "timeout", "modes", "frameworks", "models", "parameters"}
_MODE = {"name", "proc_num", "node_num", "prefix", "env", "mca", "parallel", "pattern"}
_MODES = ("local", "torch.distributed", "mpi")
_VISIBLE = re.compile(r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES=\S+")
_OF_RANK = re.compile(r"(PROC_RANK|NUMA_NODES)=\S+")
_ADAPTERS = re.compile(r"IB_DEVICES=(\S+)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(\S*)")
_MONITOR = "clocks, temperature, power, throttling and errors are in every record as series ('conditions', 'watched')"


def is_config(document: object) -> bool:
    """Whether a document is a config of SuperBench's."""
    return isinstance(document, Mapping) and isinstance(document.get("superbench"), Mapping)


def read_config(document: Mapping[str, Any], name: str) -> Suite:
    """The config as a suite; its notes say what of it has no counterpart."""
    with located(name):
        inner = document["superbench"]
        notes = [f"superbench.{key}: there is no such key" for key in inner if key not in _OUTER]
        if isinstance(monitor := inner.get("monitor"), Mapping) and monitor.get("enable"):
            notes.append(f"superbench.monitor: {_MONITOR}")
        benchmarks = _mapping(inner.get("benchmarks"), "superbench.benchmarks")
        shared = _mapping(inner.get("env") or {}, "superbench.env")
        cases: list[dict[str, Any]] = []
        for title in _enabled(inner.get("enable"), benchmarks, notes):
            entry = _mapping(benchmarks[title], title)
            notes += [f"{title}.{key}: there is no such key" for key in entry if key not in _BENCHMARK]
            for mode in entry.get("modes") or [{"name": "local"}]:
                with located(title):
                    cases += _cases(title, entry, _mapping(mode, "modes"), shared, notes)
        if not cases:
            raise InputError("no-cases", "nothing of it can be measured:\n" + "\n".join(notes))
        return Suite(name=name.rpartition("/")[2].partition(".")[0], cases=cases, notes=notes)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("not-a-mapping", f"'{where}' must be a mapping, but is {value!r}", key=where)
    return value


def _enabled(chosen: object, benchmarks: Mapping[str, Any], notes: list[str]) -> list[str]:
    """Which benchmarks run: those that are named, otherwise those that say so."""
    if chosen:
        names = [str(name) for name in (chosen if isinstance(chosen, list) else [chosen])]
        for name in names:
            if name not in benchmarks:
                raise unknown("benchmark", name, benchmarks, key="superbench.enable")
        return names
    silent = [title for title, entry in benchmarks.items() if isinstance(entry, Mapping) and "enable" not in entry]
    notes += [f"{title}: it does not say 'enable: true', so SuperBench leaves it out" for title in silent]
    return [title for title, entry in benchmarks.items() if isinstance(entry, Mapping) and entry.get("enable")]


def _cases(
    title: str, entry: Mapping[str, Any], mode: Mapping[str, Any], shared: Mapping[str, Any], notes: list[str]
) -> Iterator[dict[str, Any]]:
    """The entries of one benchmark in one mode."""
    kind = str(mode.get("name") or "local")
    if kind not in _MODES:
        raise unknown("mode", kind, _MODES, key="modes")
    notes += [f"{title}, mode {kind}, {key}: there is no such key" for key in mode if key not in _MODE]
    name = title.partition(":")[0]
    is_of_models = name == MODELS_BENCHMARK or name.endswith("_models")
    frameworks = entry.get("frameworks") or ["none"]
    for framework in frameworks:
        if framework not in ("none", "pytorch"):
            notes.append(f"{title}, frameworks, {framework}: models and products are measured by PyTorch alone")
    if not {"none", "pytorch"} & set(frameworks):
        return
    keys = _keys_of_mode(title, kind, mode, notes)
    adapters = keys.pop("adapters", None)
    keys["env"] = {str(key): str(value) for key, value in ({**shared, **keys.pop("env")}).items() if value is not None}
    if timeout := entry.get("timeout"):
        keys["timeout"] = max(60, timeout)
    prefix = "pytorch-" if "pytorch" in frameworks and not is_of_models else ""
    keys["superbench"] = f"{prefix}{title}"
    parameters = dict(_mapping(entry.get("parameters") or {}, "parameters"))
    if run_count := parameters.pop("run_count", None):
        keys["repeat"] = run_count
    if adapters is not None:
        parameters["adapters"] = adapters
    if is_of_models:
        name, parameters["models"] = MODELS_BENCHMARK, entry.get("models") or []
    pattern = _mapping(mode.get("pattern") or {}, "pattern")
    for made in counterpart(name, parameters, pattern=pattern):
        if isinstance(made, Unmapped):
            notes.append(f"{title}{made.what}: {made.why}")
        else:
            yield _placed(made, keys, kind)


def _placed(made: Mapping[str, Any], keys: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """An entry with what its mode says, as far as the benchmark leaves it open where it runs."""
    each = {"target": "auto:each", "at_once": keys["at_once"]} if keys["is_each"] else {"target": "auto"}
    where = {"target": "auto:*"} if kind != "local" else each
    outer = {key: value for key, value in keys.items() if key not in ("is_each", "at_once") and value != {}}
    entry = {**where, **outer, **made}
    if entry["target"] != "auto:each":
        entry.pop("at_once", None)
    return entry


def _keys_of_mode(title: str, kind: str, mode: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    env = dict(_mapping(mode.get("env") or {}, "env"))
    keys: dict[str, Any] = {"is_each": False, "at_once": bool(mode.get("parallel", True)), "env": env}
    if mode.get("mca"):
        notes.append(f"{title}, mca: ranks are started without MPI, by Paceline itself")
    words = str(mode.get("prefix") or "").split()
    binding = next((place for place, word in enumerate(words) if word == "numactl"), None)
    if binding is not None:
        notes.append(f"{title}, prefix, {' '.join(words[binding:])}: processes are not bound to NUMA nodes")
        words = words[:binding]
    for word in words:
        if _VISIBLE.fullmatch(word):
            keys["is_each"] = True
        elif match := _ADAPTERS.fullmatch(word):
            keys["adapters"] = match[1].split(",")[: int(mode.get("proc_num") or 1)]
        elif not _OF_RANK.fullmatch(word):
            if (match := _VARIABLE.fullmatch(word)) and "{" not in word:
                env[match[1]] = match[2]
            else:
                notes.append(f"{title}, prefix, {word}: no command is put in front of a process")
    return keys
