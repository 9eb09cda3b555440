"""What a server uses while it is under load: processor, memory, GPU, energy; and what else went on by then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from paceline.benchmarks.serving import metrics
from paceline.core.record import Doubt, Measurement
from paceline.devices import kind_of
from paceline.devices.base import EnergyMeter
from paceline.machine import conditions
from paceline.machine.conditions import Conditions

LOOK_SECONDS = 0.25


@dataclass
class Use:
    """What was used, filled when the watch ends."""

    seconds: float = 0.0
    cpu_seconds: float | None = None  # None for a server that is not ours to look at
    memory: int = 0
    gpu_shares: list[float] = field(default_factory=list)
    gpu_memory: int = 0
    joules: float | None = None
    source: str = ""
    before: Conditions | None = None  # of the whole machine
    after: Conditions | None = None

    def measurements(self, load_seconds: float) -> list[Measurement]:
        """The figures that are known."""
        found = []
        if self.cpu_seconds is not None:
            # Over the load itself: what was watched before its first request and after its last answer was idle.
            found.append(Measurement.of_value(metrics.CPU, 100.0 * self.cpu_seconds / load_seconds))
            found.append(Measurement.of_value(metrics.HOST_MEMORY, float(self.memory)))
        if self.gpu_shares:
            found.append(Measurement.of_samples(metrics.GPU, self.gpu_shares, statistic="mean"))
            found.append(Measurement.of_value(metrics.DEVICE_MEMORY, float(self.gpu_memory)))
        return found

    def doubts(self) -> list[Doubt]:
        """What else went on; a server that is not ours may be what keeps this machine busy, and that is no doubt."""
        if self.cpu_seconds is None or self.before is None or self.after is None:
            return []
        return conditions.doubts(self.before, self.after)

    def conditions(self) -> dict[str, Any]:
        """The machine before and after, for the record."""
        looks = {"before": self.before, "after": self.after}
        return {name: look.model_dump(mode="json") for name, look in looks.items() if look is not None}


@contextmanager
def watched(processes: Callable[[], list[int]], target: str) -> Iterator[Use]:
    """Look at the server's processes and its device until the end of the block."""
    use = Use()
    meter = kind_of(target).meter(target)
    before = meter.read() if meter is not None else 0.0
    looking = _Looking(processes, target, use)
    use.before = conditions.observe(target)
    looking.start()
    try:
        yield use
    finally:
        looking.stop()
        use.after = conditions.observe(target)
        if meter is not None:
            use.joules, use.source = _joules(meter, before), meter.source


def _joules(meter: EnergyMeter, before: float) -> float | None:
    used = meter.read() - before
    return None if meter.late else used


class _Looking:
    """Looks every now and then, on a thread of its own: processes come and go."""

    def __init__(self, processes: Callable[[], list[int]], target: str, use: Use) -> None:
        self._processes = processes
        self._use = use
        self._spent: dict[int, tuple[float, float]] = {}  # process: first and last seen processor time
        self._target = target
        self._kind = kind_of(target)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = time.monotonic()

    def start(self) -> None:
        self._began = time.monotonic()
        self._look()
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._look()
        self._use.seconds = time.monotonic() - self._began
        if self._spent:
            self._use.cpu_seconds = sum(last - first for first, last in self._spent.values())

    def _run(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        resident = 0
        for pid in self._processes():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            spent = times.user + times.system
            first, _ = self._spent.get(pid, (spent, spent))
            self._spent[pid] = (first, spent)
        self._use.memory = max(self._use.memory, resident)
        devices = self._kind.use(self._target)
        if not devices:
            return
        busy = [one.busy_percent for one in devices if one.busy_percent is not None]
        if len(busy) == len(devices):
            self._use.gpu_shares.append(sum(busy) / len(busy))
        self._use.gpu_memory = max(self._use.gpu_memory, sum(one.memory_used or 0 for one in devices))
