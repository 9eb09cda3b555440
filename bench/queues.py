"""Queues whose percentiles are known, and latencies of requests to them; the service time is 1 on average."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRID, STEPS = 0.002, 1 << 19  # service times between the points of a distribution, and how many points
SIGMA = 1.0  # of the logarithm of log-normal service times: their squared coefficient of variation is 1.7
SHORT_PART = (1.0 + math.sqrt(0.6)) / 2.0  # of hyperexponential requests: their squared coefficient of variation is 4
MEANS = (0.5 / SHORT_PART, 0.5 / (1.0 - SHORT_PART))  # of short and of long ones
SETTLING = 40.0  # requests before the first that counts, times 1 / (1 - load) ** 2, where no stationary start is known
MOST_WAITING = 800  # requests in a queue whose lengths are solved for


@dataclass(frozen=True)
class Queue:
    """Poisson arrivals and servers that take the next request, in the order of arrival, when they are free."""

    service: str  # M: exponential, D: all the same, LN: log-normal, H2: hyperexponential
    servers: int = 1

    @property
    def name(self) -> str:
        """In Kendall's notation."""
        return f"M/{self.service}/{self.servers}"

    def latencies(self, load: float, count: int, series: int, random: np.random.Generator) -> Array:
        """Of requests to a queue that has always been there; a series in each row."""
        if self.servers == 1:
            service = _services(self.service, (series, count), random)
            gaps = random.exponential(1.0 / load, (series, count - 1))
            walk = np.cumsum(np.column_stack([self._first_waits(load, series, random), service[:, :-1] - gaps]), axis=1)
            return walk - np.minimum(0.0, np.minimum.accumulate(walk, axis=1)) + service
        if self.service == "D":
            before = math.ceil(SETTLING / (1.0 - load) ** 2)
            arrivals = np.cumsum(random.exponential(1.0 / (load * self.servers), (series, before + count)), axis=1)
            return np.round(
                (_ends_of_equals(arrivals, self.servers) - arrivals)[:, before:], 9
            )  # or equals differ by rounding
        return self._of_many(load, count, series, random)

    def from_empty(self, load: float, count: int, random: np.random.Generator) -> tuple[float, Array]:
        """How long a load takes whose first request finds nobody before it, and its latencies."""
        arrivals = np.cumsum(random.exponential(1.0 / (load * self.servers), count))
        if self.service == "D":
            ends = _ends_of_equals(arrivals[None, :], self.servers)[0]
        else:
            service = _services(self.service, (count,), random)
            ends = (
                _ends_of_one(arrivals, service) if self.servers == 1 else _ends_of_many(arrivals, service, self.servers)
            )
        return float(ends.max()), ends - arrivals

    def percentile(self, load: float, share: float) -> float:
        """The true one."""
        return GRID * float(np.searchsorted(_below(self, load), share - 1e-9))

    def _first_waits(self, load: float, series: int, random: np.random.Generator) -> Array:
        """What the first request of each series waits: a geometric sum of rests (Pollaczek and Khinchine)."""
        ladder = random.geometric(1.0 - load, series) - 1
        rests = _rests(self.service, int(ladder.sum()), random)
        return np.asarray(
            np.bincount(np.repeat(np.arange(series), ladder), weights=rests, minlength=series), np.float64
        )

    def _of_many(self, load: float, count: int, series: int, random: np.random.Generator) -> Array:
        """With exponential service: what a server still has to do is exponential whenever one looks."""
        in_system = _in_system(load, self.servers, series, random)
        free = random.exponential(1.0, (series, self.servers))
        free[np.arange(self.servers) >= in_system[:, None]] = 0.0
        waiting = in_system >= self.servers
        first = random.gamma(np.maximum(in_system - self.servers + 1, 1)) / self.servers
        free[waiting, 0] = 0.0
        free[waiting] += first[waiting, None]
        gaps = random.exponential(1.0 / (load * self.servers), (count, series))
        service = random.exponential(1.0, (count, series))
        rows, latency = np.arange(series), np.empty((count, series))
        for request in range(count):
            place = free.argmin(axis=1)
            latency[request] = np.maximum(free[rows, place], 0.0) + service[request]
            free[rows, place] = latency[request]
            free -= gaps[request][:, None]
        return latency.T


def _services(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if kind == "D":
        return np.ones(shape)
    if kind == "LN":
        return np.exp(random.normal(-(SIGMA**2) / 2.0, SIGMA, shape))
    drawn = random.exponential(1.0, shape)
    return drawn if kind == "M" else drawn * np.where(random.random(shape) < SHORT_PART, *MEANS)


def _rests(kind: str, count: int, random: np.random.Generator) -> Array:
    """What is left of a service time at a moment within it."""
    if kind == "D":
        return random.random(count)
    if kind == "LN":
        return random.random(count) * np.exp(random.normal(SIGMA**2 / 2.0, SIGMA, count))
    drawn = random.exponential(1.0, count)
    return drawn if kind == "M" else drawn * np.where(random.random(count) < 0.5, *MEANS)


def _in_system(load: float, servers: int, series: int, random: np.random.Generator) -> NDArray[np.int64]:
    """How many requests each first one meets: Erlang's distribution, geometric beyond the servers."""
    numbers = np.arange(MOST_WAITING)
    steps = np.log(load * servers) - np.log(np.minimum(np.maximum(numbers, 1), servers))
    weights = np.exp(np.cumsum(np.where(numbers > 0, steps, 0.0)))
    return np.searchsorted(np.cumsum(weights / weights.sum()), random.random(series))


def _ends_of_equals(arrivals: Array, servers: int) -> Array:
    """Requests that all take as long are served in turn, so that each server has a queue of its own."""
    ends = np.empty_like(arrivals)
    for server in range(servers):
        own = arrivals[:, server::servers]
        work = np.arange(own.shape[1])
        ends[:, server::servers] = np.maximum.accumulate(own - work, axis=1) + work + 1.0
    return ends


def _ends_of_one(arrivals: Array, service: Array) -> Array:
    work = np.cumsum(service)
    return np.maximum.accumulate(arrivals - (work - service)) + work


def _ends_of_many(arrivals: Array, service: Array, servers: int) -> Array:
    free, ends = [0.0] * servers, []
    for arrival, needed in zip(arrivals.tolist(), service.tolist(), strict=True):
        ends.append(max(arrival, free[0]) + needed)
        heapq.heapreplace(free, ends[-1])
    return np.array(ends)


@lru_cache(maxsize=64)
def _below(queue: Queue, load: float) -> Array:
    """The part of the latencies up to each point of the grid."""
    if queue.service == "M":
        return _below_of_exponentials(load, queue.servers)
    if queue.servers > 1:
        return np.concatenate([np.zeros(round(1.0 / GRID)), _waits_of_equals(load, queue.servers)])
    # By characteristic functions: a geometric sum of rests, and a service time.
    edges = np.asarray(GRID * np.arange(STEPS + 1), np.float64)
    half = np.exp(-1j * np.pi * np.fft.rfftfreq(STEPS))
    rest = np.fft.rfft(np.diff(_rests_below(queue.service, edges))) * half
    if queue.service == "D":
        served = np.exp(-2j * np.pi * np.fft.rfftfreq(STEPS) * round(1.0 / GRID))
    else:
        served = np.fft.rfft(np.diff(_services_below(queue.service, edges))) * half
    return np.asarray(np.cumsum(np.fft.irfft((1.0 - load) / (1.0 - load * rest) * served)))


def _services_below(kind: str, times: Array) -> Array:
    if kind == "LN":
        return _normal_below((np.log(np.maximum(times, 1e-300)) + SIGMA**2 / 2.0) / SIGMA)
    short, long = (-np.expm1(-times / mean) for mean in MEANS)
    return SHORT_PART * short + (1.0 - SHORT_PART) * long


def _rests_below(kind: str, times: Array) -> Array:
    """The integral of what is not yet served."""
    if kind == "D":
        return np.minimum(times, 1.0)
    if kind == "LN":
        longer = _normal_below((np.log(np.maximum(times, 1e-300)) - SIGMA**2 / 2.0) / SIGMA)
        return times * (1.0 - _services_below(kind, times)) + longer
    short, long = (-np.expm1(-times / mean) for mean in MEANS)
    return 0.5 * (short + long)


def _normal_below(values: Array) -> Array:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values])


def _below_of_exponentials(load: float, servers: int) -> Array:
    """A wait that is exponential, if there is one (Erlang), and a service time."""
    offered = load * servers
    terms = [math.exp(k * math.log(offered) - math.lgamma(k + 1)) for k in range(servers + 1)]
    queued = terms[-1] / (1.0 - load) / (sum(terms[:-1]) + terms[-1] / (1.0 - load))
    decay = servers * (1.0 - load)
    if abs(decay - 1.0) < 1e-6:
        decay += 1e-5
    times = GRID * np.arange(STEPS)
    beyond = (1.0 - queued) * np.exp(-times)
    return np.asarray(
        1.0 - beyond - queued * (decay * np.exp(-times) - np.exp(-decay * times)) / (decay - 1.0), np.float64
    )


def _waits_of_equals(load: float, servers: int) -> Array:
    """The waits of M/D/c (Franx, 2001), from how many requests are in it one service time after another."""
    arriving = load * servers
    log_factorials = np.array([math.lgamma(k + 1) for k in range(MOST_WAITING)])
    numbers = np.arange(MOST_WAITING)
    poisson = np.exp(numbers * math.log(arriving) - arriving - log_factorials)
    steps = np.zeros((MOST_WAITING, MOST_WAITING))
    for before in range(MOST_WAITING):
        left = max(before - servers, 0)
        steps[left:, before] = poisson[: MOST_WAITING - left]
    system = steps - np.eye(MOST_WAITING)
    system[-1] = 1.0
    in_system = np.linalg.solve(system, np.eye(MOST_WAITING)[-1])
    waiting_up_to = np.cumsum(in_system)[servers:]
    within = np.arange(1.0, 0.0, -GRID) * arriving  # what arrives until the service time is over
    shares = np.exp(numbers[None, :] * np.log(within)[:, None] - within[:, None] - log_factorials)
    below = []
    for whole in range(1, (MOST_WAITING - servers) // servers):
        taken = whole * servers
        below.append(shares[:, :taken] @ waiting_up_to[taken - 1 :: -1][:taken])
    return np.concatenate(below)
