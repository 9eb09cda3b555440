"""What this machine is, and whether it is fit to be measured; imports no torch and initialises no CUDA."""

from __future__ import annotations

import os
import platform
import socket

from paceline.machine import container, cpu, gpu, privacy, software
from paceline.machine.environment import Cpu, Environment, Memory
from paceline.machine.gpu import gpu_count
from paceline.machine.nvml import opened
from paceline.machine.probe import attempt

__all__ = ["Environment", "describe", "gpu_count"]


def describe() -> Environment:
    """Everything one needs to believe or repeat a number taken here; a probe that fails leaves None."""
    with opened() as nvml:
        driver = attempt(lambda: gpu.describe_driver(nvml)) if nvml else None
        gpus = attempt(lambda: gpu.describe_gpus(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))) if nvml else None
    seen = Environment(
        host=attempt(socket.gethostname),
        system=platform.system() or None,
        kernel=platform.release() or None,
        distribution=attempt(lambda: platform.freedesktop_os_release().get("PRETTY_NAME")),
        architecture=platform.machine() or None,
        container=attempt(container.container),
        virtualization=attempt(container.virtualization),
        cpu=attempt(cpu.describe_cpu) or Cpu(),
        memory=attempt(cpu.describe_memory) or Memory(),
        driver=driver,
        gpus=gpus or [],
        software=software.describe_software(),
        git=attempt(software.git),
        load=attempt(os.getloadavg),
        variables=attempt(privacy.shareable_variables) or {},
    )
    return Environment.model_validate(privacy.scrub_all(seen.model_dump(mode="json")))
