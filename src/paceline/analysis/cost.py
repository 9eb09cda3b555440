"""What the work of a case costs: prices of machines, energy and CO2, and what it takes at each power limit or clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.configuration import device_count, device_of, machine_of
from paceline.analysis.summary import CaseRow, Reading
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.profile import Price
from paceline.core.quantity import parse_rate
from paceline.core.record import Measurement, Record
from paceline.core.run import Run
from paceline.core.stats import median_interval

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


SLOWER = 0.05  # than the fastest limit, at most: the SLO of a sweep that states none
LEAST_SAVED = 0.01  # of the energy: counters are not exacter, however little the rates vary


@dataclass(frozen=True)
class LimitPoint:
    """The work at one limit; of repetitions the median."""

    limit: str  # empty for what was set before
    rate: float  # work in a second
    joules: float | None  # for one piece of work; None where nothing counted them
    keeps: float  # its rate as a part of the fastest one
    meets_slo: bool
    relative: float = 0.0  # the interval of the rate as a part of it; 0 where there is none

    @property
    def per_joule(self) -> float | None:
        return 1.0 / self.joules if self.joules else None


@dataclass(frozen=True)
class LimitSweep:
    """One piece of work at several limits, in their order."""

    work: str
    unit: str  # of one piece of work: image, FLOP
    source: str  # what counted the energy
    points: tuple[LimitPoint, ...]

    @property
    def best(self) -> LimitPoint | None:
        """What takes the least energy of those that meet the SLO; None where no energy is known, or none meets it."""
        return min(self._judged, key=lambda one: one.joules or 0.0, default=None)

    @property
    def fastest(self) -> LimitPoint | None:
        """The fastest of the same."""
        return max(self._judged, key=lambda one: one.rate, default=None)

    @property
    def saved(self) -> float | None:
        """What the best takes less than the fastest, as a part; None where that is not more than the figures vary."""
        best, fastest = self.best, self.fastest
        if not (best and best.joules and fastest and fastest.joules):
            return None
        saved = 1.0 - best.joules / fastest.joules
        return saved if saved >= max(LEAST_SAVED, best.relative, fastest.relative) else None

    @property
    def _judged(self) -> list[LimitPoint]:
        return [one for one in self.points if one.meets_slo and one.joules]


def limit_sweeps(rows: Sequence[CaseRow]) -> Iterator[LimitSweep]:
    """Every piece of work that was measured at two limits or more."""
    measured = [row for row in rows if row.ok and row.headline is not None]
    unlimited = {"power_limit": None, "clock_limit": None}
    for alike in group_by(measured, lambda row: row.case.model_copy(update=unlimited).key).values():
        by_limit = group_by(alike, lambda row: row.case.limits)
        if len(by_limit) < 2:
            continue
        rates = {limit: median(_rate(row) for row in same) for limit, same in by_limit.items()}
        fastest, points = max(rates.values()), []
        for limit, same in by_limit.items():
            rate, joules = rates[limit], [one for row in same if (one := joules_of(row)) is not None]
            keeps, energy = rate / fastest if fastest else 0.0, median(joules) if joules else None
            fast_enough = keeps >= 1.0 - SLOWER and not any(_misses(row) for row in same)
            points.append(LimitPoint(limit, rate, energy, keeps, fast_enough, _relative(same, rate)))
        first = alike[0]
        work = f"{first.case.benchmark} {first.case.title}".removesuffix(f" at {first.case.limits}")
        source = first.record.economy.energy_source if energy_of(first.record) else "the power that its driver reports"
        yield LimitSweep(work, _unit(first), source, tuple(points))


def joules_of(row: CaseRow) -> float | None:
    """For one piece of work: as a counter had it, or the power under this load over the rate."""
    energy, power = energy_of(row.record), row.figure("power")
    if energy is not None:
        return energy.reading.value
    rate = _rate(row)
    return power.value / rate if rate and power is not None and power.metric.unit == "W" else None


def _rate_of(row: CaseRow) -> Measurement:
    found = row.figure("throughput") or row.headline
    assert found is not None
    return found


def _rate(row: CaseRow) -> float:
    found = _rate_of(row)
    return 1.0 / found.value if found.value and found.metric.better is Better.LOWER else found.value


def _relative(same: Sequence[CaseRow], rate: float) -> float:
    """By the repetitions, or by the samples of the only one."""
    interval = median_interval([_rate(row) for row in same], independent=True)
    return interval.relative(rate) if interval else _rate_of(same[0]).relative or 0.0


def _unit(row: CaseRow) -> str:
    unit = _rate_of(row).metric.unit
    return unit.removesuffix("/s") if unit.endswith("/s") else "calls"


def _misses(row: CaseRow) -> bool:
    """Whether a served case has missed the SLO that it was given; of a sweep of loads, the one of its figures."""
    return row.record.load is not None and row.record.load.slo_met is False
