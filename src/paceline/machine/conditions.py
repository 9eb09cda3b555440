"""Under which conditions a number was taken: looked at before and after, judged as warnings, and watched meanwhile."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field

from paceline.core.probe import ROOT, attempt, parse_size, read_int, read_table, read_text
from paceline.core.quantity import show_duration, show_size
from paceline.core.record import RecordWarning
from paceline.core.watch import KINDS, Readings, Watched, WatchSeries
from paceline.devices import kind_of
from paceline.devices.base import DeviceConditions, DeviceKind
from paceline.machine import container
from paceline.machine.cpu import frequency_mhz

_TICKS = os.sysconf("SC_CLK_TCK")  # in a second


def cpu_seconds(pid: int) -> float | None:
    """Time a process has used, together with its children that have ended; None for one that is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system + times.children_user + times.children_system)


def descendants() -> list[int]:
    """Every living process that this one started, directly or not."""
    try:  # without reaping anything; a look at every process of a large machine would take long
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    except OSError:
        pass
    return [child.pid for child in psutil.Process().children(recursive=True)]


OTHERS_SHARE = 0.10  # of the CPU time that this process could have had
STEAL_SHARE = 0.02
STOPPED_SHARE = 0.01  # of the elapsed time, for quotas and for GPU clocks that were held down
PRESSURE_SHARE = 0.05
SWAPPED_BYTES = 4 * 1024**2
_TICK_SECONDS = 0.01  # the kernel counts CPU time in ticks, so each core's count may be off by one


class Conditions(BaseModel):
    """One moment of the machine; counters run since boot, and only their growth means anything."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    target: str
    clock: float  # monotonic seconds
    load: float | None = None  # of the last minute
    cpus: int | None = None  # logical cores that this process may use; the next three are their sums
    cpu_seconds: float | None = None
    busy_seconds: float | None = None
    steal_seconds: float | None = None
    own_seconds: float | None = None  # this process and all that it started
    sibling_seconds: dict[int, float] = Field(default_factory=dict)
    own_pids: list[int] = Field(default_factory=list)  # this process, its descendants and siblings
    quota_stopped_seconds: float | None = None
    involuntary_switches: int | None = None
    pressure_seconds: dict[str, float] = Field(default_factory=dict)  # some task waited for cpu, memory, io
    memory_available: int | None = None
    swapped_bytes: int | None = None
    frequency_mhz: float | None = None
    gpus: list[DeviceConditions] = Field(default_factory=list)


def observe(target: str, siblings: Sequence[int] = ()) -> Conditions:
    """Look at the machine now; `siblings` are the processes of the other ranks, which are not strangers."""
    affinity = attempt(lambda: os.sched_getaffinity(0)) or set()
    started = attempt(descendants) or []
    times_used = [seconds for pid in (os.getpid(), *started) if (seconds := cpu_seconds(pid)) is not None]
    times = attempt(lambda: _cpu_times(affinity))
    meminfo, vmstat = read_table(ROOT / "proc/meminfo"), read_table(ROOT / "proc/vmstat")
    return Conditions(
        target=target,
        clock=time.monotonic(),
        load=attempt(lambda: os.getloadavg()[0]),
        cpus=len(affinity) or None,
        cpu_seconds=times[0] if times else None,
        busy_seconds=times[1] if times else None,
        steal_seconds=times[2] if times else None,
        own_seconds=sum(times_used) if times_used else None,
        sibling_seconds={pid: seconds for pid in siblings if (seconds := cpu_seconds(pid)) is not None},
        own_pids=[os.getpid(), *started, *siblings],
        quota_stopped_seconds=attempt(container.cpu_stopped),
        involuntary_switches=attempt(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw),
        pressure_seconds=attempt(_pressure) or {},
        memory_available=attempt(lambda: parse_size(meminfo["MemAvailable"])),
        swapped_bytes=attempt(lambda: (int(vmstat["pswpin"]) + int(vmstat["pswpout"])) * os.sysconf("SC_PAGE_SIZE")),
        frequency_mhz=attempt(lambda: frequency_mhz(ROOT, affinity)),
        gpus=attempt(lambda: kind_of(target).conditions(target)) or [],
    )


def warnings(before: Conditions, after: Conditions, own_cpu_seconds: float | None = None) -> list[RecordWarning]:
    """What the two looks say against a number taken between them.

    `own_cpu_seconds` is the CPU time of the measurement, where the caller knows it better than the counters.
    """
    reasons: list[RecordWarning] = []

    def warn(kind: str, message: str, remedy: str) -> None:
        reasons.append(RecordWarning(kind=kind, message=message, remedy=remedy))

    elapsed = after.clock - before.clock
    share = others_share(before, after, own_cpu_seconds)
    if share is not None and share > OTHERS_SHARE:
        remedy = "stop what else runs on this machine (see top), or give the run cores of its own (--affinity auto)"
        warn("contended", f"other processes used {share:.0%} of the CPU during the measurement", remedy)
    total, steal = _growth(before.cpu_seconds, after.cpu_seconds), _growth(before.steal_seconds, after.steal_seconds)
    if total and steal is not None and steal - _TICK_SECONDS * (after.cpus or 1) > STEAL_SHARE * total:
        message = f"the hypervisor gave {steal / total:.0%} of this virtual machine's CPU time to others"
        warn("contended", message, "use a virtual machine with dedicated cores, or measure when the host is quiet")
    stopped = _growth(before.quota_stopped_seconds, after.quota_stopped_seconds)
    if stopped is not None and stopped > STOPPED_SHARE * elapsed:
        message = f"the control group's CPU quota held its processes up for {show_duration(stopped)}"
        remedy = "raise the container's CPU limit, or use no more threads than it grants (OMP_NUM_THREADS)"
        warn("throttled", message, remedy)
    swapped = _growth(before.swapped_bytes, after.swapped_bytes) or 0
    waited = _growth(before.pressure_seconds.get("memory"), after.pressure_seconds.get("memory")) or 0.0
    remedy = "free memory, or choose a smaller batch or model"
    if swapped >= SWAPPED_BYTES:
        warn("swapping", f"the machine swapped {show_size(swapped)} during the measurement", remedy)
    elif elapsed > 0 and waited > PRESSURE_SHARE * elapsed:
        warn("swapping", f"processes waited for memory during {waited / elapsed:.0%} of the measurement", remedy)
    for index, (first, last) in enumerate(zip(before.gpus, after.gpus, strict=False)):
        kind = kind_of(after.target)
        name = after.target if len(after.gpus) == 1 else f"{kind.name}:{index}"
        if warning := _clock_warning(kind, name, first, last, elapsed):
            reasons.append(warning)
        strangers = max(strangers_on(first, before.own_pids), strangers_on(last, after.own_pids))
        if strangers:
            others = "another process was" if strangers == 1 else f"{strangers} other processes were"
            remedy = f"stop what else runs on the GPU ({kind.tool.name} lists it), or choose another GPU"
            warn("contended", f"{others} on {name} during the measurement", remedy)
    return reasons


def others_share(before: Conditions, after: Conditions, own_cpu_seconds: float | None = None) -> float | None:
    """Part of the usable cores' time that went to other processes; None where that is unknown."""
    total, busy = _growth(before.cpu_seconds, after.cpu_seconds), _growth(before.busy_seconds, after.busy_seconds)
    own = own_cpu_seconds
    if own is None and before.sibling_seconds.keys() <= after.sibling_seconds.keys():
        # Otherwise a rank has ended and took the count of its time along.
        siblings = sum(value - before.sibling_seconds.get(pid, 0.0) for pid, value in after.sibling_seconds.items())
        growth = _growth(before.own_seconds, after.own_seconds)
        own = None if growth is None else growth + siblings
    if not total or busy is None or own is None:
        return None
    slack = _TICK_SECONDS * (after.cpus or 1)
    return max(0.0, busy - own - slack) / total


def power_limited_share(before: Conditions, after: Conditions) -> float | None:
    """The largest part of the time that its power limit held one of the devices down; None where none counts it."""
    elapsed, reason = after.clock - before.clock, kind_of(after.target).power_cap
    pairs = zip(before.gpus, after.gpus, strict=False)
    return max((share for pair in pairs if (share := _held_down(*pair, elapsed).get(reason)) is not None), default=None)


def _held_down(before: DeviceConditions, after: DeviceConditions, elapsed: float) -> dict[str, float]:
    """For which part of the time each reason held the clocks down."""
    return {
        reason: min(1.0, (seconds - before.held_down_seconds[reason]) / elapsed)
        for reason, seconds in after.held_down_seconds.items()
        if reason in before.held_down_seconds and elapsed > 0
    }


def strangers_on(gpu: DeviceConditions, own_pids: Sequence[int]) -> int:
    """How many processes on the GPU are not ours.

    Inside a container the driver counts processes as the host does, so ours appear under numbers that mean nothing
    here. As long as none of ours is recognised, as many nameless ones as we have may be ours.
    """
    listed = gpu.processes or []
    recognised = [one for one in listed if one.pid in own_pids]
    named = [one for one in listed if one.name is not None and one.pid not in own_pids]
    nameless = len(listed) - len(recognised) - len(named)
    return len(named) + (nameless if recognised else max(0, nameless - max(1, len(own_pids))))


def _clock_warning(
    kind: DeviceKind, name: str, before: DeviceConditions, after: DeviceConditions, elapsed: float
) -> RecordWarning | None:
    shares = _held_down(before, after, elapsed)
    active = set(after.throttle_reasons or ())

    def applies(reason: str) -> bool:
        return reason in active or shares.get(reason, 0.0) > STOPPED_SHARE

    def with_share(reason: str) -> str:
        share = shares.get(reason, 0.0)
        return f"{reason} ({share:.0%} of the time)" if share > STOPPED_SHARE else reason

    if slow := [with_share(reason) for reason in kind.slowdowns if applies(reason)]:
        at = "" if after.temperature_celsius is None else f" at {after.temperature_celsius} °C"
        lock = f"lock its clocks ({kind.tool.lock_clocks})"
        return RecordWarning(
            kind="throttled",
            message=f"{name} held its clocks down{at}: {', '.join(slow)}",
            remedy=f"improve cooling and power supply, let the GPU cool down, or {lock}",
        )
    if applies(kind.power_cap):
        limit = "" if after.power_limit_watts is None else f" of {after.power_limit_watts:.0f} W"
        return RecordWarning(
            kind="power-capped",
            message=f"{name} ran at its power limit{limit}, as is common at full load: {with_share(kind.power_cap)}",
            remedy=f"compare only with numbers under the same power limit; {kind.tool.set_power} changes it",
        )
    return None


def _growth(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _cpu_times(affinity: set[int]) -> tuple[float, float, float] | None:
    """All, busy and stolen seconds of the cores that this process may use."""
    total = busy = stolen = 0
    for line in (read_text(ROOT / "proc/stat") or "").splitlines():
        name, *words = line.split()
        if not name.startswith("cpu"):
            break
        if name == "cpu" or int(name[3:]) not in affinity:
            continue
        user, nice, system, idle, waiting, interrupts, soft, steal = (int(word) for word in words[:8])
        used = user + nice + system + interrupts + soft
        busy += used
        stolen += steal
        total += used + idle + waiting + steal
    return (total / _TICKS, busy / _TICKS, stolen / _TICKS) if total else None


def _pressure() -> dict[str, float]:
    lines = {name: read_text(ROOT / f"proc/pressure/{name}") or "" for name in ("cpu", "memory", "io")}
    totals = {name: re.match(r".*total=(\d+)", text) for name, text in lines.items()}  # of its first line
    return {name: int(total[1]) / 1e6 for name, total in totals.items() if total}


MOST_POINTS = 120  # of a series; of more looks, every second one, every third, and so on
# Of an InfiniBand port; data is counted in units of four bytes.
_PORT = {
    "received": (("port_rcv_data",), 4.0),
    "sent": (("port_xmit_data",), 4.0),
    "errors": (("symbol_error", "link_downed", "port_rcv_errors"), 1.0),
    "drops": (("port_xmit_discards",), 1.0),
}


def watcher(targets: Sequence[str], cpus: Set[int], root: Path = ROOT) -> Callable[[], Readings]:
    """What reads everything at once: the host, whose clock is that of the given cores, and the targets' devices."""
    cpus = cpus if frequency_mhz(root, cpus) is not None else frozenset()  # to ask in vain takes long
    ports = sorted(root.glob("sys/class/infiniband/*/ports/*/counters"))
    devices = [(target, attempt(partial(_device_watcher, target))) for target in targets]

    def read() -> Readings:
        found: dict[tuple[str, str], float] = {}
        for of, name, value in (*_cores(root, cpus), *_networks(root), *_ports(ports)):
            found[of, name] = value
        for target, look in devices:
            of_devices = (attempt(look) if look is not None else None) or ()
            for index, readings in enumerate(of_devices):
                of = target if len(of_devices) == 1 else f"{kind_of(target).name}:{index}"
                found.update({(of, name): value for name, value in readings.items()})
        return found

    return read


def _device_watcher(target: str) -> Callable[[], Sequence[Mapping[str, float]]]:
    return kind_of(target).watcher(target)


def _cores(root: Path, cpus: Set[int]) -> Iterator[tuple[str, str, float]]:
    """Seconds of all cores together, divided by their number, so that growth in a second is a share."""
    lines = (read_text(root / "proc/stat") or "").splitlines()
    count = sum(line.startswith("cpu") for line in lines) - 1
    if count > 0:
        user, nice, system, _idle, _waiting, interrupts, soft, steal = map(int, lines[0].split()[1:9])
        yield "cpu", "busy", (user + nice + system + interrupts + soft) / _TICKS / count
        yield "cpu", "steal", steal / _TICKS / count
    if cpus and (clock := frequency_mhz(root, cpus)) is not None:
        yield "cpu", "frequency", clock


def _networks(root: Path) -> Iterator[tuple[str, str, float]]:
    """Bytes, errors and drops of each interface that was ever used, but the loopback."""
    for line in (read_text(root / "proc/net/dev") or "").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = [int(word) for word in numbers.split()]
        if name.strip() != "lo" and len(columns) >= 16 and columns[0] + columns[8]:
            counts = (columns[0], columns[8], columns[2] + columns[10], columns[3] + columns[11])
            yield from ((name.strip(), what, count) for what, count in zip(_PORT, counts, strict=True))


def _ports(folders: Sequence[Path]) -> Iterator[tuple[str, str, float]]:
    for folder in folders:
        of = f"{folder.parents[2].name}/{folder.parent.name}"
        for name, (files, scale) in _PORT.items():
            counts = [count for file in files if (count := read_int(folder / file)) is not None]
            if counts:
                yield of, name, scale * sum(counts)


def summarize_looks(looks: Sequence[tuple[float, Readings]]) -> Watched:
    """The series that looks at these times give, each with its figure from all of them, and a part of its points."""
    kept = [at for at, _ in looks[:: -(-len(looks) // MOST_POINTS)]]
    series = []
    for of, name in dict.fromkeys(key for _, readings in looks for key in readings if key[1] in KINDS):
        kind = KINDS[name]
        points = [(at, readings[of, name]) for at, readings in looks if (of, name) in readings]
        (began, first), (ended, last) = points[0], points[-1]
        shown = dict(points)
        if kind.is_rate:
            rates = {at: (now - before) / (at - since) for (since, before), (at, now) in pairwise(points)}
            shown = {at: min(rate, kind.most) for at, rate in rates.items()}
            figure = min((last - first) / (ended - began), kind.most) if shown else None
        elif kind.figure == "new":
            shown, figure = {at: now - first for at, now in points}, last - first
        else:
            figure = max(shown.values()) if kind.figure == "max" else sum(shown.values()) / len(shown)
        if figure is not None:
            values = [float(f"{shown[at]:.4g}") if at in shown else None for at in kept]  # as exact as a sensor is
            values = values[:1] if len(set(values)) == 1 else values
            series.append(
                WatchSeries(of=of, name=name, unit=kind.unit, figure=kind.figure, value=figure, values=values)
            )
    return Watched(times=[round(at, 2) for at in kept], series=series)
