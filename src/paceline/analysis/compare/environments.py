"""In what the environments of two sides differ that bears on a number; the rest is passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from paceline.analysis.compare.matching import Difference, Side
from paceline.core.environment import Environment, Gpu
from paceline.core.run import Run

UNKNOWN = "unknown"
_PACKAGES = [
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
]
_VARIABLE = "variable "
_HARMLESS = ("CUDA_DEVICE_ORDER",)

Reader = Callable[[Environment], str]


def environment_differences(reference: Side, new: Side, *, on_gpus: bool) -> tuple[Difference, ...]:
    """What differs and matters; of GPUs only where some were measured.

    What one side does not know at all is not a difference: a published table has no environment.
    """
    different = []
    before, after = [_read(run.run) for run in reference.runs], [_read(run.run) for run in new.runs]
    for name in dict.fromkeys(chain(*before, *after)):
        if name in _OF_GPUS and not on_gpus:
            continue
        one, other = _joined(name, before), _joined(name, after)
        if UNKNOWN not in (one, other) and (one != other or ", or " in one):
            different.append(Difference(name, one, other))
    return tuple(different)


def _joined(name: str, runs: list[dict[str, str]]) -> str:
    """What the runs of a side say; several answers are all shown."""
    absent = "unset" if name.startswith(_VARIABLE) else UNKNOWN
    answers = {run.get(name, absent) for run in runs if run}
    return ", or ".join(sorted(answers)) or UNKNOWN


def _read(run: Run) -> dict[str, str]:
    environment = run.environment
    if not environment.is_known:
        return {}
    facts = {name: read(environment) for name, read in _READERS.items()}
    facts["Paceline"] = run.version or UNKNOWN
    packages = environment.software.packages
    if packages:
        facts |= {name: packages.get(name, "absent") for name in _PACKAGES}
    variables = environment.variables
    return facts | {f"{_VARIABLE}{name}": value for name, value in variables.items() if name not in _HARMLESS}


def _plain(read: Callable[[Environment], Any]) -> Reader:
    """A value as it is."""

    def shown(environment: Environment) -> str:
        value = read(environment)
        return UNKNOWN if value is None else _shown(value)

    return shown


def _limit(part: str, name: str, unit: str, scale: float = 1.0) -> Reader:
    """A limit of the control group; where it says None, there is none."""

    def read(environment: Environment) -> str:
        holder = getattr(environment, part)
        if name not in holder.model_fields_set:
            return UNKNOWN
        value = getattr(holder, name)
        return "none" if value is None else f"{value / scale:.4g}{unit}"

    return read


def _gpus(environment: Environment) -> str:
    """Their names, counted."""
    if "gpus" not in environment.model_fields_set:
        return UNKNOWN
    names = Counter(gpu.name or UNKNOWN for gpu in environment.gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"


def _of_gpus(read: Callable[[Gpu], Any], unit: str = "") -> Reader:
    def shown(environment: Environment) -> str:
        values = {_shown(value) for gpu in environment.gpus if (value := read(gpu)) is not None}
        return ", ".join(f"{value}{unit}" for value in sorted(values)) or UNKNOWN

    return shown


def _python(environment: Environment) -> str:
    """Without the last number, which repairs and does not speed up."""
    version = environment.software.python
    return ".".join(version.split(".")[:2]) if version else UNKNOWN


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commit(environment: Environment) -> str:
    git = environment.git
    if git is None or not git.commit:
        return UNKNOWN
    return git.commit[:10] + (" with changes" if git.dirty else "")


_OF_GPUS: dict[str, Reader] = {
    "GPUs": _gpus,
    "driver": _plain(lambda of: of.driver and of.driver.version),
    "CUDA of torch": _plain(lambda of: of.software.torch_cuda),
    "power limit": _of_gpus(lambda gpu: gpu.power_limit_watts, " W"),
    "highest SM clock": _of_gpus(lambda gpu: gpu.sm_clock_max_mhz, " MHz"),
    "highest memory clock": _of_gpus(lambda gpu: gpu.memory_clock_max_mhz, " MHz"),
    "ECC": _of_gpus(lambda gpu: gpu.ecc.enabled),
    "MIG": _of_gpus(lambda gpu: gpu.mig),
}
_READERS: dict[str, Reader] = {
    **_OF_GPUS,
    "CPU": _plain(lambda of: of.cpu.model),
    "CPU cores": _plain(lambda of: of.cpu.usable),
    "CPU governor": _plain(lambda of: of.cpu.governor),
    "CPU boost": _plain(lambda of: of.cpu.boost),
    "CPU quota": _limit("cpu", "quota", unit=" cores"),
    "memory limit": _limit("memory", "limit", unit=" GiB", scale=1024.0**3),
    "architecture": _plain(lambda of: of.architecture),
    "container": _plain(lambda of: of.container),
    "virtualization": _plain(lambda of: of.virtualization),
    "Python": _python,
    "git commit": _commit,
}
