"""What of a run's environment can explain a change: which machine it was, how it was set up, and what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PLAIN = ("host", "kernel", "distribution", "architecture", "container", "virtualization")
_CPU = ("model", "usable", "governor", "boost")
_GPU = ("name", "power_limit_watts", "sm_clock_max_mhz", "memory_clock_max_mhz", "mig", "persistence")
_SOFTWARE = ("python", "paceline", "torch_cuda", "torch_hip")
_PASSING = ("host", "commit", "uncommitted changes")  # told where they change, but no part of the fingerprint


@dataclass(frozen=True)
class Difference:
    """Something that one run had and the other had not; empty where it had none."""

    name: str
    before: str
    after: str


def settings(environment: Mapping[str, Any]) -> dict[str, str]:
    """Everything lasting that may change a number, by a name that people read; loads and temperatures are not."""
    cpu, memory, driver = (_part(environment, name) for name in ("cpu", "memory", "driver"))
    software = _part(environment, "software")
    found: dict[str, Any] = {name: environment.get(name) for name in _PLAIN}
    found |= {f"CPU {name}": cpu.get(name) for name in _CPU}
    found |= {"memory": memory.get("total"), "memory limit": memory.get("limit")}
    found |= {"driver": driver.get("version"), "driver's CUDA": driver.get("cuda")}
    gpus = _gpus(environment)
    found |= {f"GPU {name.replace('_', ' ')}": _together([gpu.get(name) for gpu in gpus]) for name in _GPU}
    found["GPU ECC"] = _together([_part(gpu, "ecc").get("enabled") for gpu in gpus])
    found["GPUs"] = len(gpus) or None
    found |= {name.replace("_", " "): software.get(name) for name in _SOFTWARE}
    found |= dict(_part(software, "packages"))
    found |= {f"${name}": value for name, value in _part(environment, "variables").items()}
    git = _part(environment, "git")
    found |= {"commit": git.get("commit"), "uncommitted changes": git.get("dirty")}
    return {name: _word(value) for name, value in found.items() if value is not None}


def fingerprint(environment: Mapping[str, Any]) -> str:
    """The same for the same hardware, software and variables, whatever the host is called and the commit is."""
    lasting = {name: value for name, value in settings(environment).items() if name not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """What differs between the settings of two runs."""
    names = dict.fromkeys([*before, *after])
    pairs = [Difference(name, before.get(name, ""), after.get(name, "")) for name in names]
    return tuple(pair for pair in pairs if pair.before != pair.after)


def machine(environment: Mapping[str, Any], target: str) -> str:
    """Which kind of machine measured: its processor, and for what ran on GPUs those as well.

    Two hosts of one kind are one machine here: in a cluster or in the cloud, runs land on any of them.
    """
    cpu = _part(environment, "cpu")
    model = str(cpu.get("model") or environment.get("architecture") or "unknown CPU")
    names = [str(gpu.get("name") or "unknown GPU") for gpu in _gpus(environment)]
    if target.startswith("cuda") and names:
        counts = {name: names.count(name) for name in names}
        gpus = " and ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
        return f"{gpus} with {model}"
    usable = cpu.get("usable") or cpu.get("physical_cores")
    return f"{model}, {usable:g} cores" if isinstance(usable, int | float) else model


def commit(environment: Mapping[str, Any]) -> tuple[str, bool]:
    """The commit of the repository that the run was started in, empty where none is known; whether files differed."""
    git = _part(environment, "git")
    return str(git.get("commit") or ""), bool(git.get("dirty"))


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def _gpus(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    gpus = environment.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []


def _together(values: list[Any]) -> str | None:
    """The values of several devices, once where they agree."""
    words = [_word(value) for value in values]
    if all(value is None for value in values):
        return None
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
