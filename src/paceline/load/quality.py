"""Whether the load was the intended one, and if not, what the cause is."""

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

from paceline.core.errors import CaseError
from paceline.core.files import data_directory, write_atomic
from paceline.core.quantity import show_duration, show_size
from paceline.core.record import RecordWarning
from paceline.load import native_client, null_server, quality
from paceline.load.generator import drive
from paceline.load.kserve_grpc import require_grpc
from paceline.load.parameters import LoadParameters, Loop
from paceline.load.request import ClientName, Endpoint, Prepared
from paceline.load.trace import BROKEN, OUT_OF_SOCKETS, REFUSED, UNSENT, Times, Trace

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
_TOO_LATE = 0.05  # s at the 99th percentile: later, and the rate was not reached
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
    late = max(_TOO_LATE, _BUSY_BEFORE / per_cpu_second)
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


LEAST_DELIVERED = 0.99
SATURATED = 0.9  # of its core's time: a worker this busy is late for what comes next
SAFE_PART = 0.7  # of the ceiling
_SLACK = 0.05  # s after the last intended time within which a request still belongs to the schedule
# How late requests may go: an absolute figure, or if that is more, parts of the latency and of the mean gap between
# arrivals, whichever is less: of slow answers, a part is long enough to make another schedule of the intended one.
_LATE = {50: (0.5e-3, 0.05, 0.5), 99: (2e-3, 0.1, 1.0)}


class LoadNotDelivered(CaseError):
    """The load generator did not send the intended load, so that the answers say nothing about that load."""


def own_lateness(trace: Trace) -> Times:
    """How late the generator took up each request; opening a connection is the network's and the server's time."""
    return (trace.dispatched if trace.dispatched is not None else trace.sent) - trace.intended


def delivered(trace: Trace) -> float:
    """The part of a schedule's requests that were sent, or refused a connection, before the schedule was over."""
    if not len(trace):
        return 0.0
    late = own_lateness(trace) + trace.intended
    is_in_time = late <= trace.intended[-1] + _SLACK
    return float(np.mean(is_in_time & ~np.isin(trace.status, (OUT_OF_SOCKETS, UNSENT))))


def busy(trace: Trace) -> float:
    """The part of its cores' time that the load generator used."""
    finite = [times[np.isfinite(times)] for times in (trace.sent, trace.done)]
    seconds = max((float(times.max()) for times in finite if len(times)), default=0.0)
    workers = len(np.unique(trace.worker))
    return trace.cpu_seconds / (workers * seconds) if seconds > 0 else 0.0


def require_delivered(trace: Trace, loop: Loop = "open", least: float = LEAST_DELIVERED) -> None:
    """Refuse a trace whose load is not the intended one; a closed loop has none."""
    if loop != "open" or (part := delivered(trace)) >= least:
        return
    why, remedy = cause(trace)
    raise LoadNotDelivered(f"only {100 * part:.1f} % of the {len(trace)} requests were sent in time: {why}; {remedy}")


def warnings(trace: Trace, loop: Loop = "open", ceiling: GeneratorCeiling | None = None) -> list[RecordWarning]:
    """What makes these latencies less trustworthy."""
    warnings = []
    is_unsent, never = trace.status == UNSENT, "were never sent"
    if trace.losses:
        is_unsent |= (trace.status == BROKEN) & np.isnan(trace.sent)
        never = f"were lost and count as failures: {'; '.join(trace.losses)}"
    for is_such, kind, words, remedy in (
        (
            trace.status == OUT_OF_SOCKETS,
            "sockets",
            "found no free socket",
            "raise ulimit -n or the range of local ports",
        ),
        (
            trace.status == REFUSED,
            "refused",
            "were refused a connection",
            "look into the server's log: it may have no room for more connections",
        ),
        (is_unsent, "unsent", never, "look for what ended the load generator's workers"),
    ):
        if number := int(np.count_nonzero(is_such)):
            message = f"{number} of {len(trace)} requests {words}"
            warnings.append(RecordWarning(kind=kind, message=message, remedy=remedy))
    if loop != "open":
        if (used := busy(trace)) >= SATURATED:
            message = f"the load generator used {100 * used:.0f} % of its cores' time: it may be the slower part"
            remedy = "use more workers on free cores, or fewer users"
            warnings.append(RecordWarning(kind="saturated", message=message, remedy=remedy))
    else:
        warnings += _late(trace, ceiling)
    return warnings + _near_ceiling(trace.intended if loop == "open" else trace.done, trace, ceiling)


def _near_ceiling(times: Times, trace: Trace, ceiling: GeneratorCeiling | None) -> list[RecordWarning]:
    """Users who wait for their answers may be held up by the load generator as well as a schedule."""
    seconds = float(times[np.isfinite(times)].max(initial=0.0))
    if ceiling is None or not ceiling.is_undisturbed or seconds <= 0:  # a disturbed worker can do more
        return []
    rate = len(trace) / seconds / len(np.unique(trace.worker))
    if rate <= SAFE_PART * ceiling.rate:
        return []
    message = f"{rate:.0f} requests/s for each worker; {ceiling.rate:.0f}/s is the most that one was measured to send"
    return [RecordWarning(kind="near-ceiling", message=message, remedy="use more workers on free cores")]


def _late(trace: Trace, ceiling: GeneratorCeiling | None) -> list[RecordWarning]:
    late, latency = own_lateness(trace), trace.latency
    late, latency = late[np.isfinite(late)], latency[np.isfinite(latency)]
    gap = float(trace.intended[-1] - trace.intended[0]) / max(1, len(trace) - 1) if len(trace) else 0.0
    for percent, (absolute, part, part_of_gap) in _LATE.items() if len(late) else ():
        lateness = float(np.percentile(late, percent))
        usual = part * float(np.percentile(latency, percent)) if len(latency) else 0.0
        bound = max(absolute, min(usual, part_of_gap * gap))
        if lateness > bound:
            why, remedy = cause(trace)
            alone = ""
            if ceiling and ceiling.probes:
                probe = ceiling.probes[0]
                least = probe.lateness_p50 if percent == 50 else probe.lateness_p99
                if least < lateness:  # or something disturbed it then, too
                    alone = f" (alone it manages {show_duration(least)} at {probe.rate:g}/s)"
            message = f"requests went late by {show_duration(lateness)} at the {percent}th percentile{alone}: {why}"
            return [RecordWarning(kind="late", message=message, remedy=remedy)]
    return []


def cause(trace: Trace) -> tuple[str, str]:
    """Why requests went late, and what to do about it."""
    if number := int(np.count_nonzero(trace.status == OUT_OF_SOCKETS)):
        return f"{number} found no free socket", "raise ulimit -n or the range of local ports, or lower the rate"
    if trace.losses:
        return "; ".join(trace.losses), "look for what ended it: memory, or somebody's kill"
    percent = f"{100 * busy(trace):.0f} % of its cores' time"
    if busy(trace) >= SATURATED:
        return f"the load generator used {percent}", "use more workers on free cores, or lower the rate"
    why = f"the load generator used only {percent}, so something else kept them busy"
    return why, "keep the server and everything else off the load generator's cores"
