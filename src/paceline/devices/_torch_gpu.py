"""What torch offers alike on NVIDIA's and AMD's GPUs: its HIP build answers to the names of CUDA."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from paceline.core.errors import Unsupported
from paceline.core.probe import attempt
from paceline.devices.base import Described, Device, DeviceConditions, DeviceKind, DeviceUse, EnergyMeter, Step
from paceline.devices.timeline import TimelineEvent

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS = 3  # libraries allocate their workspaces in the first steps, which a graph must not record


class ManagementLibrary(ABC):
    """A vendor's management library; what the driver, the card or the binding cannot answer is None."""

    binding: ClassVar[str]  # the module to import
    start: ClassVar[str]  # its function to call first
    energy_counter: ClassVar[str]  # for the record

    def __init__(self) -> None:
        self.module = attempt(self._open)  # None, without the binding, a driver or permission: that answers nothing

    def _open(self) -> ModuleType:
        module = importlib.import_module(self.binding)
        getattr(module, self.start)()
        return module

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer, or None for whatever reason there is none."""
        try:
            return getattr(self.module, function)(*arguments)
        except Exception:  # the library's own errors, and those of a binding older or newer than it
            return None

    @abstractmethod
    def handles(self, target: str) -> list[Any]:
        """What `KIND:N` or `KIND:*` names in this process; empty where that cannot be determined."""

    @abstractmethod
    def describe(self) -> Described:
        """The driver and all GPUs."""

    @abstractmethod
    def conditions(self, handle: Any) -> DeviceConditions:
        """One GPU now."""

    @abstractmethod
    def use(self, handle: Any) -> DeviceUse:
        """How busy one GPU is now."""

    @abstractmethod
    def joules(self, handle: Any) -> float | None:
        """The energy counter of one GPU."""


class TorchGpuKind(DeviceKind):
    """A kind whose devices torch calls `cuda`, and a management library describes."""

    _opened: tuple[int, ManagementLibrary] | None = None
    supports_graphs = True
    collective_backend = "nccl"
    needs_triton = True
    prefers_channels_last = True
    collective_name: ClassVar[str] = "NCCL"

    @staticmethod
    @abstractmethod
    def open_library() -> ManagementLibrary:
        """The library, ready to be asked."""

    def library(self) -> ManagementLibrary:
        """The library, opened once per process: opening it again costs more than all questions."""
        if self._opened is None or self._opened[0] != os.getpid():  # a forked child must open its own
            self._opened = (os.getpid(), self.open_library())
        return self._opened[1]

    def meter(self, target: str) -> EnergyMeter | None:
        library = self.library()
        handles = library.handles(target)
        # A card may not count, and a part of one (MIG) has no counter of its own.
        if not handles or any(library.joules(handle) is None for handle in handles):
            return None
        return GpuEnergy(
            f"{library.energy_counter} of {target}",
            lambda: sum(library.joules(handle) or 0.0 for handle in handles),
        )

    def conditions(self, target: str) -> list[DeviceConditions]:
        library = self.library()
        return [library.conditions(handle) for handle in library.handles(target)]

    def use(self, target: str) -> list[DeviceUse]:
        library = self.library()
        return [library.use(handle) for handle in library.handles(target)]

    @staticmethod
    def torch_module() -> Any:
        """torch's module of GPUs, for what has no name of its own here."""
        import torch

        return torch.cuda

    def collective_library(self) -> str:
        import torch

        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return f"{self.collective_name} {'.'.join(map(str, version))}, torch {torch.__version__}"

    def can_access_peer(self, source: int, target: int) -> bool:
        import torch

        return bool(torch.cuda.can_device_access_peer(source, target))


@dataclass(frozen=True)
class _Replay:
    graph: Any
    step: Step  # the graph works in memory that this one holds, so it has to live as long

    def __call__(self) -> None:
        self.graph.replay()


class GpuEnergy:
    """The counter of the energy of whole GPUs, other users of theirs included."""

    late = False  # the vendors' counters have 64 bits and do not go round

    def __init__(self, source: str, total: Callable[[], float]) -> None:
        self.source = source
        self._total = total  # joules
        self._start = total()
        self._last = 0.0

    def read(self) -> float:
        """Joules since the meter was opened."""
        self._last = max(self._last, self._total() - self._start)
        return self._last


class TorchGpu(Device):
    """One GPU that torch computes on."""

    def __init__(self, kind: DeviceKind, index: int) -> None:
        import torch

        target = f"{kind.name}:{index}"
        if not torch.cuda.is_available():
            raise Unsupported(
                f"target '{target}' needs a GPU, but torch {torch.__version__} sees none; use --target cpu"
            )
        self._cuda: Any = torch.cuda
        self._device = torch.device("cuda", index)
        count = torch.cuda.device_count()
        if index >= count:
            raise Unsupported(f"target '{target}' does not exist: this machine has {count} GPU(s), from {kind.name}:0")
        torch.cuda.set_device(self._device)
        super().__init__(kind, torch.cuda.get_device_name(self._device))
        self.capability = torch.cuda.get_device_capability(self._device)

    def torch(self) -> torch.device:
        return self._device

    def properties(self) -> Any:
        """What torch reports of the device."""
        return self._cuda.get_device_properties(self._device)

    def synchronize(self) -> None:
        self._cuda.synchronize(self._device)

    def event(self) -> TimelineEvent:
        return cast(TimelineEvent, self._cuda.Event(enable_timing=True))

    def stream(self) -> Any:
        return self._cuda.Stream(self._device)

    def current_stream(self) -> Any:
        return self._cuda.current_stream(self._device)

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._cuda.stream(stream)
        return context

    def capture(self, step: Step) -> Step:
        side = self.stream()
        side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                step()
        self._cuda.current_stream().wait_stream(side)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            step()
        return _Replay(graph, step)

    @contextmanager
    def recording(self) -> Iterator[Callable[[Step], Step]]:
        stream = self.stream()
        with self._cuda.stream(stream):
            pool = self._cuda.graph_pool_handle()

            def record(work: Step) -> Step:
                for _ in range(WARM_UP_STEPS):
                    work()
                graph = self._cuda.CUDAGraph()
                # Only the thread that records must leave the device alone meanwhile: another one may be at work.
                with self._cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    work()
                return partial(self._replay, graph, stream)

            yield record

    def _replay(self, graph: Any, stream: Any) -> None:
        import torch

        # Memory of the random numbers was made in inference mode, and a replay may write to it.
        with torch.inference_mode(), self._cuda.stream(stream):
            graph.replay()
            stream.synchronize()  # lets other threads run

    def spin(self, cycles: int) -> Step:
        return lambda: self._cuda._sleep(cycles)

    def build_kernel(self, source: str, name: str) -> Callable[..., object]:
        import torch

        build: Any = getattr(torch.cuda, "_compile_kernel", None)
        if build is None:
            raise Unsupported(f"torch {torch.__version__} builds no kernel at run time: use 2.9 or newer")
        kernel: Callable[..., object] = build(source, name)
        return kernel

    def prefer_library(self, name: str) -> None:
        import torch

        torch.backends.cuda.preferred_blas_library(name)

    def free_memory(self) -> int:
        return int(self._cuda.mem_get_info(self._device)[0])

    def cache_size(self) -> int:
        return int(self.properties().L2_cache_size)

    def release_memory(self) -> None:
        self._cuda.empty_cache()

    def reset_peak_memory(self) -> None:
        self._cuda.reset_peak_memory_stats(self._device)

    def peak_memory(self) -> tuple[int, int] | None:
        return self._cuda.max_memory_allocated(self._device), self._cuda.max_memory_reserved(self._device)

    def profiler_activities(self) -> list[Any]:
        from torch.profiler import ProfilerActivity

        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
