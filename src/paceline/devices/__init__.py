"""Devices: one module per kind, and nothing outside it names what is a vendor's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from paceline.core.device import HOST, split_target
from paceline.core.probe import attempt
from paceline.devices.base import DEVICE_KINDS, Datasheet, Described
from paceline.devices.base import Device as Device
from paceline.devices.base import DeviceKind as DeviceKind


@lru_cache(maxsize=32)
def kind_named(name: str) -> DeviceKind:
    """The kind of this name; an unknown one is refused."""
    return DEVICE_KINDS.get(name)()


def kind_of(target: str) -> DeviceKind:
    """The kind that a target names."""
    return kind_named(split_target(target)[0])


def open_device(target: str) -> Device:
    """The device that a target names."""
    kind, index = split_target(target)
    return kind_named(kind).open(int(index or 0))


def accelerators() -> list[DeviceKind]:
    """Every kind except the host's own."""
    return [kind_named(name) for name in DEVICE_KINDS.registry().entries if name != HOST]


def counts() -> dict[str, int]:
    """How many devices this process sees of each kind except the host's own; kinds without any are left out."""
    numbers = {kind.name: kind.count() for kind in accelerators()}
    return {name: count for name, count in numbers.items() if count}


def device_count() -> int:
    """How many devices there are of the kind that `auto` takes."""
    return next(iter(counts().values()), 0)


def visible_variables() -> list[str]:
    """The variables of the environment that make devices visible, of every kind."""
    return [kind.visible_variable for kind in accelerators() if kind.visible_variable]


def showing_only(indices: Iterable[int]) -> dict[str, str]:
    """The environment in which a process sees only these devices of this machine."""
    kinds = [kind_named(name) for name in counts()] or accelerators()[:1]
    shown = ",".join(map(str, indices))
    return {kind.visible_variable: shown for kind in kinds if kind.visible_variable}


def fork_environment() -> dict[str, str]:
    """What must be set for a process that imports torch and forks others."""
    return {name: value for kind in accelerators() for name, value in kind.fork_environment.items()}


def describe_devices() -> Described:
    """The first driver, and the devices of every kind except the host's own; a kind that fails has none."""
    kinds = [attempt(kind.describe) or Described() for kind in accelerators()]
    driver = next((one.driver for one in kinds if one.driver is not None), None)
    return Described(driver, [gpu for one in kinds for gpu in one.gpus])


def datasheet(device_name: str) -> Datasheet | None:
    """The vendor's figures for the device of this name, if it is known."""
    sheets = (kind.datasheet(device_name) for kind in accelerators())
    return next((sheet for sheet in sheets if sheet is not None), None)
