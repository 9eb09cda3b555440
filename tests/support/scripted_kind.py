"""A device kind of a third party: one file, with a clock, memory, energy and number formats of its own; torch computes
on the CPU underneath."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli import PLUGIN, Sandbox, sandbox_in

NAME, RESERVED, ALLOCATED, TICK, JOULES = "Scripted One", 256 << 20, 192 << 20, 0.25, 40.0
KIND = f'''
"""A device whose every event comes a quarter of a second after the one before it."""

import torch

from paceline.core.environment import Driver, Gpu
from paceline.devices.base import (
    EMULATED, NATIVE, Described, Device, DeviceConditions, DeviceKind, FormatSupport,
)
from paceline.devices.base import Datasheet


COUNT = 0


class ScriptedKind(DeviceKind):
    name = "scripted"
    noun = "scripted device"
    visible_variable = "SCRIPTED_VISIBLE_DEVICES"
    slowdowns = ("too-hot",)

    def count(self):
        return COUNT

    def open(self, index):
        return ScriptedDevice(self, index)

    def describe(self):
        gpus = [Gpu(kind=self.name, index=n, cuda_index=n, name="{NAME}", uuid=f"S-{{n}}") for n in range(COUNT)]
        return Described(Driver(version="7.7"), gpus)

    def meter(self, target):
        return Meter()

    def conditions(self, target):
        return [DeviceConditions(uuid="S-0", temperature_celsius=99, throttle_reasons=["too-hot"], processes=[])]

    def datasheet(self, device_name):
        if device_name == "{NAME}":
            return Datasheet("", None, None, 1.0, None, None, None, None, None, None, 100.0, None)


class Meter:
    source = "the script"
    late = False

    def __init__(self):
        self.joules = 0.0

    def read(self):
        self.joules += {JOULES}
        return self.joules


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.now += {TICK}
        self.at = self.device.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


class ScriptedDevice(Device):
    now = 0.0

    def __init__(self, kind, index):
        super().__init__(kind, "{NAME}")

    def torch(self):
        return torch.device("cpu")

    def synchronize(self):
        pass

    def clock(self):
        ScriptedDevice.now += {TICK}  # so that no call is too short for a sample
        return self.now

    def event(self):
        return Event(self)

    def timeline(self, in_flight):
        from paceline.devices.timeline import EventTimeline

        return EventTimeline(self.event, in_flight, lambda: self.now)

    def format(self, precision):
        if precision == "fp16":
            return FormatSupport("none", "a scripted device has never heard of fp16: use fp32")
        return EMULATED if precision == "bf16" else NATIVE

    def peak_memory(self):
        return {ALLOCATED}, {RESERVED}
'''


@contextmanager
def scripted_machine(folder: Path, count: int) -> Iterator[Sandbox]:
    """A sandbox whose machine has so many devices of the kind."""
    with sandbox_in(folder) as place:
        plugins = place.folder / "plugins"
        information = plugins / "pace_scripted-1.0.dist-info"
        information.mkdir(parents=True)
        (plugins / "pace_scripted.py").write_text(KIND.replace("COUNT = 0", f"COUNT = {count}"))
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: pace-scripted\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[paceline.plugins]\nscripted = pace_scripted\n")
        yield place


def environment(place: Sandbox) -> dict[str, str]:
    """That of a machine on which no other device is to be seen."""
    path = os.pathsep.join([str(place.folder / "plugins"), str(PLUGIN)])
    return {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
