"""Launching an empty kernel: what every kernel pays before it computes anything.

The launches are issued by a loop in C that calls the driver itself. Neither Python nor a framework's dispatch is in
it; what the loop costs is measured too, with a function that does nothing in the driver's place.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark, time_metric
from paceline.benchmarks._micro.session import MicroSession, View
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, Unsupported
from paceline.core.record import Record, Result
from paceline.core.subject import Description, ShownCeiling
from paceline.devices import open_device
from paceline.measure import native

SOURCE = Path(__file__).with_suffix(".c")
KERNEL = "paceline_empty"
# A device's queue takes about a thousand launches; issuing more would measure how fast it drains.
MOST_IN_QUEUE = 256
SINGLE_LAUNCHES = 100  # in each step that times them one by one
LOOP_CALLS = 1_000_000  # of nothing, which are over in milliseconds
MESSAGE_BYTES = 500
SAME_PACE = 1.1  # a device this little slower than the host has nothing queued

WALL_TIME = time_metric("wall_time", "per launch, by the host's clock, until the last of many launches has ended")
EVENT_TIME = time_metric("event_time", "per launch, by the device's events around the same launches")
ISSUE_TIME = time_metric(
    "issue_time", "per launch, the pace of the host: what issuing the first of the same ones takes"
)
SINGLE_LATENCY = time_metric("single_launch_latency", "one launch until the host knows that it has ended")
LOOP_COST = time_metric("loop_cost", "per launch, the same loop with nothing launched: the part that is ours")


class KernelLaunchParameters(MicroParameters):
    """How many launches make a sample."""

    max_steps: int = Field(default=20_000, ge=1)
    """Take at most this many samples of each time"""
    launches: int = Field(default=1000, ge=1, le=1_000_000)
    """Launches in each sample"""


class KernelLaunch(TorchBenchmark[KernelLaunchParameters]):
    """An empty kernel, launched again and again."""

    name = "kernel-launch"
    summary = "time per launch of an empty kernel: by clock and events around the same launches, to issue, alone"
    category = "compute"
    metrics = (WALL_TIME, EVENT_TIME, ISSUE_TIME, SINGLE_LATENCY, LOOP_COST)

    @classmethod
    def title(cls, parameters: KernelLaunchParameters) -> str:
        return f"{parameters.launches} launches"

    @classmethod
    def describe(cls, record: Record, parameters: KernelLaunchParameters, environment: Environment) -> Description:
        keys = {"event_time": ("event_time", _superbench.MS), "wall_time": ("wall_time", _superbench.MS)}
        shown = {
            "issue_time": "issuing a kernel",
            "event_time": "kernel after kernel",
            "single_launch_latency": "one kernel, awaited",
        }
        return Description(
            ceilings=tuple(ShownCeiling(kind="launch", name=name, metric=key) for key, name in shown.items()),
            aliases=_superbench.alias(record, "kernel-launch", _superbench.means(record, keys)),
        )

    def measure(self, parameters: KernelLaunchParameters, context: Context) -> Result:
        device = open_device(context.target)
        if not device.kind.launches_kernels:
            is_gpu = device.kind.is_accelerator
            why = "launches go through CUDA's driver" if is_gpu else "a CPU has no kernels to launch"
            raise Unsupported(f"kernel-launch needs an NVIDIA GPU: {why}; use --target cuda:0")
        device.synchronize()  # the framework has opened the device's context, which the launches share
        launcher, empty_loop = Launcher(device.torch().index or 0, device.empty_kernel(KERNEL)), EmptyLoop()
        many = parameters.launches
        few = min(many, MOST_IN_QUEUE)
        driver = "C loop over the driver's cuLaunchKernel"
        views = {
            WALL_TIME: View(f"{driver}, host monotonic clock around the events", many),
            EVENT_TIME: View(f"the same launches, device events around all {many}", many),
            ISSUE_TIME: View(f"the same launches, host monotonic clock, the first {few} issued", few),
        }
        alone = f"{driver}, host monotonic clock, stream synchronised after each"
        nothing = "the same C loop over a function that does nothing, host monotonic clock"
        with MicroSession(parameters, context, device) as session:
            together = session.time_views(lambda: launcher.launch(many, few), views)
            points = [
                *together,
                session.time_reported(launcher.launch_alone, SINGLE_LATENCY, alone),
                session.time_reported(
                    lambda: [empty_loop.launch(LOOP_CALLS, LOOP_CALLS).wall], LOOP_COST, nothing, calls=LOOP_CALLS
                ),
            ]
        wall, event, issue, _, loop = (point.time for point in points)
        facts = {
            "launches": many,
            "paced_by": paced_by(event.value, issue.value),
            "loop_share": f"{100 * loop.value / wall.value:.2g} % of wall_time is the loop itself",
        }
        return session.result([point.time for point in points], facts)


def paced_by(event: float, issue: float) -> str:
    """Who sets the time of a launch in a row: the device, or the host that issues no faster."""
    if event <= SAME_PACE * issue:
        return "the host: the device waited for launches, and event_time and wall_time are the pace of the host"
    return "the device: the host issues faster than the device starts kernels"


class Seconds(NamedTuple):
    """Three views of the same launches, each in seconds for all of them."""

    wall: float
    on_device: float
    issued: float  # of the first few


class EmptyLoop:
    """The loop around nothing; a launcher is the same loop around the driver."""

    def __init__(self) -> None:
        self._code = _library()
        self._handle = ctypes.c_void_p(self._code.open_empty_loop())

    def launch(self, launches: int, few: int) -> Seconds:
        """Launch so often, and take the time of issuing the first few."""
        issued, on_device, wall = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
        out = (ctypes.byref(one) for one in (issued, on_device, wall))
        self._check(self._code.time_launches(self._handle, launches, few, *out))
        return Seconds(wall.value, on_device.value, issued.value)

    def launch_alone(self) -> list[float]:
        """Seconds of each of some launches, every one waited for."""
        wall = ctypes.c_double()
        times = []
        for _ in range(SINGLE_LAUNCHES):
            self._check(self._code.time_one(self._handle, ctypes.byref(wall)))
            times.append(wall.value)
        return times

    def _check(self, status: int) -> None:
        if status:
            words = self._code.explain(self._handle, status).decode(errors="replace")
            raise CaseError(f"launching an empty kernel failed: {words} (CUDA error {status})")


class Launcher(EmptyLoop):
    """The loop around the driver's launches of an empty kernel on one device."""

    def __init__(self, ordinal: int, ptx: str) -> None:
        self._code = _library()
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        handle = self._code.open_launcher(ordinal, ptx.encode(), KERNEL.encode(), message, MESSAGE_BYTES)
        if not handle:
            why = message.value.decode(errors="replace")
            raise Unsupported(f"the CUDA driver cannot launch an empty kernel: {why}; see 'paceline doctor'")
        self._handle = ctypes.c_void_p(handle)


def _library() -> ctypes.CDLL:
    code = native.load(SOURCE)
    double = ctypes.POINTER(ctypes.c_double)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "open_empty_loop": (ctypes.c_void_p, []),
        "open_launcher": (ctypes.c_void_p, [ctypes.c_int, *[ctypes.c_char_p] * 3, ctypes.c_size_t]),
        "time_launches": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, double, double, double]),
        "time_one": (ctypes.c_int, [ctypes.c_void_p, double]),
        "explain": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(code, name)
        function.restype, function.argtypes = result, arguments
    return code
