"""What bounds a measurement: a device's peak rates, host memory and its peak, and which memory ran out."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import PacelineError
from paceline.core.probe import attempt, parse_size, read_table
from paceline.core.subject import DEVICE_MEMORY, MAIN_MEMORY, number_format
from paceline.devices import accelerators, datasheet

if TYPE_CHECKING:
    from paceline.core.profile import Ceiling, Profile


@dataclass(frozen=True)
class Peak:
    """The most a device can do of something, and where that figure is from."""

    rate: float  # per second
    source: str


def peak_flops(device_name: str, precision: str, *, tensor_cores: bool = True) -> Peak | None:
    """The datasheet peak of this device in this precision, if it is known."""
    sheet = datasheet(device_name)
    rate = sheet.rate(precision, tensor_cores=tensor_cores) if sheet else None
    units = "" if tensor_cores else " without Tensor Cores"
    return Peak(rate, f"datasheet, dense {precision}{units}, {device_name}") if rate else None


def measured_peak_flops(
    device_name: str, precision: str, profile: Profile | None = None, *, sharing: int = 1
) -> Peak | None:
    """The fastest matrix product that this machine's profile has for the device in this precision.

    `sharing` processes that compute on one CPU at a time have a part of it each.
    """
    profile = profile or _this_profile()
    ceiling = profile.ceiling("compute", number_format(precision), device_name=device_name) if profile else None
    if profile is None or ceiling is None:
        return None
    part = f", divided by the {sharing} ranks on this machine" if sharing > 1 else ""
    what = f"matrix product in {ceiling.name}"
    return Peak(ceiling.value / sharing, f"{_measured_by(profile, ceiling, what)}{part}")


def peak_memory_bandwidth(device_name: str) -> Peak | None:
    """The datasheet bandwidth of this device's memory, if it is known."""
    sheet = datasheet(device_name)
    return Peak(sheet.memory_bandwidth, f"datasheet, memory bandwidth, {device_name}") if sheet else None


def memory_peak(device_name: str) -> Peak | None:
    """The bandwidth of the device's memory: the datasheet's, otherwise what this machine's profile has for it."""
    peak, profile = peak_memory_bandwidth(device_name), _this_profile()
    if peak or profile is None:
        return peak
    ceilings = [profile.ceiling("memory", name, device_name=device_name) for name in (DEVICE_MEMORY, MAIN_MEMORY)]
    best = next((one for one in ceilings if one), None)
    return Peak(best.value, _measured_by(profile, best, best.name)) if best else None


def _this_profile() -> Profile | None:
    from paceline.machine.profile import load_profile

    # `paceline machine` says what is wrong with a profile; a number without MFU is still a number.
    with suppress(PacelineError):
        return load_profile()
    return None


def _measured_by(profile: Profile, ceiling: Ceiling, what: str) -> str:
    warnings = ", ".join(dict.fromkeys(warning.kind for warning in ceiling.warnings))
    when = f"measured by paceline machine --measure on {profile.measured_at:%Y-%m-%d}, run {profile.run_id}"
    return f"{when}, {what}{f' (warnings: {warnings})' if warnings else ''}"


@contextmanager
def host_limit(part: float) -> Iterator[None]:
    """Within, this process gets no more than this part of the memory that is free now, on top of what it has."""
    import psutil

    free = int(psutil.virtual_memory().available)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = _status("VmData") or 0  # private writable memory, which is what the limit counts
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([int(used + part * free), *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def exhausted(error: BaseException) -> Literal["host", "device"] | None:
    """Which memory did not suffice, if that is what the exception says."""
    if type(error).__name__ == "OutOfMemoryError":
        return "device"
    text = str(error)
    of_device = any(name in text.casefold() for kind in accelerators() for name in kind.out_of_memory_words)
    if of_device and ("out of memory" in text or "ALLOC_FAILED" in text):
        return "device"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    # The first is torch's, of more than can be counted.
    phrases = ("Storage size calculation overflowed", "bad_alloc", "can't allocate memory", "not enough memory")
    return "host" if any(phrase in text for phrase in phrases) else None


PROC = Path("/proc/self")


def _status(name: str, proc: Path = PROC) -> int | None:
    """Bytes of a line of the kernel's status of a process; None where it has no such line."""
    return attempt(lambda: parse_size(read_table(proc / "status")[name]))


class HostPeak:
    """The largest resident memory of this process since `start()`; what it started is not counted.

    The kernel's high-water mark is set back at the start. Where that is not permitted, the mark of the process's
    whole life is read; `exact` says whether the peak is known to lie in the region.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._was_reset = False
        self._life_before = 0
        self.exact = False

    def start(self) -> None:
        """Begin the region; may be called again for another."""
        self._life_before = _life_peak()
        before = _status("VmHWM", self._proc)
        try:
            (self._proc / "clear_refs").write_text("5")
            after = _status("VmHWM", self._proc)
            self._was_reset = before is not None and after is not None and after <= before
        except OSError:
            self._was_reset = False
        self.exact = self._was_reset

    def read(self) -> int:
        """Peak in bytes since the start."""
        mark = _status("VmHWM", self._proc)
        if self._was_reset and mark is not None:
            return mark
        peak = _life_peak()
        self.exact = peak > self._life_before  # a mark that rose did so in the region
        return peak


def _life_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
