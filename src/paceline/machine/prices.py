"""What machines cost by the hour: a table that ships with Paceline, or the user's own in its place."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from paceline.core.errors import InputError, unknown
from paceline.core.files import data_directory

NAME = "prices.csv"
_COLUMNS = ("instance", "provider", "device", "devices", "usd_per_hour", "as_of", "source")


@dataclass(frozen=True)
class Price:
    """One kind of machine, or a part of one, to rent."""

    instance: str
    usd_per_hour: float
    devices: int
    device: str
    basis: str  # whose price, from when

    @property
    def per_device(self) -> float:
        """For an hour of one of its devices."""
        return self.usd_per_hour / self.devices


def price_of(instance: str) -> Price:
    """The price of an instance by its name."""
    known = price_table()
    if instance not in known:
        raise unknown("instance", instance, known)
    return known[instance]


def price_table() -> dict[str, Price]:
    """All known prices, by instance: the user's file if there is one, else ours."""
    own = data_directory() / NAME
    if own.is_file():
        try:
            return _read(own.read_text(encoding="utf-8"), own)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("unreadable-file", f"{own} cannot be read: {error}", value=str(own)) from None
    return _read((files("paceline.machine") / NAME).read_text(encoding="utf-8"), Path(NAME))


def _read(text: str, where: Path) -> dict[str, Price]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = csv.DictReader(lines)
    if tuple(rows.fieldnames or ()) != _COLUMNS:
        columns = ",".join(rows.fieldnames or ())
        message = f"the columns must be {','.join(_COLUMNS)}, not {columns}"
        raise InputError("wrong-columns", message, where=str(where), value=columns)
    found = {}
    for number, row in enumerate(rows, start=1):
        try:
            price, devices = float(row["usd_per_hour"]), int(row["devices"])
        except (TypeError, ValueError) as error:
            raise InputError("not-a-number", str(error), where=f"{where}, row {number}") from None
        if not 0 < price < math.inf or devices < 1:
            message = "a price and a number of devices are positive"
            raise InputError("out-of-range", message, where=f"{where}, row {number}")
        basis = f"{row['provider']}, {row['as_of']}: {row['source']}"
        found[row["instance"]] = Price(row["instance"], price, devices, row["device"], basis)
    return found
