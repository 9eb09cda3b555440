"""What a serving case is made of: a model, a server, requests, a load, an SLO, and what it costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, field_validator, model_validator

from paceline.benchmarks.serving.spending import SpendLimits
from paceline.core.errors import InputError, located
from paceline.core.network import OTHER_HOSTS, PROGRAM, WORD, FromNetwork
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, Fraction, Latency, show_duration
from paceline.core.subject import FloatPrecision
from paceline.core.tails import CLEARLY, FEWEST_BEYOND, fewest, not_decidable, tails, to_decide
from paceline.load.clients import read_names
from paceline.load.distribution import Distribution
from paceline.load.parameters import SWEEP_POINTS, LoadParameters, RequestParameters
from paceline.load.request import Wire
from paceline.load.trace import Trace
from paceline.models.sources import MODEL_INPUT, MODEL_NAME
from paceline.remote.hosts import SSH, RemoteShell
from paceline.servers import SERVERS
from paceline.servers.base import Need, ServerSettings

USUAL_WARM_UP = 5.0  # seconds
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}  # of the requests, by percentile


class Slo(Parameters):
    """Bounds on latency from the intended time of a request; all of them have to be met."""

    p50: Latency | None = Field(default=None, gt=0)
    """Half of the requests are answered within this time"""
    p90: Latency | None = Field(default=None, gt=0)
    """90 % of the requests are answered within this time"""
    p95: Latency | None = Field(default=None, gt=0)
    """95 % of the requests are answered within this time"""
    p99: Latency | None = Field(default=None, gt=0)
    """99 % of the requests are answered within this time"""
    p99_9: Latency | None = Field(default=None, gt=0)
    """99.9 % of the requests are answered within this time"""
    first_token: Latency | None = Field(default=None, gt=0)
    """Language models: the first token comes within this time, for as many requests as the highest percentile says"""
    between_tokens: Latency | None = Field(default=None, gt=0)
    """Language models: so long between tokens on average, for as many requests as the highest percentile says"""
    errors: Fraction = Field(default=0.01, ge=0, lt=1)
    """Part of the requests that may fail or be shed"""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: object) -> object:
        """`p99=50ms,errors=1%` as on a command line."""
        if not isinstance(given, str):
            return given
        pairs = [part.partition("=") for part in given.split(",")]
        return {name.strip().replace(".", "_"): value.strip() for name, _, value in pairs}

    @model_validator(mode="after")
    def _says_something(self) -> Slo:
        bounds = self.bounds
        if not bounds and not self.is_about_tokens:
            raise ValueError("an slo needs a bound, like {p99: 100ms}")
        ordered = [bound.limit for bound in bounds]
        if ordered != sorted(ordered):
            raise ValueError("a higher percentile cannot have a shorter bound than a lower one")
        return self

    @property
    def bounds(self) -> list[SloBound]:
        """The bounds on the whole latency, the lowest percentile first."""
        limits = {label: getattr(self, label.replace(".", "_")) for label in SHARES}
        return [SloBound(label, SHARES[label], limit) for label, limit in limits.items() if limit is not None]

    @property
    def limits(self) -> dict[str, float]:
        """All bounds in seconds, by their names."""
        tokens = {"first_token": self.first_token, "between_tokens": self.between_tokens}
        limits = {bound.label: bound.limit for bound in self.bounds}
        return limits | {name: limit for name, limit in tokens.items() if limit is not None}

    @property
    def is_about_tokens(self) -> bool:
        """Whether it can be judged only where answers come token by token."""
        return self.first_token is not None or self.between_tokens is not None

    @property
    def share(self) -> float:
        """The part of the requests that the strictest percentile is about."""
        return self.bounds[-1].share if self.bounds else SHARES["p99"]

    def good(self, trace: Trace) -> NDArray[np.bool_]:
        """Which requests met the SLO; of several percentiles the highest bound counts."""
        good = trace.ok.copy()
        if self.bounds:
            good &= trace.latency <= self.bounds[-1].limit
        return good & (self._token_use(trace) <= 1.0) if self.is_about_tokens else good

    def _token_use(self, trace: Trace) -> NDArray[np.float64]:
        """Which part of the bounds on tokens each request took; above 1 it missed one."""
        if trace.chunks is None:
            return np.full(len(trace), np.inf)
        use = np.where(trace.ok, 0.0, np.inf)
        if self.first_token is not None:  # a request without any token never has a first: an early head holds nothing
            use = np.maximum(use, np.nan_to_num(trace.first_token, nan=np.inf) / self.first_token)
        if self.between_tokens is not None:
            use = np.maximum(use, np.nan_to_num(trace.between_tokens) / self.between_tokens)
        return use

    def judge(self, trace: Trace) -> SloVerdict:
        """Whether the SLO was met; a request without an answer counts as infinitely late, unless its user left."""
        trace = trace.kept
        count, failed = len(trace), int(np.count_nonzero(~trace.ok))
        latency = np.where(trace.ok, trace.latency, np.inf)
        # How many missed each bound, the part of the requests that has to meet it, and what to say of it.
        bounds = [(failed, 1.0 - self.errors, f"{failed} of {count} requests failed or were shed")]
        for bound in self.bounds:
            value = float(np.quantile(latency, bound.share, method="inverted_cdf"))  # as it is reported
            shown = show_duration(value) if math.isfinite(value) else "without end"
            reason = f"{bound.label} is {shown}, above {show_duration(bound.limit)}"
            bounds.append((int(np.count_nonzero(latency > bound.limit)), bound.share, reason))
        if self.is_about_tokens:
            late = int(np.count_nonzero(~self.good(trace)))
            bounds.append((late, self.share, f"{late} of {count} requests missed the bounds on tokens"))
        # A tenth of ten is one, whatever floating point says.
        reasons = [reason for missed, share, reason in bounds if missed > (1.0 - share) * count + 1e-9 * count]
        used = [
            missed / ((1.0 - share) * count) if share < 1.0 else math.inf if missed else 0.0
            for missed, share, _ in bounds
        ]
        return SloVerdict(not reasons, reasons[0] if reasons else "", max(used))

    def decide(self, trace: Trace) -> SloDecision:
        """Whether the load meets the SLO as far as these requests can show it."""
        trace = trace.kept
        latency = np.where(trace.ok, trace.latency, np.inf)
        uses = [(bound.share, latency / bound.limit) for bound in self.bounds]
        uses += [(self.share, self._token_use(trace))] if self.is_about_tokens else []
        failed = np.count_nonzero(~trace.ok) > (self.errors + 1e-9) * len(trace)
        decisions = [_is_within(use, share) for share, use in uses]
        if failed or any(is_met is False for is_met, _ in decisions):
            return SloDecision(False, self.judge(trace).reason)
        more = max(more for _, more in decisions)
        return SloDecision(None, not_decidable(more)) if more else SloDecision(True)


def _is_within(use: NDArray[np.float64], share: float) -> tuple[bool | None, int]:
    """Whether so many of the requests are within a bound; if that is open, how many more would show it."""
    count, late = use.size, int(np.count_nonzero(use > 1.0))
    (tail,) = tails(use, [share])
    if count >= fewest(share) and tail.interval is not None:
        more = to_decide(tail.value, tail.interval, count, 1.0)
        return (None if more else tail.interval.high <= 1.0), more
    # Without an interval only what is far beyond the bound is beyond doubt.
    if late >= max(FEWEST_BEYOND, CLEARLY * (1.0 - share) * count):
        return False, 0
    return None, max(tail.more, fewest(share) - count)


@dataclass(frozen=True)
class SloBound:
    """So many of the requests within a time."""

    label: str
    share: float
    limit: float


@dataclass(frozen=True)
class SloVerdict:
    """Whether an SLO was met."""

    holds: bool
    reason: str  # why not
    used: float  # how much of what may miss did, by the bound that is nearest to its limit or furthest beyond; 1 is all


@dataclass(frozen=True)
class SloDecision:
    """What can be said of an SLO: that it is met, that it is missed, or neither yet."""

    is_met: bool | None
    reason: str = ""  # why not, or what would decide it


class ServerChoice(Parameters):
    """Which server, and the settings that it takes."""

    model_config = ConfigDict(extra="allow")
    shorthand = "kind"

    kind: str = "embedded"
    """Which server; see `paceline list servers`"""

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        try:
            settings = self.whole()
        except InputError as error:
            raise ValueError(str(error)) from None
        given = self.__pydantic_extra__ or {}
        # YAML reads `off` as a boolean, the command line as a word: both are the same case.
        given |= {name: getattr(settings, name) for name, value in given.items() if isinstance(value, bool)}
        return self

    def whole(self) -> ServerSettings:
        """All settings, as the server itself defines them."""
        server = SERVERS.registry().get(self.kind)
        with located(f"server '{self.kind}'"):
            return server.Settings.read(self.model_dump())

    @classmethod
    def choices(cls) -> Mapping[str, type[Parameters]]:
        """The settings of each server."""
        return {name: server.Settings for name, server in SERVERS.registry().entries.items()}


class ClientParameters(Parameters):
    """Who sends the requests."""

    hosts: Annotated[tuple[str, ...], OTHER_HOSTS] = ()
    """Hosts that send instead of this machine, like [a, me@b], entered by ssh; localhost is this machine"""
    remote_shell: Annotated[str | None, PROGRAM] = None
    """How to get to a {host} instead of by ssh"""
    remote_python: Annotated[str | None, PROGRAM] = None
    """The interpreter on the hosts; unset is this one's path"""

    @field_validator("hosts", mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _are_hosts(self) -> Self:
        if not self.hosts and (self.remote_shell or self.remote_python):
            raise ValueError("remote_shell and remote_python go with hosts")
        try:
            read_names(self.hosts)
            self.shell()
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def shell(self) -> RemoteShell:
        """How a command gets to the hosts."""
        return RemoteShell(self.remote_shell or SSH, self.remote_python or sys.executable)


class ServeParameters(Parameters):
    """A model behind a server, and its load."""

    model: Annotated[str, MODEL_NAME] = "resnet18"
    """A model of the zoo, one made to measure like generated/transformer:layers=4,width=256, or your own: ./my.onnx,
    ./my.pt2, ./script.py:factory, package.module:factory, or a folder with a Hugging Face config.json"""
    input: Annotated[str | None, MODEL_INPUT] = None
    """What goes into a model of your own, as 1x3x224x224; unset takes what the file or the factory says"""
    scale: Literal["full", "tiny"] = "full"
    """tiny builds a small model of the same kind, for trying things out"""
    precision: FloatPrecision = "fp32"
    """Number format of weights and computation"""
    server: ServerChoice = ServerChoice()
    """Which server with which settings, like {kind: embedded, engine: onnxruntime, max_batch: 8, max_delay: 2ms}"""
    wire: Wire | None = None
    """How requests travel; unset takes the server's first way"""
    requests: RequestParameters = RequestParameters()
    """What is sent, like {samples: 1}"""
    load: LoadParameters | None = None
    """How requests arrive, like {arrival: poisson, rate: 50, duration: 30s}; unset with an slo searches the rate"""
    slo: Slo | None = None
    """The SLO, like {p99: 100ms} or p99=100ms; alone it searches the largest rate that meets it"""
    search_budget: Duration = Field(default=120.0, gt=0)
    """Time that the search for the largest rate may take, with calibration, warm-up and its last load"""
    search_tolerance: Fraction = Field(default=0.02, gt=0, lt=0.5)
    """Relative precision of the largest rate"""
    timeout_per_request: Duration = Field(default=30.0, gt=0)
    """How long an answer is waited for"""
    warm_up: Duration | None = Field(default=None, ge=0)
    """Time to spend on warming up; unset is 5 s, and for somebody else's server (url) four requests"""
    limits: SpendLimits = SpendLimits()
    """The most that is sent, warm-up and search included, like {requests: 500, tokens: 100000}"""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Processes that send, at most, each on a core of its own; unset takes one for every eight cores, at least one"""
    clients: ClientParameters = ClientParameters()
    """Who sends instead of this machine, like {hosts: [a, b]}; the server must listen where they reach it"""
    check_answers: bool = True
    """Compare answers with what the model itself gives"""
    instance: Annotated[str | None, FromNetwork.matching(WORD)] = None
    """What the machine would be rented as, for the cost of requests; see prices.csv in the guide"""
    price: float | None = Field(default=None, gt=0)
    """US dollars for an hour of the machine, instead of an instance"""
    devices: int | None = Field(default=None, ge=1)
    """GPUs that a server elsewhere computes with, for the throughput of each"""
    carbon: float | None = Field(default=None, gt=0)
    """Grams of CO2 for a kilowatt-hour, for the CO2 of requests where energy is counted"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    """Seed of weights, requests and arrivals"""

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if self.load is None and self.slo is None:
            raise ValueError(
                "give a load like {arrival: poisson, rate: 50}, or an slo like {p99: 100ms} to search the rate"
            )
        if self.instance is not None and self.price is not None:
            raise ValueError("instance and price say the same thing; give one of them")
        is_multi_stream = self.load is not None and self.load.arrival == "multi-stream"
        if is_multi_stream and self.requests.samples != RequestParameters().samples:
            raise ValueError("requests.samples does not go with multi-stream; say it as load.samples")
        return self

    @property
    def effective_requests(self) -> RequestParameters:
        """What is sent; a load of MLPerf's multi-stream says itself how many samples a request has."""
        if self.load is None or self.load.arrival != "multi-stream":
            return self.requests
        samples = Distribution.constant(self.load.samples_per_request)
        return self.requests.model_copy(update={"samples": samples})

    @property
    def is_remote(self) -> bool:
        """Whether somebody else runs the server."""
        return SERVERS.registry().get(self.server.kind).is_remote

    @property
    def warm_up_seconds(self) -> float | None:
        """How long to warm up; None for a handful of requests."""
        if self.warm_up is not None:
            return self.warm_up
        return None if self.is_remote else USUAL_WARM_UP

    @property
    def planned_requests(self) -> int | None:
        """Requests of the load, where they are known before; of random arrivals, about."""
        load = self.load
        if load is None or (load.loop != "open" and load.requests is None):
            return None
        if load.requests is not None and load.arrival == "sweep":
            rates = (load.points or SWEEP_POINTS) if load.over == "rate" else 0
            return load.requests * (len(load.swept_users) + rates)
        if load.requests is not None and load.arrival != "trace":
            return load.requests
        return len(load.schedule(np.random.default_rng(self.seed)))

    @property
    def planned_seconds(self) -> float | None:
        """How long requests are sent, those to warm up included; None where answers decide, of a sweep the most.

        Of users who pause it is what their pauses take.
        """
        load, warm_up = self.load, self.warm_up_seconds or 0.0
        if load is None:
            return self.search_budget
        if load.arrival == "trace":
            return warm_up + float(load.recorded().intended[-1])
        if load.requests is not None:
            if load.rate:
                return warm_up + load.requests / load.rate
            return warm_up + load.requests * load.think_time / load.concurrency if load.think_time else None
        rates = (load.points or SWEEP_POINTS) if load.over == "rate" else 0
        return warm_up + load.seconds * (len(load.swept_users) + rates if load.arrival == "sweep" else 1)

    @property
    def chosen_wire(self) -> Wire:
        """How requests travel."""
        return self.wire or SERVERS.registry().get(self.server.kind).usual_wire(self.server.whole(), self.model)

    @property
    def served(self) -> str:
        """The model; of a server elsewhere that takes no tensors only what it is asked for is known."""
        given = self.server.model_dump()
        if self.chosen_wire.startswith("kserve") or "url" not in given:
            return self.model
        return str(given.get("model") or urlsplit(str(given["url"])).path + str(given.get("path") or "") or "/")

    def need(self, device: str, *, allow_import: bool) -> Need:
        """What the server has to serve."""
        model = (self.model, self.scale, self.precision)
        sent = (self.chosen_wire, self.requests.read_by_server)
        return Need(*model, device, self.seed, allow_import, *sent, inputs=self.input)

    def label(self) -> str:
        """What distinguishes this case from others, in a few words."""
        is_http = self.chosen_wire == "http"  # whose headers and bodies are too long for a name
        shown = {"url"} if is_http else None
        settings = self.server.model_dump(include=shown, exclude={"kind"})
        words = [self.served, *([self.input] if self.input else []), *([self.scale] if self.scale != "full" else [])]
        words += [self.precision] if self.precision != "fp32" else []
        words += [self.server.kind, *(_word(key, value) for key, value in settings.items())]
        words += [self.wire] if self.wire else []
        requests = self.requests.model_dump(exclude_defaults=True, mode="json")
        words += [_word(key, value) + ("ms" if key == "think_time" else "") for key, value in requests.items()]
        if self.load is not None:
            given = self.load.model_dump(exclude_none=True, exclude={"arrival", "duration", "requests"}, mode="json")
            words += [self.load.arrival]
            if self.load.arrival == "sweep" and "users" in given:
                words += [f"up to {given.pop('users')} users"]
            words += [f"{v:g}/s" if k == "rate" else _word(k, v) for k, v in given.items()]
        else:
            words.append("search")
        words += [f"from={','.join(self.clients.hosts)}"] if self.clients.hosts else []
        if self.slo is not None:
            words += [f"{name}≤{limit * 1000:g}ms" for name, limit in self.slo.limits.items()]
        return " ".join(words)


def _word(key: str, value: Any) -> str:
    if key == "engine":
        return str(value)
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
