"""This machine's profile: which machine it belongs to, where it is kept, and the datasheets alongside its figures."""

from __future__ import annotations

import csv
import math
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from paceline.core.device import is_accelerator
from paceline.core.environment import Cpu, Environment
from paceline.core.errors import InputError, PacelineError, unknown
from paceline.core.files import data_directory, write_atomic
from paceline.core.probe import attempt
from paceline.core.profile import Ceiling, GpuIdentity, Identity, Price, Profile
from paceline.devices import datasheet, describe_devices
from paceline.devices.base import pcie_bandwidth
from paceline.machine import cpu

NAME = "prices.csv"
_COLUMNS = ("instance", "provider", "device", "devices", "usd_per_hour", "as_of", "source")


def price_of(instance: str) -> Price:
    """The price of an instance by its name."""
    prices = price_table()
    if instance not in prices:
        raise unknown("instance", instance, prices)
    return prices[instance]


def price_table() -> dict[str, Price]:
    """All known prices, by instance: the user's file if there is one, otherwise ours."""
    where = data_directory() / NAME
    if not where.is_file():
        where = Path(__file__).with_name(NAME)
    try:
        text = where.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("unreadable-file", f"{where} cannot be read: {error}", value=str(where)) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = csv.DictReader(lines)
    if tuple(rows.fieldnames or ()) != _COLUMNS:
        columns = ",".join(rows.fieldnames or ())
        message = f"the columns must be {','.join(_COLUMNS)}, not {columns}"
        raise InputError("wrong-columns", message, where=str(where), value=columns)
    prices = {}
    for number, row in enumerate(rows, start=1):
        try:
            price, devices = float(row["usd_per_hour"]), int(row["devices"])
        except (TypeError, ValueError) as error:
            raise InputError("not-a-number", str(error), where=f"{where}, row {number}") from None
        if not 0 < price < math.inf or devices < 1:
            message = "a price and a number of devices are positive"
            raise InputError("out-of-range", message, where=f"{where}, row {number}")
        basis = f"{row['provider']}, {row['as_of']}: {row['source']}"
        prices[row["instance"]] = Price(row["instance"], price, devices, row["device"], basis)
    return prices


MEASURE_AGAIN = "measure again: paceline machine --measure"


def identify() -> Identity:
    """Which machine this process is on; asks only what it needs, since benchmarks ask this, too."""
    host, processor = attempt(socket.gethostname), attempt(cpu.describe_cpu) or Cpu()
    return identity_of(Environment(host=host, cpu=processor, gpus=describe_devices().gpus))


def identity_of(environment: Environment) -> Identity:
    """Which machine an environment was taken on."""
    named = [GpuIdentity(name=one.name, uuid=one.uuid) for one in environment.gpus if one.name and one.uuid]
    return Identity(
        # A GPU is one of a kind wherever it is; a container's name is a new one each time.
        host=None if named else environment.host,
        architecture=environment.cpu.architecture,
        cpu=environment.cpu.model,
        cores=environment.cpu.usable,
        gpus=tuple(sorted(named, key=lambda one: one.uuid)),
    )


def profile_path(identity: Identity) -> Path:
    """Where the profile of a machine is kept: a file for each, as a home folder may be shared by many."""
    return data_directory() / "profiles" / f"{identity.key}.json"


def save_profile(profile: Profile) -> Path:
    """Store a profile, instead of an earlier one of the same machine."""
    path = profile_path(profile.identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, profile.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise PacelineError(f"the profile cannot be written to {path}: {error.strerror}; set $XDG_DATA_HOME") from None


def load_profile(identity: Identity | None = None) -> Profile | None:
    """The profile of this machine, or None where it was never measured."""
    identity = identity or identify()
    path = profile_path(identity)
    try:
        profile = Profile.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'the text'}: {first['msg']}"
        raise PacelineError(f"the profile {path} cannot be read ({reason}); {MEASURE_AGAIN}") from None
    return profile if profile.identity == identity else None


def software_of(environment: Environment) -> dict[str, str]:
    """Versions that bear on a machine's ceilings."""
    versions = {
        "paceline": environment.software.paceline,
        "torch": environment.software.packages.get("torch"),
        "driver": environment.driver.version if environment.driver else None,
        "kernel": environment.kernel,
    }
    return {name: version for name, version in versions.items() if version}


def changes_since(profile: Profile, environment: Environment) -> list[str]:
    """What differs between the software of now and that of the profile, in words."""
    now = software_of(environment)
    return [
        f"{name} was {profile.software.get(name, 'absent')} and is {now.get(name, 'absent')}"
        for name in dict.fromkeys([*profile.software, *now])
        if profile.software.get(name) != now.get(name)
    ]


def with_datasheets(ceilings: Iterable[Ceiling], environment: Environment) -> tuple[Ceiling, ...]:
    """The same ceilings with the vendors' figures alongside, where a device or its link is known."""
    return tuple(one.model_copy(update={"datasheet": _datasheet_value(one, environment)}) for one in ceilings)


def _datasheet_value(ceiling: Ceiling, environment: Environment) -> float | None:
    if not is_accelerator(ceiling.device):
        return None
    sheet = datasheet(ceiling.device_name)
    match ceiling.kind:
        case "compute" if sheet:
            return sheet.rate(ceiling.name)
        case "memory" if sheet and ceiling.name == "device memory":
            return sheet.memory_bandwidth
        case "link" if "host" in ceiling.name:
            # What the driver says the link can carry; G*200 are linked to their hosts by NVLink.
            gpu = next((gpu for gpu in environment.gpus if gpu.name == ceiling.device_name), None)
            if gpu is None or re.search(r"\bG[BH]200\b", ceiling.device_name):
                return None
            # Idle, it may be in a lower generation.
            return pcie_bandwidth(gpu.pcie_generation_max or gpu.pcie_generation, gpu.pcie_width)
        case "link" if sheet and "GPU" in ceiling.name:
            return sheet.link_bandwidth
    return None
