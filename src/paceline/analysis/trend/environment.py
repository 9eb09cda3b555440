"""What of a run's environment can explain a change: which machine it was, how it was set up, and what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.environment import Driver, Environment, Git

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


def settings(environment: Environment) -> dict[str, str]:
    """Everything lasting that may change a number, by a name that people read; loads and temperatures are not."""
    cpu, memory, software, gpus = environment.cpu, environment.memory, environment.software, environment.gpus
    driver, git = environment.driver or Driver(), environment.git or Git()
    found: dict[str, Any] = {name: getattr(environment, name) for name in _PLAIN}
    found |= {f"CPU {name}": getattr(cpu, name) for name in _CPU}
    found |= {"memory": memory.total, "memory limit": memory.limit}
    found |= {"driver": driver.version, "driver's CUDA": driver.cuda}
    found |= {f"GPU {name.replace('_', ' ')}": _together([getattr(gpu, name) for gpu in gpus]) for name in _GPU}
    found["GPU ECC"] = _together([gpu.ecc.enabled for gpu in gpus])
    found["GPUs"] = len(gpus) or None
    found |= {name.replace("_", " "): getattr(software, name) for name in _SOFTWARE}
    found |= software.packages
    found |= {f"${name}": value for name, value in environment.variables.items()}
    found |= {"commit": git.commit, "uncommitted changes": git.dirty}
    return {name: _word(value) for name, value in found.items() if value is not None}


def fingerprint(environment: Environment) -> str:
    """The same for the same hardware, software and variables, whatever the host is called and the commit is."""
    lasting = {name: value for name, value in settings(environment).items() if name not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """What differs between the settings of two runs."""
    names = dict.fromkeys([*before, *after])
    pairs = [Difference(name, before.get(name, ""), after.get(name, "")) for name in names]
    return tuple(pair for pair in pairs if pair.before != pair.after)


def machine(environment: Environment, target: str) -> str:
    """Which kind of machine measured: its processor, and for what ran on GPUs those as well.

    Two hosts of one kind are one machine here: in a cluster or in the cloud, runs land on any of them.
    """
    cpu = environment.cpu
    model = cpu.model or environment.architecture or "unknown CPU"
    names = [gpu.name or "unknown GPU" for gpu in environment.gpus]
    if target != "cpu" and names:
        counts = {name: names.count(name) for name in names}
        gpus = " and ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
        return f"{gpus} with {model}"
    usable = cpu.usable or cpu.physical_cores
    return f"{model}, {usable:g} cores" if usable else model


def commit(environment: Environment) -> tuple[str, bool]:
    """The commit of the repository that the run was started in, empty where none is known; whether files differed."""
    git = environment.git or Git()
    return git.commit or "", bool(git.dirty)


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
