"""What a user may write under `load:` and `requests:`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from paceline.core.errors import InputError
from paceline.core.network import MACHINE_FILES, FromNetwork
from paceline.core.parameters import Parameters
from paceline.core.quantity import LONGEST_DURATION, Duration, Fraction, Rate, Size
from paceline.load import arrivals
from paceline.load.arrivals import Schedule, read_arrivals
from paceline.load.distribution import Distribution, Pause
from paceline.load.request import ClientChoice, Form
from paceline.load.trace import Times

ArrivalName = Literal[
    "constant", "poisson", "gamma", "ramp", "spike", "diurnal", "on-off", "trace",
    "closed", "single-stream", "multi-stream", "server", "offline", "synchronous", "throughput", "sweep",
]  # fmt: skip
Loop = Literal["open", "closed", "burst"]
DEFAULT_SECONDS = 10.0
MANY_USERS = 64
MOST_REQUESTS = 100_000_000  # of one load, whose times are all drawn beforehand
SWEEP_POINTS = 8
MULTI_STREAM_SAMPLES = 8
USUAL_DISTINCT = 32
_SIZE = r"[1-9][0-9]{0,3}x[1-9][0-9]{0,3}"
_PERSONAL = FromNetwork(never="says what is sent, which only a person at the machine may", is_one_value=True)


@dataclass(frozen=True)
class ArrivalKind:
    """What one kind of arrival requires and allows, in addition to what all of them allow."""

    needs: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    loop: Loop = "open"


_EITHER = ("duration", "requests")
KINDS: dict[str, ArrivalKind] = {
    "constant": ArrivalKind(("rate",), _EITHER),
    "poisson": ArrivalKind(("rate",), _EITHER),
    "gamma": ArrivalKind(("rate", "burstiness"), _EITHER),
    "ramp": ArrivalKind(("rate", "to_rate"), ("duration",)),
    "spike": ArrivalKind(("rate", "spike_rate", "spike_at", "spike_length"), ("duration",)),
    "diurnal": ArrivalKind(("rate", "amplitude", "period"), ("duration",)),
    "on-off": ArrivalKind(("rate", "busy", "pause"), ("pause_rate", "duration")),
    "trace": ArrivalKind(("file",), ("rate", *_EITHER)),
    "closed": ArrivalKind(("users",), ("think_time", *_EITHER), "closed"),
    "single-stream": ArrivalKind((), _EITHER, "closed"),
    "multi-stream": ArrivalKind((), ("samples", *_EITHER), "closed"),
    "server": ArrivalKind(("rate",), _EITHER),
    "offline": ArrivalKind(("requests",), ("users",), "burst"),
    "synchronous": ArrivalKind((), _EITHER, "closed"),
    "throughput": ArrivalKind((), ("users", *_EITHER), "closed"),
    "sweep": ArrivalKind((), ("over", "users", "points", *_EITHER), "closed"),
}


class Link(Parameters):
    """A network as one user has it, emulated by the client.

    A request is really held back on its way up, so that the server sees the arrivals that such users would cause; what
    the way down takes is added to the times of the answer. Nothing is lost and nothing is sent twice, and connections
    open as fast as the real network lets them.
    """

    delay: Duration = 0.0
    """One-way delay that every message has at least"""
    jitter: Duration = 0.0
    """Mean of what is added to it, exponentially distributed"""
    up: Size | None = Field(default=None, gt=0)
    """Bytes per second from user to server; unset is without limit"""
    down: Size | None = Field(default=None, gt=0)
    """Bytes per second from server to user; unset is without limit"""

    def way_up(self, sizes: Times, random: np.random.Generator) -> Times:
        """How long each request of so many bytes is on its way."""
        return self.way_down(len(sizes), random) + (sizes / self.up if self.up else 0.0)

    def way_down(self, number: int, random: np.random.Generator) -> Times:
        """How long the first byte of each answer is on its way; the others follow at the bandwidth."""
        return self.delay + random.exponential(1.0, number) * self.jitter


# Round figures of everyday networks, not measurements; a suite may write the four numbers itself instead.
PRESETS = {
    "lan": Link(delay="0.1ms", jitter="0.02ms", up="125MB", down="125MB"),
    "wifi": Link(delay="2ms", jitter="1ms", up="5MB", down="12MB"),
    "4g": Link(delay="25ms", jitter="10ms", up="1MB", down="4MB"),
}
Preset = Literal["lan", "wifi", "4g"]


def link_of(network: Preset | Link) -> Link:
    """The link that a user wrote or named."""
    return network if isinstance(network, Link) else PRESETS[network]


class LoadParameters(Parameters):
    """How requests arrive.

    In an open loop they go at times fixed beforehand, whatever the server does, and latency counts from those times.
    In a closed loop each of some users waits for an answer before it asks again, and latency counts from sending.
    """

    shorthand = "arrival"

    arrival: ArrivalName = "poisson"
    """constant, poisson, gamma (bursts), ramp, spike, diurnal, on-off, trace (a file); closed (users who wait); or a
    scenario of MLPerf: single-stream (one user), multi-stream (one user, several samples a request), server (poisson),
    offline (everything at once); or a profile: synchronous (one user), throughput (many users), sweep (both and what is
    between, until more load gives no more)"""
    rate: Rate | None = Field(default=None, gt=0)
    """Requests per second: the mean; a ramp's first, that around a spike or of on-off's busy phases; scales a trace"""
    duration: Duration | None = Field(default=None, gt=0)
    """How long requests are sent; unset is 10 s unless `requests` says how many, and a trace's own length"""
    requests: int | None = Field(default=None, ge=1)
    """How many requests are sent, instead of a duration"""
    burstiness: float | None = Field(default=None, gt=0)
    """gamma: shape of the gaps; 1 is poisson, less comes in bursts, more is more even"""
    to_rate: Rate | None = Field(default=None, gt=0)
    """ramp: the rate at the end"""
    spike_rate: Rate | None = Field(default=None, gt=0)
    """spike: the rate within the spike"""
    spike_at: Duration | None = None
    """spike: when it begins"""
    spike_length: Duration | None = Field(default=None, gt=0)
    """spike: how long it lasts"""
    amplitude: Fraction | None = Field(default=None, le=1)
    """diurnal: how far the rate swings to both sides of its mean"""
    period: Duration | None = Field(default=None, gt=0)
    """diurnal: length of one swing"""
    busy: Duration | None = Field(default=None, gt=0)
    """on-off: how long requests come"""
    pause: Duration | None = Field(default=None, gt=0)
    """on-off: how long they pause"""
    pause_rate: Rate | None = None
    """on-off: the rate of the pauses; unset is none"""
    file: Path | None = None
    """trace: CSV or JSON lines with `timestamp` or `gap` in seconds, and `kind` if there are several; or a trace of
    language models as Mooncake, Azure and BurstGPT publish them, with lengths and hashes of prefixes"""
    users: int | None = Field(default=None, ge=1)
    """closed: how many; offline, throughput: how many requests are under way at a time; sweep: at most (unset is 64)"""
    over: Literal["users", "rate"] | None = None
    """sweep: users (unset), doubled from one on; or rate: poisson arrivals, from what one user gets to what many get"""
    points: int | None = Field(default=None, ge=2, le=100)
    """sweep over rate: how many rates (unset is 8)"""
    think_time: Duration | None = None
    """closed: how long a user pauses between an answer and the next request"""
    samples: int | None = Field(default=None, ge=1)
    """multi-stream: samples of a request (unset is 8)"""
    network: Preset | Link | None = None
    """lan, wifi or 4g, or {delay, jitter, up, down}: emulated between the users and the server"""
    client: ClientChoice | None = None
    """Which client sends: c, several times as fast; python, which can do everything; auto (unset): c where it can send
    such requests (plain HTTP, whole answers) and there is a C compiler, otherwise python"""

    @model_validator(mode="before")
    @classmethod
    def _reads_earlier_records(cls, values: Any) -> Any:
        """Served cases of 0.1.0 say who emulates a network, which is now always the client."""
        if isinstance(values, dict) and values.get("network_by", "") in (None, "client"):
            return {name: value for name, value in values.items() if name != "network_by"}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        kind = KINDS[self.arrival]
        given: Any = self  # what an arrival needs is there, or it is refused first
        allowed = {"arrival", "network", "client", *kind.needs, *kind.allows}
        for name in type(self).model_fields:
            is_given = getattr(self, name) is not None
            if is_given and name not in allowed:
                others = ", ".join(sorted(allowed - {"arrival"}))
                raise ValueError(f"{name} does not belong to arrival = {self.arrival}, which takes {others}")
            if name in kind.needs and not is_given:
                raise ValueError(f"arrival = {self.arrival} needs {name}")
        if self.arrival != "trace" and self.duration is not None and self.requests is not None:
            raise ValueError("duration and requests say the same thing; give one of them")
        if self.arrival == "constant" and self.requests is None and round(given.rate * self.seconds) < 1:
            raise ValueError("the load sends not a single request: raise its rate or its duration")
        fastest = max(rate or 0.0 for rate in (self.rate, self.to_rate, self.spike_rate, self.pause_rate))
        most = fastest * self.seconds if self.loop == "open" and self.arrival != "trace" else 0
        if self.arrival == "spike":
            most = given.rate * self.seconds + given.spike_rate * min(given.spike_length, self.seconds)
        if (count := self.requests or most) > MOST_REQUESTS:
            raise ValueError(f"a load has at most {MOST_REQUESTS:,} requests, and this one up to {count:.3g}")
        if self.requests is not None and self.rate is not None and self.requests / self.rate > LONGEST_DURATION:
            raise ValueError(f"at a rate of {self.rate:g}/s, {self.requests} requests take more than 100 years")
        if self.points is not None and self.over != "rate":
            raise ValueError("points is how many rates a sweep has; set over to rate, or users for the most users")
        if self.arrival == "spike" and given.spike_at >= self.seconds:
            raise ValueError(f"spike_at = {self.spike_at:g} s is not within the duration of {self.seconds:g} s")
        return self

    @property
    def loop(self) -> Loop:
        """open: sent at fixed times; closed: users wait for answers; burst: all are due at once, some are under way."""
        return KINDS[self.arrival].loop

    @property
    def seconds(self) -> float:
        """How long requests are sent, where a duration says so."""
        return self.duration if self.duration is not None else DEFAULT_SECONDS

    @property
    def concurrency(self) -> int:
        """How many requests are under way at most in a closed loop or a burst."""
        return self.users or (MANY_USERS if self.arrival in ("offline", "throughput", "sweep") else 1)

    @property
    def swept_users(self) -> list[int]:
        """The users of each load of a sweep; one over rates begins with its ends."""
        most = self.concurrency
        if self.over == "rate":
            return sorted({1, most})
        return sorted({*(2**power for power in range(most.bit_length())), most})

    def of_sweep(self, **amount: float) -> LoadParameters:
        """One load of a sweep: of so many users, or at such a rate."""
        kept = self.model_dump(exclude_none=True, exclude={"arrival", "over", "users", "points"})
        return LoadParameters.model_validate({"arrival": "closed" if "users" in amount else "poisson"} | kept | amount)

    @property
    def samples_per_request(self) -> int:
        """How many samples a request should carry."""
        return self.samples or (MULTI_STREAM_SAMPLES if self.arrival == "multi-stream" else 1)

    @property
    def has_drawn_number(self) -> bool:
        """Whether arrivals are drawn until the time is over, so that each draw has another number of them."""
        return self.loop == "open" and self.requests is None and self.arrival not in ("trace", "constant")

    def schedule(self, random: np.random.Generator) -> Schedule:
        """When requests are meant to go, where that is known beforehand: not in a closed loop."""
        given: Any = self  # the validator has checked what is needed
        count, end = self.requests, self.seconds
        match self.arrival:
            case "trace":
                return self.recorded()
            case "constant":
                times = arrivals.constant(given.rate, duration=end, count=count)
            case "poisson" | "server" | "gamma":
                times = arrivals.gamma(given.rate, self.burstiness or 1.0, random, duration=end, count=count)
            case "ramp":
                times = arrivals.ramp(given.rate, given.to_rate, end, random)
            case "spike":
                times = arrivals.spike(given.rate, given.spike_rate, given.spike_at, given.spike_length, end, random)
            case "diurnal":
                times = arrivals.diurnal(given.rate, given.amplitude, given.period, end, random)
            case "on-off":
                times = arrivals.on_off(given.rate, self.pause_rate or 0.0, given.busy, given.pause, end, random)
            case "offline":
                times = np.zeros(given.requests)
            case _:
                message = f"arrival = {self.arrival} is a closed loop: when its requests go depends on the answers"
                raise InputError("closed-loop", message, key="load.arrival", value=self.arrival)
        return Schedule(times)

    def recorded(self) -> Schedule:
        """The arrivals of a trace's file; InputError if it cannot be used."""
        assert self.file is not None
        schedule = read_arrivals(self.file)
        intended = arrivals.scaled(schedule.intended, self.rate) if self.rate else schedule.intended
        if not intended[-1] <= LONGEST_DURATION:
            message = f"'{self.file}' takes more than 100 years; its times are in seconds, and rate scales them"
            raise InputError("too-long", message, key="load.file", value=str(self.file))
        number = len(intended) if self.duration is None else int(np.searchsorted(intended, self.duration))
        return replace(schedule, intended=intended).first(min(number, self.requests or number))


PROMPT = Distribution.constant(32)  # tokens, unless set
OUTPUT = Distribution.constant(16)


class CancelParameters(Parameters):
    """Users who close the connection before the answer is whole."""

    share: Fraction = Field(default=0.1, gt=0, le=1)
    """Part of the requests"""
    tokens: int | None = Field(default=None, ge=1)
    """After so many tokens; a chunk of the stream counts as one"""
    time: Duration | None = Field(default=None, gt=0)
    """After this time"""

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if (self.tokens is None) == (self.time is None):
            raise ValueError("say when a request is closed: tokens, like {share: 10%, tokens: 20}, or time")
        return self


class RequestParameters(Parameters):
    """What is sent."""

    samples: Distribution = Distribution.constant(1)
    """Samples in one request: a number, or a distribution like uniform(1, 8) or {1: 0.7, 4: 0.3}"""
    distinct: int | None = Field(default=None, ge=1, le=4096)
    """How many different requests are made beforehand, each sent many times; unset is 32, and for language models a
    prompt that was never sent before for each request"""
    form: Literal["tensors", "image", "text"] = "tensors"
    """What a sample is when it is sent: the model's tensors, a JPEG picture, or a sentence"""
    processing: Literal["server", "client"] = "server"
    """Who makes tensors of pictures and sentences, and the likeliest classes of the model's output"""
    dataset: Path | None = None
    """The user's own requests: .npz with an array for each input, a folder of pictures, or .jsonl with a text a line"""
    prompt_tokens: Distribution | None = None
    """Language models: length of a prompt; unset is 32"""
    output_tokens: Distribution | None = None
    """Language models: length of an answer; unset is 16"""
    shared_prefix: Fraction = Field(default=0.0, ge=0, le=1)
    """Language models: part of the prompt that all requests share"""
    system_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Language models: length of a system prompt that all requests share, in addition to their own"""
    turns: Distribution | None = None
    """Language models: requests of a conversation, each with all before it and their answers; unset is one. Of a file's
    conversations so many at most. The load's rate, requests and users are then of conversations"""
    think_time: Pause | None = None
    """Language models: from an answer to the next request of its conversation, a person's or a tool's time, like 2s or
    lognormal(2s, 0.5); without a unit in milliseconds"""
    fan_out: int | None = Field(default=None, ge=1, le=64)
    """Language models: parallel requests after each answer of a conversation; its next turn quotes all their answers"""
    models: Annotated[dict[str, float], _PERSONAL] = Field(default_factory=dict)
    """Language models: names with their weights, like LoRA adapters: each request or conversation has one of them"""
    json_schema: Annotated[dict[str, Any] | None, _PERSONAL] = None
    """Language models: ask for JSON of this schema, {} for any object; an answer that does not parse has failed"""
    cancel: CancelParameters | None = None
    """Language models: users who leave early, like {share: 10%, tokens: 20}; counted apart, not as failures"""
    images: int = Field(default=0, ge=0, le=64)
    """Language models: pictures in each prompt, made here and sent as data"""
    image_size: Annotated[str, FromNetwork.matching(_SIZE)] = Field(default="512x512", pattern=_SIZE)
    """Language models: width and height of a picture in pixels"""
    stream: bool = True
    """Language models: ask for the answer piece by piece"""
    ignore_eos: bool = False
    """Language models: ask for all output tokens even if the model ends before; vLLM, SGLang, llama.cpp"""
    min_tokens: int | None = Field(default=None, ge=1)
    """Language models: ask for this many output tokens at least; vLLM and SGLang"""
    extra: Annotated[dict[str, Any], _PERSONAL] = Field(default_factory=dict)
    """Language models: more fields of the body, like {top_k: 1}; null leaves a field out"""
    tokenizer: Annotated[Path | None, MACHINE_FILES] = None
    """Language models: a tokenizer.json, or a folder with one, to count the tokens of answers without usage"""

    @property
    def different(self) -> int:
        """How many different requests are made beforehand, of a kind that may be repeated."""
        return self.distinct or USUAL_DISTINCT

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer on average, as they are asked for."""
        own, output = (self.prompt_tokens or PROMPT).mean, (self.output_tokens or OUTPUT).mean
        mean, square = (self.turns.mean, self.turns.mean_square) if self.turns is not None else (1.0, 1.0)
        # What came before a turn, on average over all turns: long conversations have more of them.
        before = max(0.0, square / max(1.0, mean) - 1.0) / 2.0
        grown = before * (own + output * (1 + (self.fan_out or 0)))
        return own + grown + (self.system_tokens or 0), output

    @property
    def each(self) -> float:
        """Requests of a conversation on average, as they are asked for."""
        turns = self.turns.mean if self.turns is not None else 1.0
        return turns + (self.fan_out or 0) * max(0.0, turns - 1.0)

    @property
    def read_by_server(self) -> Form | None:
        """What the server has to make tensors of, if it has to."""
        return None if self.form == "tensors" or self.processing == "client" else self.form

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.samples.lowest < 1:
            raise ValueError(f"samples = {self.samples}: a request carries at least one sample")
        if self.form == "tensors" and self.processing != "server":
            raise ValueError(f"processing = {self.processing}: tensors need none; set form to image or text")
        for name in ("prompt_tokens", "output_tokens", "turns"):
            number = getattr(self, name)
            if number is not None and number.lowest < 1:
                raise ValueError(f"{name} = {number}: at least one {'turn' if name == 'turns' else 'token'}")
        for name in ("think_time", "fan_out"):
            if getattr(self, name) is not None and self.turns is None:
                raise ValueError(f"{name} is of conversations; say how many requests one has, like turns: 3")
        if any(not 0 < weight < math.inf for weight in self.models.values()):
            raise ValueError(f"models = {self.models}: weights are positive, like {{base: 0.5, adapter: 0.5}}")
        if self.cancel is not None and self.cancel.tokens is not None and not self.stream:
            raise ValueError("cancel.tokens needs a stream: leave stream on, or set cancel.time")
        return self
