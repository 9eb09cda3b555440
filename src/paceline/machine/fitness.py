"""Whether this machine is fit to be measured: probing in `check`, deciding in functions over what was seen."""

from __future__ import annotations

import ctypes
import gc
import os
import shlex
import shutil
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from paceline.core.environment import Cpu, Gpu, Memory
from paceline.core.probe import ROOT, attempt, read_text
from paceline.core.quantity import show_duration, show_size
from paceline.devices import describe_devices, kind_named
from paceline.machine import conditions, cpu
from paceline.machine.conditions import Conditions

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC
_NANOSECONDS = 0x2000  # STA_NANO


class ClockState(BaseModel):
    """What the kernel knows of the system clock's error, in seconds."""

    model_config = ConfigDict(frozen=True)

    synchronised: bool
    offset: float
    largest_error: float


def timer_resolution(readings: int = 2000) -> float:
    """The smallest step that the timer was seen to make, in seconds."""
    smallest = None
    last = time.perf_counter_ns()
    for _ in range(readings):
        now = time.perf_counter_ns()
        if now > last:
            smallest = now - last if smallest is None else min(smallest, now - last)
        last = now
    # No step at all in so many readings: the timer is coarser than their whole span.
    return (smallest if smallest is not None else 1_000_000) / 1e9


def clock_source(root: Path = ROOT) -> str | None:
    """What the kernel reads the time from."""
    return read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def jitter(seconds: float = 0.3) -> float:
    """Coefficient of variation of the same work done over and over."""
    times: list[float] = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        _fixed_work()
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline or len(times) < 2:
            _fixed_work()
            times.append(time.perf_counter() - started)
    finally:
        if was_enabled:
            gc.enable()
    return statistics.stdev(times) / statistics.fmean(times)


def _fixed_work() -> int:
    total = 0
    for number in range(10_000):
        total += number * number
    return total


class _Timex(ctypes.Structure):
    """The head of the kernel's struct timex, and room for the rest of it."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def clock_state() -> ClockState | None:
    """Asks the kernel and changes nothing; None where it does not answer."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    seen = _Timex(modes=0)
    if adjtimex(ctypes.byref(seen)) < 0:
        return None
    scale = 1e9 if seen.status & _NANOSECONDS else 1e6
    return ClockState(
        synchronised=not seen.status & _UNSYNCHRONISED, offset=seen.offset / scale, largest_error=seen.maxerror / 1e6
    )


Level = Literal["ok", "warning", "problem"]

GIB = 1024**3
_COARSE_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")

# Programs of others that some benchmarks need: what each is for, and the package that has it.
OPTIONAL_PROGRAMS = {
    "fio": ("disk", "fio"),
    "iperf3": ("tcp with the engine iperf3", "iperf3"),
    "ib_write_bw": ("rdma", "perftest"),
    "mpirun": ("starting a run on several hosts", "openmpi-bin"),
    "cc": ("benchmarks in C, and --compile", "gcc"),
}
_COMPILERS = ("cc", "gcc", "clang")


class FitnessFinding(BaseModel):
    """One thing that was looked at, and what to do about it if it is not well."""

    model_config = ConfigDict(frozen=True)

    level: Level
    subject: str
    message: str
    remedy: str = ""


def check(store: Path | None = None, jitter_seconds: float = 0.3) -> list[FitnessFinding]:
    """Look at the machine for about a third of a second; `store` is the folder that results are kept in."""
    before = conditions.observe("cpu")
    variation = attempt(lambda: jitter(jitter_seconds))
    after = conditions.observe("cpu")
    processor = attempt(cpu.describe_cpu) or Cpu()
    memory = attempt(cpu.describe_memory) or Memory()
    gpus = describe_devices().gpus
    folders = {"results": store or _default_store(), "temporary files": Path(tempfile.gettempdir())}
    found = [
        judge_load(before, after),
        judge_governor(processor),
        judge_boost(processor),
        judge_quota(processor),
        judge_memory(memory),
        judge_swap(memory),
        *judge_disks({name: attempt(partial(_free, path)) for name, path in folders.items()}),
        judge_timer(attempt(timer_resolution), clock_source()),
        judge_jitter(variation),
        judge_clock(attempt(clock_state)),
        *judge_gpus(gpus, os.getpid()),
        judge_programs({name for name in OPTIONAL_PROGRAMS if _is_there(name)}),
    ]
    return [finding for finding in found if finding is not None]


def worst(findings: Sequence[FitnessFinding]) -> Level:
    """The most serious level among them."""
    order: tuple[Level, ...] = ("problem", "warning", "ok")
    return next((level for level in order if any(finding.level == level for finding in findings)), "ok")


def judge_load(before: Conditions, after: Conditions) -> FitnessFinding | None:
    """Other processes, from two looks with only our own work between them."""
    share = conditions.others_share(before, after)
    if share is None:
        return None
    message = f"other processes use {share:.0%} of the CPU"
    if share <= conditions.OTHERS_SHARE:
        return FitnessFinding(level="ok", subject="load", message=message)
    remedy = "stop what else runs here (see top), or give a run cores of its own with taskset"
    return FitnessFinding(level="problem" if share > 0.5 else "warning", subject="load", message=message, remedy=remedy)


def judge_governor(processor: Cpu) -> FitnessFinding | None:
    """Whether the kernel holds the clocks back; a virtual machine has no governor to ask."""
    if processor.governor is None:
        return None
    message = f"the CPU frequency governor is '{processor.governor}'"
    if processor.governor == "performance":
        return FitnessFinding(level="ok", subject="governor", message=message)
    remedy = "sudo cpupower frequency-set -g performance"
    return FitnessFinding(level="warning", subject="governor", message=message, remedy=remedy)


def judge_boost(processor: Cpu) -> FitnessFinding | None:
    """Boost is what users run with; without it numbers are steadier but lower."""
    if processor.boost is None:
        return None
    if processor.boost:
        return FitnessFinding(level="ok", subject="boost", message="the CPU may boost above its base clock")
    return FitnessFinding(
        level="warning",
        subject="boost",
        message="CPU boost is switched off, so numbers will be lower than this machine can reach",
        remedy="write 1 to /sys/devices/system/cpu/cpufreq/boost, or 0 to .../intel_pstate/no_turbo",
    )


def judge_quota(processor: Cpu) -> FitnessFinding | None:
    """Threads that outnumber the quota are stopped for part of every period."""
    if processor.affinity is None:
        return None
    if processor.quota is None or processor.quota >= processor.affinity:
        return FitnessFinding(
            level="ok", subject="cores", message=f"{processor.affinity} cores may be used, without a quota"
        )
    return FitnessFinding(
        level="warning",
        subject="cores",
        message=f"{processor.affinity} cores are visible, but a quota grants {processor.quota:g} cores' worth of time",
        remedy=f"set OMP_NUM_THREADS={max(1, int(processor.quota))}, or raise the container's CPU limit",
    )


def judge_memory(memory: Memory) -> FitnessFinding | None:
    """What is left of host memory, or of the control group's share of it."""
    total, available = memory.total, memory.available
    if memory.limit is not None:
        total = memory.limit
        if memory.limit_used is not None:
            left = max(0, memory.limit - memory.limit_used)
            available = left if available is None else min(available, left)
    if not total or available is None:
        return None
    message = f"{show_size(available)} of {show_size(total)} memory are available"
    level: Level = "ok"
    if available < 0.1 * total or available < 2 * GIB:
        level = "problem" if available < GIB else "warning"
    remedy = "" if level == "ok" else "end what holds memory, or raise the container's memory limit"
    return FitnessFinding(level=level, subject="memory", message=message, remedy=remedy)


def judge_swap(memory: Memory) -> FitnessFinding | None:
    """Pages out on disk come back in the middle of a measurement."""
    if memory.swap_used is None:
        return None
    if memory.swap_used < 64 * 1024**2:
        return FitnessFinding(level="ok", subject="swap", message="no swap is in use")
    return FitnessFinding(
        level="warning",
        subject="swap",
        message=f"{show_size(memory.swap_used)} are swapped out",
        remedy="free memory, then sudo swapoff -a && sudo swapon -a",
    )


def judge_disks(free: Mapping[str, int | None]) -> list[FitnessFinding]:
    """Free space by what it is for."""
    found = []
    for name, count in free.items():
        if count is None:
            continue
        level: Level = "ok" if count >= 10 * GIB else "warning" if count >= GIB else "problem"
        remedy = "" if level == "ok" else f"make room on the disk of the {name}"
        message = f"{show_size(count)} are free for {name}"
        found.append(FitnessFinding(level=level, subject="disk", message=message, remedy=remedy))
    return found


def judge_timer(resolution: float | None, source: str | None) -> FitnessFinding | None:
    """Whether short times can be told apart."""
    if resolution is None:
        return None
    message = f"the timer steps by at most {show_duration(resolution)}" + (
        f" (clock source {source})" if source else ""
    )
    if resolution <= 1e-6 and source not in _COARSE_CLOCKS:
        return FitnessFinding(level="ok", subject="timer", message=message)
    remedy = "use the processor's own counter as clock source: boot with clocksource=tsc where it is stable"
    level: Level = "problem" if resolution > 1e-4 else "warning"
    return FitnessFinding(level=level, subject="timer", message=message, remedy=remedy)


def judge_jitter(variation: float | None) -> FitnessFinding | None:
    """How much the same work varies when nothing but the machine can be the reason."""
    if variation is None:
        return None
    message = f"the same work varies by {variation:.1%} (coefficient of variation)"
    if variation <= 0.05:
        return FitnessFinding(level="ok", subject="jitter", message=message)
    remedy = "quiet the machine, pin the run to cores of its own, and expect wider intervals until then"
    return FitnessFinding(
        level="problem" if variation > 0.5 else "warning", subject="jitter", message=message, remedy=remedy
    )


def judge_clock(state: ClockState | None) -> FitnessFinding | None:
    """Runs of several machines are put in order by their system clocks; durations do not depend on them."""
    if state is None:
        return None
    if abs(state.offset) <= 0.1 and (state.synchronised or state.largest_error <= 1.0):
        message = f"the system clock is off by at most {show_duration(state.largest_error)}"
        return FitnessFinding(level="ok", subject="clock", message=message)
    message = "no time service keeps the system clock"
    if abs(state.offset) > 0.1:
        message = f"the system clock is off by {show_duration(abs(state.offset))}"
    remedy = "run chronyd or systemd-timesyncd, on the host where this is a container"
    return FitnessFinding(level="warning", subject="clock", message=message, remedy=remedy)


def judge_gpus(gpus: Sequence[Gpu], own_pid: int) -> list[FitnessFinding]:
    """Every GPU; one that is well gets one line."""
    if not gpus:
        return [FitnessFinding(level="ok", subject="gpu", message="no NVIDIA GPU is here; cases run on the CPU")]
    found = []
    for one in gpus:
        wrong = _judge_gpu(one, own_pid)
        at = f", {one.temperature_celsius} °C" if one.temperature_celsius is not None else ""
        found += wrong or [
            FitnessFinding(level="ok", subject=f"gpu {one.index}", message=f"{one.name or 'NVIDIA GPU'} is fit{at}")
        ]
    return found


def _judge_gpu(one: Gpu, own_pid: int) -> list[FitnessFinding]:
    found: list[FitnessFinding] = []

    def add(level: Level, message: str, remedy: str) -> None:
        found.append(FitnessFinding(level=level, subject=f"gpu {one.index}", message=message, remedy=remedy))

    kind = kind_named(one.kind)
    slow = [reason for reason in one.throttle_reasons or () if reason in kind.slowdowns]
    if slow:
        add("problem", f"its clocks are held down: {', '.join(slow)}", "check cooling and power supply of the GPU")
    elif kind.power_cap in (one.throttle_reasons or ()):
        add("warning", "it is at its power limit before any work of ours", "stop what else runs on it")
    if one.persistence is False:
        add("warning", "persistence mode is off, so each start loads the driver anew", "sudo nvidia-smi -pm 1")
    others = [process for process in one.processes or () if process.pid != own_pid]
    if others:
        names = ", ".join(f"{process.name or 'unseen'} ({process.pid})" for process in others[:4])
        add("warning", f"{len(others)} other processes compute on it: {names}", "stop them, or choose another GPU")
    elif one.memory_used is not None and one.memory_used > 2 * GIB:
        message = f"{show_size(one.memory_used)} of its memory are taken by something that cannot be seen from here"
        add("warning", message, f"look from the host with {kind.tool.name}, or choose another GPU")
    if one.ecc.uncorrected_volatile:
        message = f"{one.ecc.uncorrected_volatile} memory errors could not be corrected since the driver was loaded"
        add("problem", message, f"reset the GPU ({kind.tool.reset}) and have it replaced if they come back")
    elif one.ecc.uncorrected_aggregate:
        message = f"{one.ecc.uncorrected_aggregate} memory errors could not be corrected in its life"
        add("warning", message, f"watch it; {kind.tool.show_errors} tells more")
    if one.ecc.remap_failed or one.ecc.remap_pending:
        message = "remapping of broken memory rows " + ("failed" if one.ecc.remap_failed else "waits for a reset")
        add(
            "problem" if one.ecc.remap_failed else "warning",
            message,
            f"reset the GPU ({kind.tool.reset}) or replace it",
        )
    if one.pcie_width and one.pcie_width_max and one.pcie_width < one.pcie_width_max:
        message = f"its PCIe link is x{one.pcie_width}, but could be x{one.pcie_width_max}"
        add("warning", message, "check its seat, riser and slot; copies to and from it are slower")
    if (
        one.power_limit_watts
        and one.power_limit_default_watts
        and one.power_limit_watts < one.power_limit_default_watts
    ):
        command = kind.tool.set_power_of.format(index=one.index, watts=one.power_limit_default_watts)
        message = f"its power limit is {one.power_limit_watts:.0f} W, by default {one.power_limit_default_watts:.0f} W"
        add("warning", message, f"sudo {command}")
    return found


def judge_programs(there: Collection[str]) -> FitnessFinding:
    """Optional programs, each with what it is for; a case that needs an absent one says so, which is no failure."""
    absent = {name: told for name, told in OPTIONAL_PROGRAMS.items() if name not in there}
    if not absent:
        return FitnessFinding(level="ok", subject="programs", message=f"{', '.join(OPTIONAL_PROGRAMS)} are installed")
    uses = ", ".join(f"{name} ({purpose})" for name, (purpose, _) in absent.items())
    packages = " ".join(package for _, package in absent.values())
    message = f"not installed: {uses}; add what you need: sudo apt install {packages}"
    return FitnessFinding(level="ok", subject="programs", message=message)


def _is_there(program: str) -> bool:
    told = shlex.split(os.environ.get("CC", ""))[:1]
    names = (*told, *_COMPILERS) if program == "cc" else (program,)
    return any(shutil.which(name) for name in names)


def _default_store() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "paceline"


def _free(path: Path) -> int:
    """Free bytes where the folder is, or will be once it is made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
