"""What the load generator itself can do on this machine, measured against a server that does nothing."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from paceline.core.files import data_directory, write_atomic
from paceline.core.quantity import show_size
from paceline.load import native_client, null_server, quality
from paceline.load.generator import drive
from paceline.load.grpc_client import require_grpc
from paceline.load.parameters import LoadParameters
from paceline.load.request import ClientName, Endpoint, Prepared

PROBE_RATES = (500.0, 2000.0)
_OF_THE_CLOSED_LOOP = (0.4, 0.7)  # parts of its rate that are probed as well
_SECONDS = 0.4
_LONG = 1.0  # for a probe of large requests, if they are not very few
_BYTES = 2 * 2**30  # of large requests that are sent instead, as many as that is
_FEWEST, _MOST = 20, 4000  # requests
_USERS = 16
_UNDER_WAY = 256 * 2**20  # bytes of large requests at a time
_STARVED = 0.1  # of its time that the null server waited for its core: something else runs there
_DISTURBED = 5e-3  # s late at the slowest rate: something else had the core, and the result is not stored
_LATE = 0.05  # s at the 99th percentile: later, and the rate was not reached
_BUSY_BEFORE = 5  # times its own time that a large request may be late: the worker was sending another one
_AGAIN = 2  # times, after a disturbance: a ceiling of nothing would bound a whole search
_FAR = 4.0  # times the load: a disturbed worker can do at least what it did, which is enough for so little
_A_WHILE = 600.0  # s for which that holds
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_REQUEST = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.0,0.0,0.0,0.0]}]}'
_SMALL = 4096  # bytes: below, the size of a request adds nothing to its cost
_STEPS = 8  # sizes that are distinguished between one and its double


@dataclass(frozen=True)
class RequestKind:
    """What a worker sends, as far as its pace depends on it."""

    size: int = 0  # bytes of a request; 0 for small ones
    grpc: bool = False
    client: ClientName = "python"

    @classmethod
    def of(cls, endpoint: Endpoint, requests: Sequence[Prepared], client: ClientName = "python") -> RequestKind:
        """The kind of these requests, a little larger than they are on average rather than smaller."""
        size = sum(len(one.body) for one in requests) // max(1, len(requests))
        step = 2 ** (size.bit_length() - 1) // _STEPS
        return cls(-(-size // step) * step if size > _SMALL else 0, endpoint.is_grpc, client)

    @property
    def request(self) -> Prepared:
        """One of them, without a meaning."""
        return Prepared(_REQUEST.ljust(self.size))

    @property
    def users(self) -> int:
        """How many send at once: gRPC has a copy of each request that is under way."""
        return max(1, min(_USERS, _UNDER_WAY // max(1, self.size)))

    @property
    def number(self) -> int | None:
        """How many requests suffice to measure a rate; None for small ones, which are sent for some time."""
        return max(_FEWEST, min(_MOST, _BYTES // self.size)) if self.size else None

    def __str__(self) -> str:
        how = " by gRPC" if self.grpc else " by the client in C" if self.client == "c" else ""
        return f"requests/s{f' of {show_size(self.size)}' if self.size else ''}{how}"


SMALL = RequestKind()


@dataclass(frozen=True)
class Probe:
    """How exactly one worker followed a Poisson schedule of this rate."""

    rate: float
    delivered: float
    lateness_p50: float
    lateness_p99: float
    is_kept: bool = True  # whether as much went in time as must, and the rest not much later; of a few one may be late


@dataclass(frozen=True)
class GeneratorCeiling:
    """How far one worker of the load generator can be trusted."""

    rate: float  # the highest of the probed rates that was delivered; 0 if none was
    requests_per_cpu_second: float
    probes: tuple[Probe, ...]

    @property
    def is_undisturbed(self) -> bool:
        """Whether the slowest probe was so punctual that nothing else can have disturbed it."""
        bound = max(_DISTURBED, _BUSY_BEFORE / max(self.requests_per_cpu_second, 1e-9))
        return bool(self.probes) and self.probes[0].lateness_p99 < bound and self.rate > 0


read_ceiling = TypeAdapter(GeneratorCeiling).validate_python  # as it was written to a file or sent by another host


def calibrate(
    cpus: Sequence[int] | None = None, kind: RequestKind = SMALL, *, needed: float = math.inf
) -> GeneratorCeiling:
    """The ceiling of one worker on the first of these cores, with the null server on the last; stored until reboot.

    One that was measured while others had the core holds for a while, for loads far below it: `needed` per second.
    """
    cores = list(cpus or sorted(os.sched_getaffinity(0)))
    if kind.client == "c" and native_client.missing():  # on a client host that has no compiler
        kind = replace(kind, client="python")
    key = _key(cores, kind)
    if stored := _remembered(key, needed):
        return stored
    if kind.grpc:
        require_grpc()
    with null_server.started(cores[-1], grpc=kind.grpc, in_c=kind.client == "c") as (endpoint, process):
        begun, waited = time.monotonic(), waiting_for_cpu(process)
        measured = measure(endpoint, cores[0], kind)
        for _ in range(_AGAIN):
            if measured.is_undisturbed:
                break
            measured = max(measured, measure(endpoint, cores[0], kind), key=lambda one: (one.is_undisturbed, one.rate))
        starved = (waiting_for_cpu(process) - waited) / (time.monotonic() - begun)
    is_plausible = all(one.is_kept for one in measured.probes[:-1])  # only the fastest is beyond some machines
    if measured.is_undisturbed and is_plausible and (starved < _STARVED or cores[0] == cores[-1]):
        _remember(key, measured)
    elif measured.rate > 0:
        # What was sent once since the start of the machine can be sent: a search is not cut short by a bad moment.
        measured = max(measured, _at_least(key) or measured, key=lambda one: one.rate)
        _remember(f"{key} at least", measured, at=time.monotonic())
    return measured


def waiting_for_cpu(process: int) -> float:
    """Seconds that a process was ready to run and had no core; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def measure(endpoint: Endpoint, cpu: int | None = None, kind: RequestKind = SMALL) -> GeneratorCeiling:
    """The ceiling of one worker against this server."""
    pinned = None if cpu is None else [cpu]
    length = {"requests": kind.number} if kind.number else {"duration": _SECONDS}
    closed = LoadParameters.model_validate({"arrival": "closed", "users": kind.users} | length)
    trace = drive(endpoint, [kind.request], closed, workers=1, cpus=pinned, client=kind.client)
    done = trace.done[trace.ok]
    if not len(done):
        return GeneratorCeiling(0.0, 0.0, ())
    per_cpu_second = len(done) / max(trace.cpu_seconds, 1e-9)
    # The null server needs more time for a call of gRPC than the worker does, so that the worker can do more than this.
    rate = per_cpu_second if kind.grpc else len(done) / float(done.max())
    fast = [part * rate for part in _OF_THE_CLOSED_LOOP]
    slow = [one for one in PROBE_RATES if one < fast[0]]
    late = max(_LATE, _BUSY_BEFORE / per_cpu_second)
    probes = tuple(_best_probe(endpoint, one, pinned, kind, late) for one in (*slow, *fast))
    return GeneratorCeiling(max((probe.rate for probe in probes if probe.is_kept), default=0.0), per_cpu_second, probes)


def _best_probe(endpoint: Endpoint, rate: float, cpus: list[int] | None, kind: RequestKind, late: float) -> Probe:
    """One probe, and another where that failed: a moment's disturbance would cut the ceiling to a part of itself."""
    probe = _probe(endpoint, rate, cpus, kind, late)
    return probe if probe.is_kept else max(probe, _probe(endpoint, rate, cpus, kind, late), key=lambda one: one.is_kept)


def _probe(endpoint: Endpoint, rate: float, cpus: list[int] | None, kind: RequestKind, late: float) -> Probe:
    seconds = max(_SECONDS, min(_LONG, (kind.number or _FEWEST) / rate), _FEWEST / rate)
    load = LoadParameters(arrival="poisson", rate=rate, duration=seconds)
    trace = drive(endpoint, [kind.request], load, workers=1, cpus=cpus, client=kind.client)
    p50, p99 = np.nanpercentile(quality.own_lateness(trace), [50, 99])
    delivered = quality.delivered(trace)
    is_in_time = delivered >= min(quality.LEAST_DELIVERED, 1.0 - 1.0 / len(trace))
    return Probe(rate, delivered, float(p50), float(p99), is_in_time and bool(p99 <= late))


def boot() -> str:
    """Identifies this machine since its last start; empty where that is not known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _key(cores: Sequence[int], kind: RequestKind = SMALL) -> str:
    """Everything that a remembered ceiling depends on."""
    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        uvloop = "none"
    return f"{boot()} python {sys.version.split()[0]} uvloop {uvloop} cores {cores[0]} {cores[-1]} {kind}"


def _file() -> Path:
    return data_directory() / "cache" / "load-ceiling.json"


def _remembered(key: str, needed: float = math.inf) -> GeneratorCeiling | None:
    try:
        stored = json.loads(_file().read_text())
        if key in stored:
            return read_ceiling(stored[key])
        disturbed = stored[f"{key} at least"]
        is_enough = needed * _FAR <= float(disturbed["rate"])
        is_recent = 0.0 <= time.monotonic() - float(disturbed["at"]) < _A_WHILE
        return read_ceiling(disturbed) if is_enough and is_recent else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # never measured, or written by another version


def _at_least(key: str) -> GeneratorCeiling | None:
    """What a disturbed worker has delivered since the start of the machine."""
    try:
        return read_ceiling(json.loads(_file().read_text())[f"{key} at least"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _remember(key: str, ceiling: GeneratorCeiling, **more: float) -> None:
    """Add to others of this boot; of two processes that write at once, one has to measure again later."""
    try:
        stored = json.loads(_file().read_text())
        others = {other: words for other, words in stored.items() if other.startswith(f"{boot()} ")}
    except (OSError, ValueError, AttributeError, RecursionError):
        others = {}
    with suppress(OSError):  # a read-only home costs some seconds each time, nothing else
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_file(), json.dumps(others | {key: asdict(ceiling) | more}, indent=1))
