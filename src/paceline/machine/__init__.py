"""What this machine is, and whether it is fit to be measured; imports no torch and initialises no device."""

from __future__ import annotations

import os
import platform
import socket

from paceline.core.environment import Cpu, Environment, Inventory, Memory
from paceline.core.probe import ROOT, attempt, read_text
from paceline.devices import describe_devices
from paceline.machine import container, cpu, software
from paceline.machine.inventory import describe_inventory

__all__ = ["Environment", "describe"]


def describe() -> Environment:
    """Everything one needs to believe or repeat a number taken here; a probe that fails leaves None."""
    devices = describe_devices()
    environment = Environment(
        host=attempt(socket.gethostname),
        system=platform.system() or None,
        kernel=platform.release() or None,
        boot=read_text(ROOT / "proc/sys/kernel/random/boot_id"),
        distribution=attempt(lambda: platform.freedesktop_os_release().get("PRETTY_NAME")),
        architecture=platform.machine() or None,
        container=attempt(container.container),
        virtualization=attempt(container.virtualization),
        cpu=attempt(cpu.describe_cpu) or Cpu(),
        memory=attempt(cpu.describe_memory) or Memory(),
        driver=devices.driver,
        gpus=devices.gpus,
        inventory=attempt(describe_inventory) or Inventory(),
        software=software.describe_software(),
        git=attempt(software.git),
        load=attempt(os.getloadavg),
        variables=attempt(software.shareable_variables) or {},
    )
    return Environment.model_validate(software.scrub_all(environment.model_dump(mode="json")))
