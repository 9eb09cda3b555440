"""In what the environments of two sides differ that bears on a number; the rest is passed over."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from pydantic import BaseModel

from paceline.analysis.compare.matching import Difference, Side
from paceline.core.run import Run

UNKNOWN = "unknown"
_PACKAGES = (
    *("torch", "torchvision", "torchao", "triton", "pytorch-triton", "transformers", "flash-attn", "xformers"),
    *("vllm", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "mkl"),
)
_VARIABLE = "variable "
_HARMLESS = ("CUDA_DEVICE_ORDER",)

# Not compared where no GPU was measured.
_OF_GPUS = ("GPUs", "driver", "CUDA of torch", "power limit", "highest SM clock", "highest memory clock", "ECC", "MIG")


def environment_differences(reference: Side, new: Side, *, on_gpus: bool) -> tuple[Difference, ...]:
    """What differs and matters; of GPUs only where some were measured.

    What one side does not know at all is not a difference: a published table has no environment.
    """
    different = []
    before, after = [_facts(run.run) for run in reference.runs], [_facts(run.run) for run in new.runs]
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


def _facts(run: Run) -> dict[str, str]:
    of = run.environment
    if not of.is_known:
        return {}
    names = Counter(gpu.name or UNKNOWN for gpu in of.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"
    commit = of.git.commit[:10] + (" with changes" if of.git.dirty else "") if of.git and of.git.commit else UNKNOWN
    facts = {
        "GPUs": gpus if "gpus" in of.model_fields_set else UNKNOWN,
        "driver": _shown(of.driver and of.driver.version),
        "CUDA of torch": _shown(of.software.torch_cuda),
        "power limit": _of_gpus([gpu.power_limit_watts for gpu in of.gpus], " W"),
        "highest SM clock": _of_gpus([gpu.sm_clock_max_mhz for gpu in of.gpus], " MHz"),
        "highest memory clock": _of_gpus([gpu.memory_clock_max_mhz for gpu in of.gpus], " MHz"),
        "ECC": _of_gpus([gpu.ecc.enabled for gpu in of.gpus]),
        "MIG": _of_gpus([gpu.mig for gpu in of.gpus]),
        "CPU": _shown(of.cpu.model),
        "CPU cores": _shown(of.cpu.usable),
        "CPU governor": _shown(of.cpu.governor),
        "CPU boost": _shown(of.cpu.boost),
        "CPU quota": _limit(of.cpu, "quota", " cores"),
        "memory limit": _limit(of.memory, "limit", " GiB", scale=1024.0**3),
        "architecture": _shown(of.architecture),
        "container": _shown(of.container),
        "virtualization": _shown(of.virtualization),
        # Without the last number, which repairs and does not speed up.
        "Python": ".".join((of.software.python or UNKNOWN).split(".")[:2]),
        "git commit": commit,
        "Paceline": run.version or UNKNOWN,
    }
    if of.software.packages:
        facts |= {name: of.software.packages.get(name, "absent") for name in _PACKAGES}
    return facts | {f"{_VARIABLE}{name}": value for name, value in of.variables.items() if name not in _HARMLESS}


def _shown(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _limit(part: BaseModel, name: str, unit: str, scale: float = 1.0) -> str:
    """A limit of the control group; where it says None, there is none."""
    value = getattr(part, name)
    if name not in part.model_fields_set:
        return UNKNOWN
    return "none" if value is None else f"{value / scale:.4g}{unit}"


def _of_gpus(values: list[Any], unit: str = "") -> str:
    shown = {_shown(value) for value in values if value is not None}
    return ", ".join(f"{value}{unit}" for value in sorted(shown)) or UNKNOWN
