"""Burn-in: checked matrix products for minutes or hours; one wrong element fails the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import COMPUTE_RATE, OneOrMore, TorchBenchmark, join_words
from paceline.benchmarks.compute.gemm import GemmParameters, Product, wipe
from paceline.benchmarks.ranks import emulated
from paceline.core.benchmark import START_SECONDS, Context, Progress
from paceline.core.device import split_target
from paceline.core.environment import Environment
from paceline.core.errors import SilentCorruption
from paceline.core.metric import Better, Merge, Metric
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, show_duration
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import Description, NumberFormat
from paceline.devices import Device, open_device
from paceline.machine import conditions
from paceline.measure.digest import bits
from paceline.measure.pace import lasting_pace
from paceline.models.base import set_fp32_mode

ROUNDS = 500  # about so many samples, however long it takes
SHORTEST_ROUND, LONGEST_ROUND = 0.05, 10.0  # seconds
TIMED = 3  # products, of which the fastest says how many make a round
WRONG = Metric(
    name="wrong_elements",
    unit="",
    better=Better.LOWER,
    merge=Merge.SUM,
    description="elements of a result whose bits differ from those of the first result of the same operands",
)


class BurnParameters(Parameters):
    """For how long, and in which formats."""

    duration: Duration = Field(default=60.0, gt=0)
    """Time to compute for; hours find what minutes do not (8h)"""
    formats: Annotated[list[NumberFormat], OneOrMore, Field(min_length=1)] | None = None
    """Number formats, in alternation: fp64, fp32 (true), tf32, fp16, bf16, fp8 (e4m3), int8; unset is bf16 on a GPU and
    fp32 on a CPU"""
    size: int | None = Field(default=None, ge=16)
    """Edge of the square matrices; unset takes what fills the device"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of the data"""


class Burn(TorchBenchmark[BurnParameters]):
    """The same products again and again; every result is compared bit for bit with the first, on the device."""

    name = "burn"
    summary = "checked matrix products for minutes or hours: wrong elements, FLOP/s over time, pass or fail"
    category = "compute"
    is_within_device = True
    metrics = (COMPUTE_RATE, WRONG)

    @classmethod
    def title(cls, parameters: BurnParameters) -> str:
        size = str(parameters.size) if parameters.size else ""
        return join_words("+".join(parameters.formats or ()), size, show_duration(parameters.duration))

    @classmethod
    def expected_seconds(cls, parameters: BurnParameters) -> float:
        return parameters.duration + START_SECONDS

    @classmethod
    def describe(cls, record: Record, parameters: BurnParameters, environment: Environment) -> Description:
        index = split_target(record.case.target)[1] or "0"
        values = {"time": parameters.duration, f"gpu_{index}_pass": 1.0}
        return Description(aliases=_superbench.alias(record, "gpu-burn", values, gpu=True))

    def measure(self, parameters: BurnParameters, context: Context) -> Result:
        device = open_device(context.target)
        usual: NumberFormat = "bf16" if device.kind.is_accelerator else "fp32"
        chosen = list(dict.fromkeys(parameters.formats or [usual]))
        for one in chosen:
            formats.check_device(one, device)
        lasts = min(max(parameters.duration / ROUNDS, SHORTEST_ROUND), LONGEST_ROUND) / len(chosen)
        products = [CheckedProduct(one, parameters, device, lasts) for one in chosen]
        before = conditions.observe(context.target)
        errors = _burn(products, parameters.duration, context)
        after = conditions.observe(context.target)
        pace = lasting_pace(device.kind, 0.0, sum(sum(one.seconds) for one in products), before, after)
        result = Result(
            measurements=_measurements(products),
            facts={
                "device": device.name,
                **({"precision": chosen[0]} if len(products) == 1 else {}),
                "shape": {one.precision: "x".join(map(str, one.product.shape)) for one in products},
                "products": {one.precision: one.count for one in products},
                "library_call": {one.precision: one.product.how for one in products},
                "checked": "every element of every product, bit for bit, with the first product of the same operands; "
                f"of that one, {products[0].product.checked}",
                "errors": errors,
                "timing": "host monotonic clock around each round, device synchronised; comparing is a part of it",
                "pace": pace.model_dump(mode="json"),
                "conditions": {"before": before.model_dump(mode="json"), "after": after.model_dump(mode="json")},
            },
            warnings=[warning for one in products for warning in emulated(one.precision, device)]
            + conditions.warnings(before, after),
        )
        context.keep(result)
        if errors:
            raise SilentCorruption(_complaint(errors, products, context.target, device))
        for product in products:
            product.check()
        return result


def _burn(products: Sequence[CheckedProduct], duration: float, context: Context) -> list[dict[str, Any]]:
    """Rounds of all products until the time is over; when and where there were wrong elements."""
    device, errors = products[0].device, list[dict[str, Any]]()
    begun = device.clock()
    while (elapsed := device.clock() - begun) < duration:
        for product in products:
            wrong = product.run()
            if wrong:
                after = round(device.clock() - begun, 3)
                errors.append({"format": product.precision, "after": after, "wrong": wrong, "again": product.locate()})
        rate = _rate(products, len(products[0].seconds) - 1)
        phase = f"{elapsed / duration:.0%} of {show_duration(duration)}"
        phase += f", {sum(one.wrong for one in products):,} wrong elements" if errors else ""
        context.report(Progress(phase=phase, metric=COMPUTE_RATE.name, unit=products[0].unit, samples=(rate,)))
    return errors


def _rate(products: Sequence[CheckedProduct], number: int) -> float:
    """Of all formats in one round."""
    return sum(one.work for one in products) / sum(one.seconds[number] for one in products)


def _measurements(products: Sequence[CheckedProduct]) -> list[Measurement]:
    """Of all formats together, and of each where there are several."""
    rounds = range(len(products[0].seconds))
    rate = COMPUTE_RATE.model_copy(update={"unit": products[0].unit})
    measured = [Measurement.of_value(WRONG, sum(one.wrong for one in products))]
    if len({one.unit for one in products}) == 1:  # operations of floats and of whole numbers are not added up
        measured.insert(0, Measurement.of_samples(rate, [_rate(products, number) for number in rounds]))
    for one in products if len(products) > 1 else ():
        unit = COMPUTE_RATE.model_copy(update={"unit": one.unit})
        at: dict[str, int | float | str] = {"format": one.precision}
        measured.append(Measurement.of_samples(unit, [one.work / seconds for seconds in one.seconds], at=at))
        measured.append(Measurement.of_value(WRONG, one.wrong, at=at))
    return measured


def _complaint(
    errors: Sequence[dict[str, Any]], products: Sequence[CheckedProduct], target: str, device: Device
) -> str:
    wrong = ", ".join(f"{one.wrong:,} in {one.precision}" for one in products if one.wrong)
    rounds, first = len(products[0].seconds), errors[0]
    look = f", look at its memory errors ({device.kind.tool.show_errors})" if device.kind.is_accelerator else ""
    return (
        f"{target} ({device.name}) computed wrong elements: {wrong}, found {len(errors)} times in {rounds:,} rounds of "
        f"products; first in {first['format']} after {show_duration(first['after'])}, {first['again']}. Take it out of "
        f"use{look}, and burn it again at lower clocks to tell heat and power from a defect"
    )


@dataclass
class CheckedProduct:
    """A product whose every result is compared bit for bit with its first."""

    precision: NumberFormat
    parameters: BurnParameters
    device: Device
    lasts: float  # seconds of the products of one round
    seconds: list[float] = field(default_factory=list)  # of each round
    count: int = 0  # products so far
    wrong: int = 0  # elements

    def __post_init__(self) -> None:
        import torch

        of = GemmParameters(precision=self.precision, size=self.parameters.size, seed=self.parameters.seed)
        self.product = Product(of, self.device)
        self.check()
        self._first = bits(self.product.call()).clone()
        self._differing = torch.zeros((), dtype=torch.int64, device=self.device.torch())
        self._calls = 1
        self._calls = max(1, round(self.lasts / min(self.device.seconds_of(self._block) for _ in range(TIMED))))

    @property
    def work(self) -> float:
        """Operations in a round."""
        m, n, k = self.product.shape
        return 2.0 * m * n * k * self._calls

    @property
    def unit(self) -> str:
        """Of the rate."""
        return "OP/s" if self.precision == "int8" else "FLOP/s"

    def check(self) -> None:
        """Compare some rows with a higher precision: what is wrong every time differs from nothing else."""
        set_fp32_mode(self.precision)
        self.product.check()

    def run(self) -> int:
        """One round; how many elements differ in it."""
        set_fp32_mode(self.precision)
        wipe(self.product.call())  # a call that writes nothing must not pass
        self.seconds.append(self.device.seconds_of(self._block))
        self.count += self._calls
        wrong = int(self._differing) - self.wrong
        self.wrong += wrong
        return wrong

    def locate(self) -> str:
        """Whether the same product is wrong once more, and where."""
        result = self.product.call()
        places = (bits(result) != self._first).nonzero()
        if not len(places):
            return "and right when it was computed again"
        place = tuple(int(one) for one in places[0])
        expected = self._first.view(result.dtype)[place]
        return f"and again in {len(places):,} elements: at {list(place)} {result[place]:.9g} instead of {expected:.9g}"

    def _block(self) -> None:
        for _ in range(self._calls):
            self._differing += (bits(self.product.call()) != self._first).sum()
