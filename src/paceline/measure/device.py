"""Devices as the measuring code sees them: a timeline, a way to wait, and peak memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from paceline.core.errors import Unsupported
from paceline.measure.timeline import Event, EventTimeline, HostTimeline, Timeline

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """Where steps run."""

    name: str
    kind: str  # cpu or cuda
    capability: tuple[int, int]  # of a GPU; (0, 0) for a CPU

    def timeline(self, in_flight: int) -> Timeline:
        """How steps are timed here; with one step in flight each is waited for."""

    def synchronize(self) -> None:
        """Wait until all work that was issued has ended."""

    def reset_peak_memory(self) -> None:
        """Forget the peak so far."""

    def peak_memory(self) -> tuple[int, int] | None:
        """Bytes allocated and bytes reserved at the peak, where the device has memory of its own."""

    def torch(self) -> torch.device:
        """The device as torch names it."""


class CpuDevice:
    """The host's own processors."""

    kind = "cpu"
    capability = (0, 0)

    def __init__(self) -> None:
        self.name = "cpu"

    def timeline(self, in_flight: int) -> Timeline:
        return HostTimeline()

    def synchronize(self) -> None:
        """Work on the CPU has ended when the call returns."""

    def reset_peak_memory(self) -> None:
        """The host's peak is taken elsewhere."""

    def peak_memory(self) -> tuple[int, int] | None:
        return None

    def torch(self) -> torch.device:
        import torch

        return torch.device("cpu")


class CudaDevice:
    """One NVIDIA GPU."""

    kind = "cuda"

    def __init__(self, target: str) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Unsupported(
                f"target '{target}' needs a GPU, but torch {torch.__version__} sees none; use --target cpu"
            )
        self._device = torch.device(target)
        count = torch.cuda.device_count()
        if (self._device.index or 0) >= count:
            raise Unsupported(f"target '{target}' does not exist: this machine has {count} GPU(s), from cuda:0")
        torch.cuda.set_device(self._device)
        self.name = torch.cuda.get_device_name(self._device)
        self.capability = torch.cuda.get_device_capability(self._device)

    def timeline(self, in_flight: int) -> Timeline:
        import torch

        if in_flight <= 1:
            return HostTimeline(synchronize=self.synchronize)
        return EventTimeline(lambda: cast(Event, torch.cuda.Event(enable_timing=True)), in_flight)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def reset_peak_memory(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_memory(self) -> tuple[int, int] | None:
        import torch

        return torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)

    def torch(self) -> torch.device:
        return self._device


def open_device(target: str) -> Device:
    """The device that a target names."""
    return CpuDevice() if target == "cpu" else CudaDevice(target)
