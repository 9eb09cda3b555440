"""What the load generator itself can do on this machine, measured against a server that does nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from paceline.benchmarks.serving.load import null_server, quality
from paceline.benchmarks.serving.load.generator import drive
from paceline.benchmarks.serving.load.parameters import LoadParameters
from paceline.benchmarks.serving.load.prepared import Prepared
from paceline.benchmarks.serving.servers.base import Endpoint
from paceline.core.files import data_directory, write_atomic

PROBE_RATES = (500.0, 2000.0)
_OF_THE_CLOSED_LOOP = (0.4, 0.7)  # parts of its rate that are probed as well
_SECONDS = 0.4
_USERS = 16
_DISTURBED = 5e-3  # s late at the slowest rate: somebody else had the core, which is not to be remembered
_AGAIN = 2  # times, after a disturbance: a ceiling of nothing would bound a whole search
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_REQUEST = Prepared(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0.0,0.0,0.0,0.0]}]}')


@dataclass(frozen=True)
class Probe:
    """How one worker kept to a Poisson schedule of this rate."""

    rate: float
    delivered: float
    lateness_p50: float
    lateness_p99: float


@dataclass(frozen=True)
class Ceiling:
    """How far one worker of the load generator can be trusted."""

    rate: float  # the highest of the probed rates that was delivered; 0 if none was
    requests_per_cpu_second: float
    probes: tuple[Probe, ...]

    @property
    def is_undisturbed(self) -> bool:
        """Whether the slowest probe was kept to so well that nothing else can have been in the way."""
        return bool(self.probes) and self.probes[0].lateness_p99 < _DISTURBED and self.rate > 0

    @classmethod
    def of_words(cls, words: Mapping[str, Any]) -> Ceiling:
        """As it was written to a file or said by another host."""
        probes = tuple(Probe(**probe) for probe in words["probes"])
        return cls(float(words["rate"]), float(words["requests_per_cpu_second"]), probes)


def calibrate(cpus: Sequence[int] | None = None, *, is_fresh: bool = False) -> Ceiling:
    """The ceiling of one worker on the first of these cores, with the null server on the last; known until reboot."""
    cores = list(cpus or sorted(os.sched_getaffinity(0)))
    key = _key(cores)
    known = None if is_fresh else _remembered(key)
    if known is not None:
        return known
    with null_server.running(cpu=cores[-1]) as endpoint:
        measured = measure(endpoint, cores[0])
        for _ in range(_AGAIN):
            if measured.is_undisturbed:
                break
            measured = max(measured, measure(endpoint, cores[0]), key=lambda one: (one.is_undisturbed, one.rate))
    if measured.is_undisturbed:
        _remember(key, measured)
    return measured


def measure(endpoint: Endpoint, cpu: int | None = None) -> Ceiling:
    """The ceiling of one worker against this server."""
    pinned = None if cpu is None else [cpu]
    closed = LoadParameters(arrival="closed", users=_USERS, duration=_SECONDS)
    trace = drive(endpoint, [_REQUEST], closed, workers=1, cpus=pinned)
    rate = len(trace) / _SECONDS
    fast = [part * rate for part in _OF_THE_CLOSED_LOOP if part * rate > PROBE_RATES[-1]]
    probes = tuple(_probe(endpoint, one, pinned) for one in (*PROBE_RATES, *fast))
    kept = [probe.rate for probe in probes if probe.delivered >= quality.LEAST_DELIVERED]
    return Ceiling(max(kept, default=0.0), len(trace) / max(trace.cpu_seconds, 1e-9), probes)


def _probe(endpoint: Endpoint, rate: float, cpus: list[int] | None) -> Probe:
    load = LoadParameters(arrival="poisson", rate=rate, duration=_SECONDS)
    trace = drive(endpoint, [_REQUEST], load, workers=1, cpus=cpus)
    p50, p99 = np.nanpercentile(quality.own_lateness(trace), [50, 99])
    return Probe(rate, quality.delivered(trace), float(p50), float(p99))


def boot() -> str:
    """Tells this machine since its last start from all others; nothing where that is not known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _key(cores: Sequence[int]) -> str:
    """Everything that a remembered ceiling depends on."""
    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        uvloop = "none"
    return f"{boot()} python {sys.version.split()[0]} uvloop {uvloop} cores {cores[0]} {cores[-1]}"


def _file() -> Path:
    return data_directory() / "cache" / "load-ceiling.json"


def _remembered(key: str) -> Ceiling | None:
    try:
        return Ceiling.of_words(json.loads(_file().read_text())[key])
    except (OSError, ValueError, LookupError, TypeError):
        return None  # never measured, or written by another version


def _remember(key: str, ceiling: Ceiling) -> None:
    with suppress(OSError):  # a read-only home costs some seconds each time, nothing else
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_file(), json.dumps({key: asdict(ceiling)}, indent=1))
