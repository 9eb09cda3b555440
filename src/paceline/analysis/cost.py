"""What the work of a case costs: prices of machines, energy and CO2, each with what it was computed from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.analysis.configuration import device_count, device_of, machine_of
from paceline.analysis.summary import Reading
from paceline.core.errors import InputError, unknown
from paceline.core.profile import Price
from paceline.core.quantity import parse_rate
from paceline.core.record import Record
from paceline.core.run import Run

JOULES_PER_KWH = 3.6e6
THOUSAND = 1000.0
_NUMBER = r"(\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)"
_AMOUNT = re.compile(rf"^\s*\$?\s*{_NUMBER}\s*(?:USD|\$)?\s*(?:(?:/|per)\s*(.*?))?\s*$")
_CARBON = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(g|kg)?\s*(?:/\s*kWh)?\s*$")


@dataclass(frozen=True)
class HourlyPrice:
    """What an hour of all that a case used costs."""

    usd: float
    basis: str


@dataclass(frozen=True)
class StatedPrice:
    """A price that the user stated: of one device, for the machines whose name has these words."""

    machine: str  # empty for all
    usd: float
    basis: str

    def fits(self, device: str) -> bool:
        """Whether this is the price of such a device."""
        return _words(self.machine) <= _words(device)


@dataclass(frozen=True)
class Derived:
    """A figure that was computed, and from what."""

    reading: Reading
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Prices:
    """Prices by source: what the user stated, then the record's, then a table."""

    table: Mapping[str, Price]
    stated: tuple[StatedPrice, ...] = ()

    def of(self, record: Record, run: Run) -> HourlyPrice | None:
        """The price of an hour of what this case used; None rather than that of something else."""
        device, count = device_of(record, run), device_count(record, run)
        for price in self.stated:
            if price.fits(device):
                return HourlyPrice(price.usd * count, _counted(price.basis, count))
        # The price that a served case was given, from what it says a thousand requests cost.
        cost, throughput = record.measurement("cost_per_thousand"), record.measurement("throughput")
        if cost is not None and throughput is not None and cost.value * throughput.value > 0:
            usd = float(f"{cost.value * throughput.value * 3600.0 / THOUSAND:.9g}")
            return HourlyPrice(usd, record.economy.price_basis or "as the run was configured")
        rows = self.fitting(device)
        if len(rows) != 1:
            return None
        return HourlyPrice(rows[0].per_device * count, _counted(f"{rows[0].instance}: {rows[0].basis}", count))

    def fitting(self, device: str) -> list[Price]:
        """The rows of the table that rent such a device."""
        return [row for row in self.table.values() if _words(row.device) <= _words(device)]

    def why_unknown(self, record: Record, run: Run) -> str:
        """Why there is no price, and what to do."""
        device = device_of(record, run)
        rows = self.fitting(device)
        if rows:
            word = rows[0].device.split()[-1]
            prices = ", ".join(f"{row.instance} {row.per_device:g} USD/h" for row in rows)
            return f"{device} is rented at several prices ({prices}): choose with --price '{word}={rows[0].instance}'"
        return f"the price of {machine_of(record, run)} is not known: state it with --price '2.5 USD/h'"

    def refuse_unused(self, devices: Sequence[str]) -> None:
        """A price for a machine that was not measured is a mistake."""
        for price in self.stated:
            if price.machine and not any(price.fits(device) for device in devices):
                message = f"no machine of these results has that name: {', '.join(sorted(set(devices))) or 'none'}"
                where = f"--price '{price.machine}=...'"
                raise InputError("unknown-machine", message, where=where, key="--price", value=price.machine)


def read_price(text: str, table: Mapping[str, Price]) -> StatedPrice:
    """A price as people write it: `2.5 USD/h`, `c7g.large`, `H100=3 USD/h`, `H100=p5.48xlarge`."""
    machine, separator, price = text.rpartition("=")
    if separator and not machine.strip():
        message = "name a machine before '=', like 'H100=3 USD/h'"
        raise InputError("missing-machine", message, where=f"--price '{text}'", key="--price", value=text)
    price = price.strip()
    if price in table:
        row = table[price]
        return StatedPrice(machine.strip(), row.per_device, f"{row.instance}: {row.basis}")
    amount, per = _amount(price)
    if amount is None:
        raise unknown("instance or price", price, table, key="--price")
    if per not in ("", "h", "hour"):
        message = "a price is for an hour, like '2.5 USD/h'"
        raise InputError("not-per-hour", message, where=f"--price '{text}'", key="--price", value=text)
    return StatedPrice(machine.strip(), amount, "as you said")


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: for an hour of everything, or for a thousand requests or samples."""

    usd: float
    per: str  # hour, thousand

    @classmethod
    def read(cls, text: str) -> Budget:
        """As people write it: `5 USD/h`, `0.02 USD/1k`."""
        amount, per = _amount(text)
        words = per.removesuffix("requests").removesuffix("samples").strip()
        kinds = {"h": "hour", "hour": "hour", "1k": "thousand", "1000": "thousand", "thousand": "thousand"}
        if amount is None or words not in kinds:
            message = f"'{text}' is not a budget: write it like '5 USD/h' or '0.02 USD/1k' (for 1,000 requests)"
            raise InputError("not-a-budget", message, key="--budget", value=text)
        return cls(amount, kinds[words])

    def __str__(self) -> str:
        return f"{self.usd:g} USD {'per hour' if self.per == 'hour' else 'per 1,000'}"


def read_carbon(text: str) -> float:
    """Grams of CO2 for a kilowatt-hour: `400 g/kWh`, `0.4 kg/kWh`."""
    match = _CARBON.match(text)
    value = float(match.group(1)) * (1000.0 if match.group(2) == "kg" else 1.0) if match else 0.0
    if value <= 0:
        message = f"'{text}' is not a carbon intensity: write it like '400 g/kWh'"
        raise InputError("not-a-carbon-intensity", message, key="--carbon", value=text)
    return value


def read_per_second(text: str) -> float:
    """A rate that must be served: `200/s`."""
    try:
        rate = parse_rate(text)
    except ValueError as error:
        raise InputError("not-a-rate", str(error), key="--rate", value=text) from None
    if rate <= 0:
        message = f"'{text}' is not a rate that can be served: write it like 200/s"
        raise InputError("out-of-range", message, key="--rate", value=text)
    return rate


def thousand(throughput: Reading, price: HourlyPrice) -> Reading:
    """What a thousand cost at this rate."""
    return throughput.over(price.usd / 3600.0 * THOUSAND)


def energy_of(record: Record) -> Derived | None:
    """The energy of one sample or request, otherwise of one token, where a counter of the device reported it."""
    for name in ("energy_per_request", "energy_per_sample", "energy_per_token"):
        energy = record.measurement(name)
        if energy is not None and math.isfinite(energy.value) and energy.value > 0:
            source = record.economy.energy_source
            return Derived(Reading.of(energy), (name, source) if source else (name,))
    return None


def co2_of(energy: Derived | None, carbon: float | None) -> Derived | None:
    """The CO2 of that energy; None without a carbon intensity."""
    if energy is None or carbon is None:
        return None
    stated = f"carbon intensity {carbon:g} g/kWh, as you said"
    return Derived(energy.reading.times(carbon / JOULES_PER_KWH), (*energy.inputs, stated))


def _amount(text: str) -> tuple[float | None, str]:
    match = _AMOUNT.match(text)
    if match is None or not 0 < (value := float(match.group(1))) < math.inf:
        return None, ""
    return value, (match.group(2) or "").strip()


def _counted(basis: str, count: int) -> str:
    return basis if count == 1 else f"{basis}, {count} of them"


def _words(name: str) -> set[str]:
    return {word.casefold() for word in re.split(r"[\s,_()-]+", name) if word}
