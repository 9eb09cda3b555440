"""What a device kind says and does: subclass `DeviceKind` and `Device` in one file to add another."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from paceline.core.device import ALL, TargetKind, split_target
from paceline.core.environment import Driver, Gpu, GpuProcess
from paceline.core.errors import Unsupported
from paceline.core.files import shipped_rows
from paceline.core.registry import Kind
from paceline.core.subject import NumberFormat, number_format
from paceline.devices.timeline import EventTimeline, HostTimeline, Timeline, TimelineEvent, monotonic

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
Step = Callable[[], object]
Entry = int | str  # the driver's index of a device, or the name of a part of one (MIG)


@dataclass(frozen=True)
class FormatSupport:
    """How a device computes in a number format, and for one that it lacks why, with what to use instead."""

    how: Literal["native", "emulated", "none"]
    reason: str = ""


NATIVE, EMULATED = FormatSupport("native"), FormatSupport("emulated")


class DeviceConditions(BaseModel):
    """One device at one moment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uuid: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    throttle_reasons: list[str] | None = None
    held_down_seconds: dict[str, float] = Field(default_factory=dict)  # counters by reason; only growth means anything
    processes: list[GpuProcess] | None = None


@dataclass(frozen=True)
class DeviceUse:
    """How busy one device is just now, and how much of its memory is taken."""

    busy_percent: float | None
    memory_used: int | None  # bytes


@dataclass(frozen=True)
class VendorTool:
    """The vendor's command, as remedies name it: it lists processes, and with options does more."""

    name: str = "the vendor's tool"
    lock_clocks: str = name
    set_power: str = name
    set_power_of: str = name  # with {index} and {watts}
    reset: str = name
    show_errors: str = name
    keep_loaded: str = name  # the driver, while nothing runs


@dataclass(frozen=True)
class Described:
    """What environment records keep of all devices of a kind."""

    driver: Driver | None = None
    gpus: list[Gpu] = field(default_factory=list)


class EnergyMeter(Protocol):
    """Something that counts energy; only the difference of two readings means anything."""

    source: str  # what counts, for the record
    late: bool  # two readings lay so far apart that the counter may have gone round unseen: then drop the figure

    def read(self) -> float:
        """Joules since the meter was opened; never less than before."""


ENERGY_SECONDS = 2.0  # a GPU's counter advances in steps of up to a tenth of a second: over less it says nothing


def is_energy_known(meter: EnergyMeter | None, joules: float, seconds: float) -> bool:
    """Whether so many joules, counted over so many seconds, are a figure to report."""
    return meter is not None and not meter.late and joules > 0 and seconds >= ENERGY_SECONDS


class DeviceKind(TargetKind):
    """Everything Paceline knows of one kind of device; what is not overridden, the kind does not have."""

    is_accelerator: ClassVar[bool] = True  # has memory and time of its own: work is issued to it, and waited for
    boost_seconds: ClassVar[float] = 2.5  # after a rest, how long it may run above the pace that it can sustain
    supports_graphs: ClassVar[bool] = False  # a step can be recorded once and replayed with one launch
    graph_name: ClassVar[str] = "graph"
    collective_backend: ClassVar[str] = "gloo"  # of torch.distributed, between devices of this kind
    copy_call: ClassVar[str] = "torch's copy"  # what carries out a copy of a tensor to, from or within a device
    launches_kernels: ClassVar[bool] = False  # through CUDA's driver, so that a launch alone can be timed
    needs_triton: ClassVar[bool] = False  # to compile for it
    prefers_channels_last: ClassVar[bool] = False  # whether convolutions are faster so
    libraries: ClassVar[Sequence[str]] = ()  # of its vendor, that compute more than one operator in a call
    slowdowns: ClassVar[Sequence[str]] = ()  # throttle reasons that speak against a number
    power_cap: ClassVar[str] = ""  # the throttle reason of running at the power limit
    variables: ClassVar[Sequence[str]] = ()  # of the environment, in addition to the visible one, that a record keeps
    out_of_memory_words: ClassVar[Sequence[str]] = ()  # in an error that says so of its memory
    # Asking a runtime whether there is a device may spoil it for every fork: what keeps torch from doing so.
    fork_environment: ClassVar[Mapping[str, str]] = {}
    tool: ClassVar[VendorTool] = VendorTool()

    @abstractmethod
    def open(self, index: int) -> Device:
        """The device of this number; Unsupported where there is none."""

    def describe(self) -> Described:
        """The driver and all devices, as environment records keep them."""
        return Described()

    def meter(self, target: str) -> EnergyMeter | None:
        """The energy counter of `KIND:N`, or of all with `KIND:*`; None where the hardware does not count for us."""
        return None

    def limit_power(self, target: str, watts: float, undo: ExitStack) -> None:
        """Hold each device to a power, and give `undo` what puts the earlier limit back; Unsupported otherwise."""
        raise Unsupported(f"Paceline does not know how to set the power limit of a {self.noun}; leave power_limit out")

    def limit_clock(self, target: str, megahertz: float, undo: ExitStack) -> None:
        """The same for the clock of its cores."""
        raise Unsupported(f"Paceline does not know how to set the clock of a {self.noun}; leave clock_limit out")

    def conditions(self, target: str) -> list[DeviceConditions]:
        """Clocks, temperature, throttling and processes now."""
        return []

    def watcher(self, target: str) -> Callable[[], Sequence[Mapping[str, float]]]:
        """What reads each of the devices again and again: by the names in `core.watch.KINDS`."""
        return lambda: [self.levels(one) for one in self.conditions(target)]

    def levels(self, now: DeviceConditions) -> dict[str, float]:
        """The readings that a look at the conditions gives."""
        reasons = now.throttle_reasons
        levels = {
            "temperature": now.temperature_celsius,
            "power": now.power_watts,
            "sm_clock": now.sm_clock_mhz,
            "memory_clock": now.memory_clock_mhz,
            "throttled": None if reasons is None else not set(self.slowdowns).isdisjoint(reasons),
            "power_capped": None if reasons is None else self.power_cap in reasons,
        }
        return {name: float(value) for name, value in levels.items() if value is not None}

    def use(self, target: str) -> list[DeviceUse]:
        """How busy the devices are now; asked every now and then while a server is under load."""
        return []

    def link(self, target: str) -> tuple[int, int] | None:
        """Generation and width of the PCIe link between host and device at its best; an idle link slows down."""
        gpu = next((gpu for gpu in self.describe().gpus if f"{self.name}:{gpu.cuda_index}" == target), Gpu())
        generation, width = gpu.pcie_generation_max, gpu.pcie_width_max
        return (generation, width) if generation and width else None

    def datasheet(self, device_name: str) -> Datasheet | None:
        """The vendor's figures for the device of this name; None for one that is not known."""
        return None

    def collective_library(self) -> str:
        """The library behind the collective backend, with its version."""
        import torch

        return f"{self.collective_backend} of torch {torch.__version__}"

    def can_access_peer(self, source: int, target: int) -> bool:
        """Whether one device reads another's memory without the host."""
        return False

    def showing(self, index: str) -> dict[str, str]:
        """The environment in which a process sees the device of this number, of those seen here, alone."""
        shown = [word.strip() for word in os.environ.get(self.visible_variable, "").split(",") if word.strip()]
        chosen = shown[int(index)] if int(index) < len(shown) else index
        return {self.visible_variable: chosen} if self.visible_variable else {}

    def hidden(self) -> dict[str, str]:
        """The environment in which a process sees no device of this kind."""
        return {self.visible_variable: ""} if self.visible_variable else {}


class Device(ABC):
    """Where steps run: one opened device."""

    def __init__(self, kind: DeviceKind, name: str) -> None:
        self.kind = kind
        self.name = name

    @abstractmethod
    def torch(self) -> torch.device:
        """The device as torch names it."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work that was issued has ended."""

    @abstractmethod
    def format(self, precision: str) -> FormatSupport:
        """How it computes in a number format."""

    def rest(self, seconds: float) -> None:
        """Leave it idle for so long, after all work has ended."""
        self.synchronize()
        time.sleep(seconds)

    def clock(self) -> float:
        """Seconds on the clock that steps are timed by where the host times them."""
        return monotonic()

    def seconds_of(self, block: Step) -> float:
        """How long the device takes for a block by itself."""
        self.synchronize()
        begun = self.clock()
        block()
        self.synchronize()
        return self.clock() - begun

    def timeline(self, in_flight: int) -> Timeline:
        """How steps are timed here; with one step in flight each is waited for."""
        if in_flight <= 1:
            return HostTimeline(self.clock, self.synchronize)
        return EventTimeline(self.event, in_flight, self.clock)

    def event(self) -> TimelineEvent:
        """A new mark for the device's stream, with its time."""
        raise self._lacks("events")

    def stream(self) -> Any:
        """A new queue of work next to the current one."""
        raise self._lacks("streams")

    def current_stream(self) -> Any:
        """The queue that work is issued to now."""
        raise self._lacks("streams")

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        """Issue work to another queue."""
        raise self._lacks("streams")

    def capture(self, step: Step) -> Step:
        """The step as one graph; its inputs and outputs stay where they are in memory."""
        raise self._lacks("graphs")

    def recording(self) -> AbstractContextManager[Callable[[Step], Step]]:
        """Gives a function that records work as a graph; the graphs share memory, and a call replays one to its end."""
        raise self._lacks("graphs")

    def spin(self, cycles: int) -> Step:
        """Work that keeps the device busy for about so many cycles and touches no memory."""
        raise self._lacks("a kernel that only spins")

    def build_kernel(self, source: str, name: str) -> Callable[..., object]:
        """A kernel from source in the vendor's C++."""
        raise self._lacks("a compiler of kernels")

    def empty_kernel(self, name: str) -> str:
        """An empty kernel of this name in the form that `cuModuleLoadData` takes."""
        raise self._lacks("kernels to launch through a driver")

    def prefer_library(self, name: str) -> None:
        """Let torch compute products by this library of the vendor's from now on."""
        raise self._lacks(f"a choice of libraries, {name} among them")

    def tuned_product(self, a: Tensor, b: Tensor, out: Tensor, *, tf32: bool) -> tuple[Step, str]:
        """A product by the fastest algorithm that the vendor's library has for it, once tried, and what that is."""
        raise self._lacks("a library that tries several algorithms")

    def free_memory(self) -> int:
        """Bytes of its own memory that are free now."""
        raise self._lacks("memory of its own")

    def cache_size(self) -> int:
        """Bytes of the cache before its memory."""
        raise self._lacks("a cache that is known")

    def release_memory(self) -> None:
        """Give back memory that is kept for later allocations."""
        return

    def reset_peak_memory(self) -> None:
        """Forget the peak so far."""
        return

    def peak_memory(self) -> tuple[int, int] | None:
        """Bytes allocated and bytes reserved at the peak, where the device has memory of its own."""
        return None

    def profiler_activities(self) -> list[Any]:
        """What torch's profiler must watch to see work on this device."""
        from torch.profiler import ProfilerActivity

        return [ProfilerActivity.CPU]

    def _lacks(self, what: str) -> Unsupported:
        return Unsupported(f"{self.name} does not have {what}: this needs another device kind than '{self.kind.name}'")


DEVICE_KINDS: Kind[type[DeviceKind]] = Kind("device kind", "devices", DeviceKind)


def named(target: str, devices: list[T]) -> list[T]:
    """Which of these devices `KIND:N` or `KIND:*` names."""
    _, index = split_target(target)
    return devices if index == ALL else devices[int(index or 0) :][:1]


def visible(uuids: Sequence[str], setting: str | None) -> list[Entry]:
    """Which devices the visible variable shows, in its order; all after the first unknown one are hidden."""
    if setting is None:
        return list(range(len(uuids)))
    entries: list[Entry] = []
    for word in (word.strip() for word in setting.split(",")):
        if word.isdecimal() and int(word) < len(uuids):
            entries.append(int(word))
        elif word.startswith("GPU-"):
            matching = [index for index, uuid in enumerate(uuids) if uuid.startswith(word)]
            if len(matching) != 1:
                break
            entries.append(matching[0])
        elif word.startswith("MIG-"):
            entries.append(word)
        else:
            break
    return entries if len(set(entries)) == len(entries) else []  # none is shown when one is named twice


@dataclass(frozen=True)
class Datasheet:
    """One device's figures: TFLOP/s (TOP/s for int8) and GB/s. None: no such unit, or not published."""

    pattern: str  # of the driver's name
    fp64: float | None
    fp64_tc: float | None  # with Tensor Cores
    fp32: float
    tf32: float | None
    fp16_plain: float | None  # without Tensor Cores
    fp16: float | None  # with Tensor Cores and fp32 accumulation
    bf16: float | None
    fp8: float | None
    int8: float | None
    memory: float  # bandwidth
    nvlink: float | None  # all links of one GPU in one direction, where every board of this name has them

    def rate(self, precision: str, *, tensor_cores: bool = True) -> float | None:
        """Operations per second in a precision, with Tensor Cores where the device has them for it, or without."""
        unit = number_format(precision)
        if not tensor_cores:
            tera = {"fp64": self.fp64, "fp32": self.fp32, "fp16": self.fp16_plain}.get(unit)
        elif unit == "fp64":
            tera = self.fp64_tc or self.fp64
        else:
            tera = getattr(self, unit) if unit in get_args(NumberFormat) else None
        return tera * 1e12 if tera else None

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second."""
        return self.memory * 1e9

    @property
    def link_bandwidth(self) -> float | None:
        """Bytes per second that one GPU sends to its neighbours, all its links together."""
        return self.nvlink * 1e9 if self.nvlink else None


# Bits per second and lane that are left for data after the line code, by generation of PCIe.
_LANE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130, 5: 32e9 * 128 / 130}
_LANE[6] = 64e9 * 242 / 256


def read_sheets(name: str) -> tuple[Datasheet, ...]:
    """The table of a kind, in its order; an empty cell is None."""
    sheets = []
    for row in shipped_rows("paceline.devices", name):
        pattern = row.pop("pattern")
        figures: dict[str, Any] = {unit: float(figure) if figure else None for unit, figure in row.items()}
        sheets.append(Datasheet(pattern, **figures))
    return tuple(sheets)


def sheet_of(device_name: str, sheets: Iterable[Datasheet]) -> Datasheet | None:
    """The first whose pattern is in the name."""
    return next((sheet for sheet in sheets if re.search(sheet.pattern, device_name)), None)


def pcie_bandwidth(generation: int | None, width: int | None) -> float | None:
    """Bytes per second in one direction over a PCIe link, before the headers of packets; None for an unknown kind."""
    lane = _LANE.get(generation or 0)
    return lane * width / 8 if lane and width else None
