"""In what the environments of two sides differ that bears on a number; the rest is passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.analysis.compare.matching import Side
from paceline.core.run import Run

UNKNOWN = "unknown"
_PACKAGES = (
    "torch",
    "torchvision",
    "torchao",
    "triton",
    "pytorch-triton",
    "transformers",
    "flash-attn",
    "xformers",
    "vllm",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "mkl",
)
_VARIABLE = "variable "
_HARMLESS = frozenset({"CUDA_DEVICE_ORDER"})

Words = Mapping[str, Any]
Reader = Callable[[Words], str]


@dataclass(frozen=True)
class EnvironmentDifference:
    """One thing that is not the same on both sides."""

    name: str
    reference: str
    new: str


def environment_differences(reference: Side, new: Side, *, on_gpus: bool) -> tuple[EnvironmentDifference, ...]:
    """What differs and matters; of GPUs only where some were measured.

    What one side does not know at all is no difference: a published table has no environment.
    """
    found = []
    before, after = [_read(run.run) for run in reference.runs], [_read(run.run) for run in new.runs]
    for name in dict.fromkeys(name for told in (*before, *after) for name in told):
        if name in _OF_GPUS and not on_gpus:
            continue
        one, other = _joined(name, before), _joined(name, after)
        if UNKNOWN not in (one, other) and (one != other or ", or " in one):
            found.append(EnvironmentDifference(name, one, other))
    return tuple(found)


def _joined(name: str, told: list[dict[str, str]]) -> str:
    """What the runs of a side say; several answers are all told."""
    absent = "unset" if name.startswith(_VARIABLE) else UNKNOWN
    answers = {one.get(name, absent) for one in told if one}
    return ", or ".join(sorted(answers)) or UNKNOWN


def _read(run: Run) -> dict[str, str]:
    environment = run.environment
    if not environment:
        return {}
    told = {name: read(environment) for name, read in _READERS.items()}
    told["Paceline"] = run.version or UNKNOWN
    packages = _part(_part(environment, "software"), "packages")
    if packages:
        told |= {name: str(packages.get(name, "absent")) for name in _PACKAGES}
    variables = _part(environment, "variables")
    return told | {f"{_VARIABLE}{name}": str(value) for name, value in variables.items() if name not in _HARMLESS}


def _part(environment: Words, name: str) -> Words:
    found = environment.get(name)
    return found if isinstance(found, Mapping) else {}


def _at(*path: str, unit: str = "") -> Reader:
    def read(environment: Words) -> str:
        for name in path[:-1]:
            environment = _part(environment, name)
        value = environment.get(path[-1])
        return UNKNOWN if value is None else f"{_shown(value)}{unit}"

    return read


def _limit(part: str, name: str, unit: str, scale: float = 1.0) -> Reader:
    """A limit of the control group; where it says None, there is none."""

    def read(environment: Words) -> str:
        holder = _part(environment, part)
        if name not in holder:
            return UNKNOWN
        return "none" if holder[name] is None else f"{holder[name] / scale:.4g}{unit}"

    return read


def _gpus(environment: Words) -> str:
    """Their names, counted."""
    if "gpus" not in environment:
        return UNKNOWN
    names = Counter(str(gpu.get("name") or UNKNOWN) for gpu in environment["gpus"] if isinstance(gpu, Mapping))
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"


def _of_gpus(key: str, unit: str = "") -> Reader:
    def read(environment: Words) -> str:
        gpus = [gpu for gpu in environment.get("gpus") or () if isinstance(gpu, Mapping)]
        values = dict.fromkeys(_shown(gpu[key]) for gpu in gpus if gpu.get(key) is not None)
        return ", ".join(f"{value}{unit}" for value in sorted(values)) or UNKNOWN

    return read


def _ecc(environment: Words) -> str:
    return _of_gpus("enabled")({"gpus": [_part(gpu, "ecc") for gpu in environment.get("gpus") or ()]})


def _python(environment: Words) -> str:
    """Without the last number, which mends and does not speed up."""
    version = _part(environment, "software").get("python")
    return ".".join(str(version).split(".")[:2]) if version else UNKNOWN


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commit(environment: Words) -> str:
    git = _part(environment, "git")
    if not git.get("commit"):
        return UNKNOWN
    return str(git["commit"])[:10] + (" with changes" if git.get("dirty") else "")


_OF_GPUS: dict[str, Reader] = {
    "GPUs": _gpus,
    "driver": _at("driver", "version"),
    "CUDA of torch": _at("software", "torch_cuda"),
    "power limit": _of_gpus("power_limit_watts", " W"),
    "highest SM clock": _of_gpus("sm_clock_max_mhz", " MHz"),
    "highest memory clock": _of_gpus("memory_clock_max_mhz", " MHz"),
    "ECC": _ecc,
    "MIG": _of_gpus("mig"),
}
_READERS: dict[str, Reader] = {
    **_OF_GPUS,
    "CPU": _at("cpu", "model"),
    "CPU cores": _at("cpu", "usable"),
    "CPU governor": _at("cpu", "governor"),
    "CPU boost": _at("cpu", "boost"),
    "CPU quota": _limit("cpu", "quota", unit=" cores"),
    "memory limit": _limit("memory", "limit", unit=" GiB", scale=1024.0**3),
    "architecture": _at("architecture"),
    "container": _at("container"),
    "virtualization": _at("virtualization"),
    "Python": _python,
    "git commit": _commit,
}
