"""Whether this machine is fit to be measured: probing in `check`, deciding in functions over what was seen."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict

from paceline.core.environment import Cpu, Gpu, Memory
from paceline.core.files import data_directory
from paceline.core.gc_pause import no_garbage
from paceline.core.probe import ROOT, attempt, read_cpu_list, read_int, read_text
from paceline.core.quantity import show_duration, show_size
from paceline.devices import describe_devices, kind_named
from paceline.machine import conditions, cpu
from paceline.machine.conditions import Conditions
from paceline.machine.cpu import MANY_CORES, cpus_in, isolated_cpus, show_cpu_list

_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000


@dataclass(frozen=True)
class ClockState:
    """What the kernel says of the system clock's error, in seconds."""

    synchronised: bool
    offset: float
    largest_error: float


def timer_resolution(readings: int = 2000) -> float:
    """The smallest step that the timer was seen to make, in seconds."""
    steps = []
    last = time.perf_counter_ns()
    for _ in range(readings):
        now = time.perf_counter_ns()
        if now > last:
            steps.append(now - last)
        last = now
    # No step at all in so many readings: the timer is coarser than their whole span.
    return min(steps, default=1_000_000) / 1e9


def jitter(seconds: float = 0.3) -> float:
    """Coefficient of variation of the same work done over and over."""
    times: list[float] = []
    with no_garbage():
        _fixed_work()
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline or len(times) < 2:
            _fixed_work()
            times.append(time.perf_counter() - started)
    return statistics.stdev(times) / statistics.fmean(times)


def _fixed_work() -> int:
    return sum(number * number for number in range(10_000))


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
    state = _Timex(modes=0)
    if adjtimex(ctypes.byref(state)) < 0:
        return None
    scale = 1e9 if state.status & _STA_NANO else 1e6
    return ClockState(
        synchronised=not state.status & _STA_UNSYNC, offset=state.offset / scale, largest_error=state.maxerror / 1e6
    )


Level = Literal["ok", "hint", "warning", "problem"]  # a hint makes numbers steadier where that is wanted

GIB = 1024**3

# Programs of others that some benchmarks need: what each is for, and the package that has it.
OPTIONAL_PROGRAMS = {
    "fio": ("disk", "fio"),
    "iperf3": ("tcp with the engine iperf3", "iperf3"),
    "ib_write_bw": ("rdma", "perftest"),
    "mpirun": ("starting a run on several hosts", "openmpi-bin"),
    "cc": ("benchmarks in C, and --compile", "gcc"),
}


class FitnessFinding(BaseModel):
    """One thing that was looked at, and what to do about it if it is not well."""

    model_config = ConfigDict(frozen=True)

    level: Level
    subject: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, subject: str, level: Level, message: str, remedy: str = "") -> Self:
        """A finding; what is well needs no remedy."""
        return cls(level=level, subject=subject, message=message, remedy="" if level == "ok" else remedy)


def check(store: Path | None = None, jitter_seconds: float = 0.3) -> list[FitnessFinding]:
    """Look at the machine for about a third of a second; `store` is the folder that results are kept in."""
    before = conditions.observe("cpu")
    variation = attempt(lambda: jitter(jitter_seconds))
    after = conditions.observe("cpu")
    processor = attempt(cpu.describe_cpu) or Cpu()
    memory = attempt(cpu.describe_memory) or Memory()
    folders = {"results": store or data_directory(), "temporary files": Path(tempfile.gettempdir())}
    installed = {name for name in OPTIONAL_PROGRAMS if shutil.which(name)}
    if any(map(shutil.which, [*shlex.split(os.environ.get("CC", ""))[:1], "gcc", "clang"])):
        installed.add("cc")
    findings = [
        judge_load(before, after),
        judge_governor(processor),
        judge_boost(processor),
        judge_quota(processor),
        judge_threads(processor),
        *judge_tuning(),
        judge_memory(memory),
        judge_swap(memory),
        *judge_disks({name: attempt(partial(_free, path)) for name, path in folders.items()}),
        judge_timer(
            attempt(timer_resolution),
            read_text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ),
        judge_jitter(variation),
        judge_clock(attempt(clock_state)),
        *judge_gpus(describe_devices().gpus, os.getpid()),
        judge_programs(installed),
    ]
    return [finding for finding in findings if finding is not None]


def worst(findings: Sequence[FitnessFinding]) -> Level:
    """The most serious level among them."""
    return max((finding.level for finding in findings), key=get_args(Level).index, default="ok")


def judge_load(before: Conditions, after: Conditions) -> FitnessFinding | None:
    """Other processes, from two looks with only our own work between them."""
    share = conditions.others_share(before, after)
    if share is None:
        return None
    level: Level = "ok" if share <= conditions.OTHERS_SHARE else "warning" if share <= 0.5 else "problem"
    remedy = "stop what else runs here (see top), or give a run cores of its own (paceline run --affinity auto)"
    return FitnessFinding.of("load", level, f"other processes use {share:.0%} of the CPU", remedy)


def judge_governor(processor: Cpu) -> FitnessFinding | None:
    """Whether the kernel holds the clocks back; a virtual machine has no governor to ask."""
    if processor.governor is None:
        return None
    level: Level = "ok" if processor.governor == "performance" else "warning"
    message = f"the CPU frequency governor is '{processor.governor}'"
    return FitnessFinding.of("governor", level, message, "sudo cpupower frequency-set -g performance")


def judge_boost(processor: Cpu) -> FitnessFinding | None:
    """Boost is what users run with; without it numbers are steadier but lower."""
    if processor.boost is None:
        return None
    if processor.boost:
        message = "the CPU may boost above its base clock, by as much as its heat allows"
        remedy = (
            "for steadier but lower numbers: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost, "
            "or on Intel's: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        )
        return FitnessFinding.of("boost", "hint", message, remedy)
    message = "CPU boost is switched off, so numbers will be lower than this machine can reach"
    remedy = "write 1 to /sys/devices/system/cpu/cpufreq/boost, or 0 to .../intel_pstate/no_turbo"
    return FitnessFinding.of("boost", "warning", message, remedy)


def judge_quota(processor: Cpu) -> FitnessFinding | None:
    """Threads that outnumber the quota are stopped for part of every period."""
    cores, quota = processor.affinity, processor.quota
    if cores is None:
        return None
    if quota is None or quota >= cores:
        return FitnessFinding.of("cores", "ok", f"{cores} cores may be used, without a quota")
    message = f"{cores} cores are visible, but a quota grants {quota:g} cores' worth of time"
    remedy = f"set OMP_NUM_THREADS={max(1, int(quota))}, or raise the container's CPU limit"
    return FitnessFinding.of("cores", "warning", message, remedy)


def judge_threads(processor: Cpu) -> FitnessFinding | None:
    """Two hardware threads of a core share what it computes with."""
    logical, physical = processor.logical_cores, processor.physical_cores
    if not logical or not physical:
        return None
    if logical <= physical:
        return FitnessFinding.of("threads", "ok", f"each of the {physical} cores has one hardware thread")
    message = f"{physical} cores have {logical} hardware threads, which take turns on them"
    remedy = (
        "one thread of each: paceline run --affinity auto; or none at all: "
        "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    )
    return FitnessFinding.of("threads", "hint", message, remedy)


def judge_tuning(root: Path = ROOT) -> list[FitnessFinding]:
    """What the kernel can be asked to do for steadier numbers: isolation, interrupts, addresses, pages."""
    checks = (_judge_isolation, _judge_interrupts, _judge_addresses, _judge_pages)
    return [finding for judge in checks if (finding := judge(root)) is not None]


def _judge_isolation(root: Path) -> FitnessFinding | None:
    online, isolated = cpus_in("online", root), isolated_cpus(root)
    if not isolated and len(online) < MANY_CORES:
        return None  # too few to set some aside
    if not isolated:
        shown = show_cpu_list(sorted(online)[len(online) // 2 :])
        message = "no CPU is isolated: the kernel may schedule anything next to a case"
        remedy = (
            f"boot with isolcpus={shown} nohz_full={shown} rcu_nocbs={shown}, then paceline run --affinity isolated"
        )
        return FitnessFinding.of("isolation", "hint", message, remedy)
    ticking = isolated - cpus_in("nohz_full", root)
    message = f"CPU {show_cpu_list(isolated)} is isolated: paceline run --affinity isolated"
    if not ticking:
        return FitnessFinding.of("isolation", "ok", message)
    remedy = f"the kernel's tick still interrupts it: boot with nohz_full={show_cpu_list(isolated)} too"
    return FitnessFinding.of("isolation", "hint", message, remedy)


def _judge_interrupts(root: Path) -> FitnessFinding | None:
    """Whether interrupts are kept off the isolated CPUs."""
    isolated = isolated_cpus(root)
    lists = {path.parent.name: read_text(path) for path in (root / "proc/irq").glob("[0-9]*/smp_affinity_list")}
    aimed = sorted(
        (name for name, cpus in lists.items() if cpus and (attempt(partial(read_cpu_list, cpus)) or set()) & isolated),
        key=int,
    )
    if not isolated or not lists:
        return None
    if not aimed:
        return FitnessFinding.of("interrupts", "ok", f"none of {len(lists)} interrupts goes to an isolated CPU")
    others = show_cpu_list(cpus_in("online", root) - isolated or {0})
    message = f"{len(aimed)} of {len(lists)} interrupts may go to isolated CPUs"
    remedy = (
        f"sudo systemctl stop irqbalance; for i in /proc/irq/*/smp_affinity_list; do echo {others} | sudo tee $i; done"
    )
    return FitnessFinding.of("interrupts", "warning", message, remedy)


def _judge_addresses(root: Path) -> FitnessFinding | None:
    """Addresses that are drawn anew for each process average over layouts; fixed ones repeat one by accident."""
    value = read_int(root / "proc/sys/kernel/randomize_va_space")
    if value is None:
        return None
    if value == 2:
        return FitnessFinding.of("addresses", "ok", "addresses are drawn anew for every process (ASLR)")
    message = "addresses are the same in every process, so that all repeats share one layout by accident"
    return FitnessFinding.of("addresses", "warning", message, "sudo sysctl kernel.randomize_va_space=2")


def _judge_pages(root: Path) -> FitnessFinding | None:
    """Huge pages that come and go by themselves move memory in the middle of a measurement."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        return None
    if chosen[1] == "madvise":
        return FitnessFinding.of("pages", "ok", "programs that ask for huge pages get them")
    message = f"transparent huge pages are set to '{chosen[1]}'"
    if chosen[1] == "always":
        message += ": the kernel makes them in the background, also while steps are measured"
    else:
        message += ": programs that ask for them, memory benchmarks among them, do without"
    remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return FitnessFinding.of("pages", "hint", message, remedy)


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
    level: Level = "ok"
    if available < 0.1 * total or available < 2 * GIB:
        level = "problem" if available < GIB else "warning"
    message = f"{show_size(available)} of {show_size(total)} memory are available"
    remedy = "end what holds memory, or raise the container's memory limit"
    return FitnessFinding.of("memory", level, message, remedy)


def judge_swap(memory: Memory) -> FitnessFinding | None:
    """Pages out on disk come back in the middle of a measurement."""
    if memory.swap_used is None:
        return None
    if memory.swap_used < 64 * 1024**2:
        return FitnessFinding.of("swap", "ok", "no swap is in use")
    remedy = "free memory, then sudo swapoff -a && sudo swapon -a"
    return FitnessFinding.of("swap", "warning", f"{show_size(memory.swap_used)} are swapped out", remedy)


def judge_disks(free: Mapping[str, int | None]) -> list[FitnessFinding]:
    """Free space by what it is for."""
    findings = []
    for name, count in free.items():
        if count is not None:
            level: Level = "ok" if count >= 10 * GIB else "warning" if count >= GIB else "problem"
            message = f"{show_size(count)} are free for {name}"
            findings.append(FitnessFinding.of("disk", level, message, f"make room on the disk of the {name}"))
    return findings


def judge_timer(resolution: float | None, source: str | None) -> FitnessFinding | None:
    """Whether short times can be distinguished."""
    if resolution is None:
        return None
    level: Level = "problem" if resolution > 1e-4 else "warning"
    if resolution <= 1e-6 and source not in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        level = "ok"
    of_source = f" (clock source {source})" if source else ""
    message = f"the timer steps by at most {show_duration(resolution)}{of_source}"
    remedy = "use the processor's own counter as clock source: boot with clocksource=tsc where it is stable"
    return FitnessFinding.of("timer", level, message, remedy)


def judge_jitter(variation: float | None) -> FitnessFinding | None:
    """How much the same work varies when nothing but the machine can be the reason."""
    if variation is None:
        return None
    level: Level = "ok" if variation <= 0.05 else "warning" if variation <= 0.5 else "problem"
    message = f"the same work varies by {variation:.1%} (coefficient of variation)"
    remedy = "quiet the machine, pin the run to cores of its own, and expect wider intervals until then"
    return FitnessFinding.of("jitter", level, message, remedy)


def judge_clock(state: ClockState | None) -> FitnessFinding | None:
    """Runs of several machines are put in order by their system clocks; durations do not depend on them."""
    if state is None:
        return None
    if abs(state.offset) <= 0.1 and (state.synchronised or state.largest_error <= 1.0):
        message = f"the system clock is off by at most {show_duration(state.largest_error)}"
        return FitnessFinding.of("clock", "ok", message)
    message = "no time service keeps the system clock"
    if abs(state.offset) > 0.1:
        message = f"the system clock is off by {show_duration(abs(state.offset))}"
    remedy = "run chronyd or systemd-timesyncd, on the host where this is a container"
    return FitnessFinding.of("clock", "warning", message, remedy)


def judge_gpus(gpus: Sequence[Gpu], own_pid: int) -> list[FitnessFinding]:
    """Every GPU; one that is well gets one line."""
    if not gpus:
        return [FitnessFinding.of("gpu", "ok", "no GPU is here; cases run on the CPU")]
    findings = []
    for gpu in gpus:
        at = f", {gpu.temperature_celsius} °C" if gpu.temperature_celsius is not None else ""
        fit = FitnessFinding.of(f"gpu {gpu.index}", "ok", f"{gpu.name or 'GPU'} is fit{at}")
        findings += _judge_gpu(gpu, own_pid) or [fit]
    return findings


def _judge_gpu(gpu: Gpu, own_pid: int) -> list[FitnessFinding]:
    findings: list[FitnessFinding] = []

    def add(level: Level, message: str, remedy: str) -> None:
        findings.append(FitnessFinding.of(f"gpu {gpu.index}", level, message, remedy))

    kind = kind_named(gpu.kind)
    slow = [reason for reason in gpu.throttle_reasons or () if reason in kind.slowdowns]
    if slow:
        add("problem", f"its clocks are held down: {', '.join(slow)}", "check cooling and power supply of the GPU")
    elif kind.power_cap in (gpu.throttle_reasons or ()):
        add("warning", "it is at its power limit before any work of ours", "stop what else runs on it")
    if gpu.persistence is False:
        add("warning", "persistence mode is off, so each start loads the driver anew", f"sudo {kind.tool.keep_loaded}")
    others = [process for process in gpu.processes or () if process.pid != own_pid]
    if others:
        names = ", ".join(f"{process.name or 'unseen'} ({process.pid})" for process in others[:4])
        add("warning", f"{len(others)} other processes compute on it: {names}", "stop them, or choose another GPU")
    elif gpu.memory_used is not None and gpu.memory_used > 2 * GIB:
        message = f"{show_size(gpu.memory_used)} of its memory are taken by something that cannot be seen from here"
        add("warning", message, f"look from the host with {kind.tool.name}, or choose another GPU")
    if gpu.ecc.uncorrected_volatile:
        message = f"{gpu.ecc.uncorrected_volatile} memory errors could not be corrected since the driver was loaded"
        add("problem", message, f"reset the GPU ({kind.tool.reset}) and have it replaced if they come back")
    elif gpu.ecc.uncorrected_aggregate:
        message = f"{gpu.ecc.uncorrected_aggregate} memory errors could not be corrected in its life"
        add("warning", message, f"watch it; {kind.tool.show_errors} says more")
    if gpu.ecc.remap_failed or gpu.ecc.remap_pending:
        message = "remapping of broken memory rows " + ("failed" if gpu.ecc.remap_failed else "waits for a reset")
        level: Level = "problem" if gpu.ecc.remap_failed else "warning"
        add(level, message, f"reset the GPU ({kind.tool.reset}) or replace it")
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        message = f"its PCIe link is x{gpu.pcie_width}, but could be x{gpu.pcie_width_max}"
        add("warning", message, "check its seat, riser and slot; copies to and from it are slower")
    limit, usual = gpu.power_limit_watts, gpu.power_limit_default_watts
    if limit and usual and limit < usual:
        command = kind.tool.set_power_of.format(index=gpu.index, watts=usual)
        message = f"its power limit is {limit:.0f} W, by default {usual:.0f} W"
        add("warning", message, f"sudo {command}")
    return findings


def judge_programs(installed: Collection[str]) -> FitnessFinding:
    """Optional programs, each with its purpose; a case that needs a missing one says so, which is not a failure."""
    missing = {name: entry for name, entry in OPTIONAL_PROGRAMS.items() if name not in installed}
    if not missing:
        return FitnessFinding.of("programs", "ok", f"{', '.join(OPTIONAL_PROGRAMS)} are installed")
    uses = ", ".join(f"{name} ({purpose})" for name, (purpose, _) in missing.items())
    packages = " ".join(package for _, package in missing.values())
    message = f"not installed: {uses}; add what you need: sudo apt install {packages}"
    return FitnessFinding.of("programs", "ok", message)


def _free(path: Path) -> int:
    """Free bytes where the folder is, or will be once it is made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
