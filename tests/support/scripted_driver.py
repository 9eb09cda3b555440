"""Measures kernel-launch against the driver that the loader finds, for a device that only says it launches kernels.

A program of its own: which driver is found is settled when a process starts.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

from paceline.benchmarks.compute import kernel_launch
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.devices import kind_named
from paceline.devices.cpu import CpuDevice


class LaunchingDevice(CpuDevice):
    """A device of NVIDIA's kind that no framework has opened."""

    def __init__(self) -> None:
        super().__init__(kind_named("cuda"))

    def torch(self) -> Any:
        return SimpleNamespace(index=0)

    def empty_kernel(self, name: str) -> str:
        return name


def main() -> None:
    parameters = kernel_launch.KernelLaunchParameters.read(json.loads(sys.argv[1]))
    case = Case(index=0, benchmark="kernel-launch", parameters={}, title="", target="cpu")
    with mock.patch.object(kernel_launch, "open_device", lambda target: LaunchingDevice()):
        result = kernel_launch.KernelLaunch().measure(parameters, Context(case=case))
    samples = {one.metric.name: one.samples for one in result.measurements}
    json.dump({"samples": samples, "facts": {"paced_by": result.facts["paced_by"]}}, sys.stdout)


if __name__ == "__main__":
    main()
