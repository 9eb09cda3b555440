"""What a record says of itself to programs: what was measured, its work, what it shows of a device, other names.

A benchmark makes this when a case has ended (`Benchmark.describe`), so that analysis and reports need to know no
benchmark by its name and to look into no parameter or fact.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.core.quantity import show_duration
from paceline.core.trace_events import IDLE, TimeSpent
from paceline.core.trace_signs import StepDetails

FloatPrecision = Literal["fp32", "fp16", "bf16"]
MatmulPrecision = Literal["fp32", "tf32", "fp16", "bf16"]
ModelPrecision = Literal[MatmulPrecision, "fp8_hybrid", "fp8_e4m3"]  # the last two are recipes of 8-bit training
NumberFormat = Literal["fp64", MatmulPrecision, "fp8", "int8"]  # what units compute in
ProductFormat = Literal[NumberFormat, "fp4", "int4"]  # of operands
Precision = Literal[ProductFormat, ModelPrecision]
CeilingKind = Literal["compute", "memory", "link", "storage", "launch", "latency"]
At = dict[str, int | float | str]

MAIN_MEMORY = "main memory"  # names of ceilings that a roofline asks for
DEVICE_MEMORY = "device memory"
COPY_WITHIN_DEVICE = "copy within device memory"
TAILS = ("p99", "p95", "p90", "p50")  # percentiles of a served latency, the most telling first
# Where the time of a served request goes, as it meets them.
REQUEST_STAGES = (
    "client pre",
    "send lateness",
    "transmission",
    "decode",
    "pre",
    "queue",
    "batch",
    "inference",
    "post",
    "client post",
)
REQUEST_GROUPS = ("turn", "model")  # by what requests of one load may differ: of a conversation, of a mix of adapters
SUPERBENCH = "superbench"  # a tool whose names records carry as aliases

# Bytes of a number, narrowest first.
BYTES: dict[str, int] = {
    "int8": 1, "fp8": 1, "fp8_e4m3": 1, "fp8_hybrid": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8,
}  # fmt: skip


def number_format(precision: str) -> str:
    """The format that the units compute in: the recipes of 8-bit training share one."""
    return "fp8" if precision.startswith("fp8") else precision


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Subject(_Part):
    """What was measured; None where a benchmark has no such thing."""

    model: str | None = None
    scale: str | None = None  # of a model: full, tiny, ...
    precision: Precision | None = None
    batch: int | None = None  # samples in a step or call, of all ranks together
    layout: str | None = None  # data x tensor x pipeline, as `Layout` writes it
    device: str | None = None  # as its maker calls it
    engine: str | None = None  # what computes or serves: a library, a backend, a server
    threads: int | None = None
    compiled: bool | None = None
    seed: int | None = None


class Work(_Part):
    """What one device does in one step or call, and how fast."""

    flops: float = Field(gt=0)
    bytes: float = Field(gt=0)  # moved through memory, at least
    rate: float = Field(gt=0)  # operations per second of one device
    unit: str  # of the rate
    number_format: str  # that the units compute in: a precision, perhaps of the plain units
    formula: str  # how the bytes were counted
    is_modelled: bool = False  # rather than exact
    left_out: str = ""  # what was not counted, so that more is moved than this
    passed: float = 0.0  # of what was left out, the bytes that operators hand each other; a cache may hold them

    @property
    def intensity(self) -> float:
        """Operations for each byte; at most this many, where bytes are left out."""
        return self.flops / self.bytes

    @property
    def traffic(self) -> float:
        """Bytes per second, at least."""
        return self.rate / self.intensity

    @property
    def most_traffic(self) -> float | None:
        """Bytes per second if no cache held anything; None where that is not known."""
        if self.left_out and not self.passed:
            return None
        return self.rate * (self.bytes + self.passed) / self.flops

    @property
    def least_intensity(self) -> float | None:
        """Operations for each byte if no cache held anything; None where that is not known."""
        most = self.most_traffic
        return None if most is None else self.rate / most


class ShownCeiling(_Part):
    """One measurement of a record that shows what its device can do at most."""

    kind: CeilingKind
    name: str  # a precision, a level of memory, a direction of copying, ...
    metric: str
    at: At = Field(default_factory=dict)


def key_word(value: object) -> str:
    """A value as a part of a key: without the signs that divide keys."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)


class Alias(_Part):
    """The figures of a record under the names and in the units of another tool."""

    group: str  # that tool's name of the benchmark
    prefix: str = ""  # how the names of its metrics begin
    part: str = ""  # which of the group's metrics; records of different parts share no key
    note: str = ""  # what sets it apart from what that tool measures under this name
    is_model: bool = False  # that tool has return codes of its own for models
    is_original: bool = False  # that tool measured it
    values: dict[str, float] = Field(default_factory=dict)


class SweptLoad(_Part):
    """One load of a sweep."""

    at: float  # users, or requests/s
    begun: float  # seconds after the first load began
    slo: str = ""  # held, missed, or what would decide it


class LoadSeries(_Part):
    """A figure over the time of a load: of the requests, or what the server reports of itself."""

    name: str
    unit: str
    seconds: tuple[float, ...]  # after the first load began
    values: tuple[float, ...]


class ServedLoad(_Part):
    """How a server was loaded, and the SLO that it was to meet."""

    loop: str  # open, closed, burst
    server: str = ""  # its address, where it is not ours
    users: int | None = None  # of a closed loop
    rate: float | None = None  # of an open loop, requests/s, as it was asked for
    samples: int = 1  # in a request
    is_shared_memory: bool = False  # whether requests do not travel, but lie where the server sees them
    slo: dict[str, float] = Field(default_factory=dict)  # bounds in seconds, by percentile: {"p99": 0.1}
    slo_errors: float | None = None  # the part of the requests that may fail
    slo_met: bool | None = None  # None where there is none, or where the requests leave it open
    slo_missed_because: str = ""
    slo_undecided: str = ""  # what would decide it, where the requests leave it open
    kind: dict[str, Any] = Field(default_factory=dict)  # of which kind it was: its arrivals, not how much of it
    traffic: dict[str, Any] = Field(default_factory=dict)  # the same and how much of it, not how long it was
    requests: dict[str, Any] = Field(default_factory=dict)  # what is sent, as far as it is not the usual
    setting: str = ""  # the same for records of one server under one kind of load, however much of it there was
    devices: int | None = None  # that the server computes with, where that is known
    sweep: str = ""  # in what its loads differ, where there are several: users or rate
    loads: tuple[SweptLoad, ...] = ()
    headline_at: str = ""  # of the loads of a sweep, that of the figures as a whole: 8 users
    series: tuple[LoadSeries, ...] = ()


class Economy(_Part):
    """Where energy and cost come from."""

    energy_source: str = ""
    price_basis: str = ""
    carbon: float | None = None  # g CO2 per kWh, as the user said


class StepTrace(_Part):
    """What became of the trace that a case was to take of its steps."""

    spent: TimeSpent | None = None
    details: StepDetails | None = None
    missing: str = ""  # why there is none
    file: str = ""
    no_file: str = ""  # why its file was not kept
    bytes: int | None = None
    slowdown: float | None = None  # a traced step over a measured one
    launch_cost: float | None = None  # seconds that tracing adds before each kernel of a graph
    issue_seconds: float | None = None  # what the host takes to issue a step to an idle device
    switches: tuple[str, ...] = ()  # options that give the device more at once and are off: --compile on, --graph on
    alternatives: tuple[str, ...] = ()  # parameters that could have another value: compile=on, precision=bf16
    given: dict[str, str] = Field(default_factory=dict)  # as what a user sets an alternative that is part of a word

    @property
    def gaps(self) -> float:
        """Seconds of a traced step without work, less what tracing itself adds before each kernel of a graph."""
        return max(0.0, self._without_work - self.added_gaps)

    @property
    def added_gaps(self) -> float:
        """Seconds of a traced step that tracing adds between kernels, where that was measured."""
        return min(self._without_work, (self.spent.launches if self.spent else 0.0) * (self.launch_cost or 0.0))

    def idle(self, step: float) -> float:
        """Seconds without work that a measured step can have had: tracing makes a step longer by more of them."""
        busy = self.spent.step_seconds - self._without_work if self.spent else 0.0
        return min(self.gaps, max(0.0, step - busy))

    @property
    def _without_work(self) -> float:
        return self.spent.shares.get(IDLE, 0.0) * self.spent.step_seconds if self.spent else 0.0


class Pace(_Part):
    """At which of its paces a device was measured: the one that it keeps up, or the faster one after a rest."""

    kind: Literal["sustained", "burst", "short"]  # short: not long enough under load to say that it keeps it up
    load_before: float = Field(ge=0)  # seconds under load before the first sample; of a burst, before each
    measured: float = Field(ge=0)  # seconds under load in all samples; of a burst, in each
    boost: float = Field(ge=0)  # seconds under load after which a device of this kind no longer runs above its pace
    rest: float = Field(default=0.0, ge=0)  # seconds, before each burst
    power_limited: float | None = (
        None  # the part of the time that its power limit held it down while under load, if known
    )

    @property
    def reason(self) -> str:
        """Why it is of this kind, as a sentence for people."""
        load = f"{show_duration(self.load_before)} under load before and {show_duration(self.measured)} while measured"
        power = ""
        if self.power_limited is not None:
            power = f"; its power limit held the device down for {100 * self.power_limited:.0f} % of the time"
        if self.kind == "burst":
            rest = f"each burst of {show_duration(self.measured)} began after {show_duration(self.rest)} of rest"
            return f"{rest} and {show_duration(self.load_before)} of lead-in{power}"
        if self.kind == "sustained":
            return f"{load}{power}"
        return (
            f"{load}: a device of this kind may run faster than it can sustain for {show_duration(self.boost)}{power}"
        )


class Fingerprint(_Part):
    """A digest of everything that a case computed, which is the same wherever the same was computed."""

    digest: str
    basis: str  # what must be the same as well: the device and the libraries
    steps: tuple[str, ...] = ()  # those of the steps one by one


class Description(BaseModel):
    """Everything that a record says of itself to programs."""

    model_config = ConfigDict(extra="forbid")

    primary: str = ""  # the metric that leads
    subject: Subject = Subject()
    work: Work | None = None
    counts_work: bool = False  # whether a reader would look for it under a roof, counted or not
    ceilings: tuple[ShownCeiling, ...] = ()
    aliases: dict[str, Alias] = Field(default_factory=dict)  # by tool: "superbench"
    load: ServedLoad | None = None
    economy: Economy = Economy()
    trace: StepTrace | None = None
    timing: str = ""  # how times were taken
    pace: Pace | None = None  # None where nothing keeps a device under load
    fingerprint: Fingerprint | None = None  # None where results are not comparable bit for bit
