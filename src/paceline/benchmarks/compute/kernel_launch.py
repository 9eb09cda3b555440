"""Launching an empty kernel: what every kernel pays before it computes anything.

The launches are issued by a loop in C that calls the driver itself. Neither Python nor a framework's dispatch is in
it; what the loop costs is measured too, with a function that does nothing in the driver's place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.metrics import time_metric
from paceline.benchmarks._micro.parameters import MicroParameters, TorchBenchmark
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Context
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, Unsupported
from paceline.core.metric import Metric
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

WALL_TIME = time_metric("wall_time", "per launch, by the host's clock, until the last of many launches has ended")
EVENT_TIME = time_metric("event_time", "per launch, by the device's events around many launches")
ISSUE_TIME = time_metric("issue_time", "per launch, what the host spends on issuing it")
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
    summary = "time per launch of an empty kernel: by events, by the clock, to issue, alone"
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
        clock = f"{driver}, host monotonic clock"
        nothing = "the same C loop over a function that does nothing, host monotonic clock"
        steps: list[tuple[Metric, Callable[[], list[float]], str, int]] = [
            (WALL_TIME, lambda: [launcher.on_host(many).ended], f"{clock}, stream synchronised", many),
            (EVENT_TIME, lambda: [launcher.on_device(many)], f"{driver}, device events around it", many),
            (ISSUE_TIME, lambda: [launcher.on_host(few).issued], f"{clock}, read when all are issued", few),
            (
                SINGLE_LATENCY,
                lambda: [launcher.on_host(1).ended for _ in range(SINGLE_LAUNCHES)],
                f"{clock}, stream synchronised after each",
                1,
            ),
            (LOOP_COST, lambda: [empty_loop.on_host(LOOP_CALLS).ended], nothing, LOOP_CALLS),
        ]
        with MicroSession(parameters, context, device) as session:
            times = [session.time_reported(step, metric, how, calls=calls).time for metric, step, how, calls in steps]
        share = times[-1].value / times[0].value
        facts = {"launches": many, "loop_share": f"{100 * share:.2g} % of wall_time is the loop itself"}
        return session.result(times, facts)


class HostSeconds(NamedTuple):
    """From before the first launch until the last is issued, and until it has ended."""

    issued: float
    ended: float


class EmptyLoop:
    """The loop around nothing; a launcher is the same loop around the driver."""

    def __init__(self) -> None:
        self._code = _library()
        self._handle = ctypes.c_void_p(self._code.open_empty_loop())

    def on_host(self, launches: int) -> HostSeconds:
        """Launch so often, timed by the host's clock."""
        issued, ended = ctypes.c_double(), ctypes.c_double()
        self._check(self._code.time_on_host(self._handle, launches, ctypes.byref(issued), ctypes.byref(ended)))
        return HostSeconds(issued.value, ended.value)

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

    def on_device(self, launches: int) -> float:
        """Seconds between an event before the first launch and one after the last."""
        seconds = ctypes.c_double()
        self._check(self._code.time_on_device(self._handle, launches, ctypes.byref(seconds)))
        return seconds.value


def _library() -> ctypes.CDLL:
    code = native.load(SOURCE)
    double = ctypes.POINTER(ctypes.c_double)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "open_empty_loop": (ctypes.c_void_p, []),
        "open_launcher": (ctypes.c_void_p, [ctypes.c_int, *[ctypes.c_char_p] * 3, ctypes.c_size_t]),
        "time_on_host": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_long, double, double]),
        "time_on_device": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_long, double]),
        "explain": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(code, name)
        function.restype, function.argtypes = result, arguments
    return code
