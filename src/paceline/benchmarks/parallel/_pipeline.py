"""The stages of this rank in a pipeline, and how busy a schedule keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from paceline.benchmarks.parallel._parameters import ScheduleKind
from paceline.benchmarks.parallel._stage import Stage
from paceline.devices import Device
from paceline.devices.timeline import monotonic


def stages_of_rank(kind: ScheduleKind, ranks: int, rank: int) -> list[int]:
    """Which stages a pipeline rank has: every so-many-th one, or one from each end where the schedule is a V."""
    count = ranks * kind.stages_per_rank
    if kind.is_v:
        return [rank, count - 1 - rank]
    return list(range(rank, count, ranks))


class Stopwatch:
    """While it runs, adds up the time of what is entered: by device events on a GPU, otherwise by the host's clock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._is_running = False
        self._spans: dict[str, list[tuple[Any, Any]]] = {}

    def start(self) -> None:
        """Clear the earlier times, and begin."""
        self._spans = {}
        self._is_running = True

    def stop(self) -> dict[str, float]:
        """Seconds by name."""
        self._is_running = False
        self._device.synchronize()
        return {name: sum(self._seconds(*span) for span in spans) for name, spans in self._spans.items()}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what happens inside, if the watch runs."""
        if not self._is_running:
            yield
            return
        begun = self._now()
        yield
        self._spans.setdefault(name, []).append((begun, self._now()))

    def _now(self) -> Any:
        if not self._device.kind.is_accelerator:
            return monotonic()
        event = self._device.event()
        event.record()
        return event

    def _seconds(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended) * 1e-3 if self._device.kind.is_accelerator else ended - begun)


class WatchedStage(PipelineStage):
    """A stage whose computing is timed by a stopwatch; receiving from its neighbours is not part of that."""

    watch: Stopwatch

    def forward_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        with self.watch.span("busy"):
            return super().forward_one_chunk(*arguments, **more)

    def backward_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        with self.watch.span("busy"):
            return super().backward_one_chunk(*arguments, **more)

    def backward_weight_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        with self.watch.span("busy"):
            return super().backward_weight_one_chunk(*arguments, **more)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        # Where a schedule is a V, a stage's neighbour may be on its own rank; torch 2.11 then sends to itself here,
        # which gloo refuses. Batches go from one to the other without being sent in any version.
        return [one for one in super()._get_init_p2p_neighbors_ops() if one.group_peer != self.group_rank]


class Pipeline:
    """All micro-batches of a step through all stages, in the order of a schedule."""

    def __init__(
        self,
        stages: dict[int, Stage],
        kind: ScheduleKind,
        *,
        ranks: int,
        micro_batches: int,
        group: Any,
        device: Device,
        scaled: Callable[[Tensor], Tensor],
    ) -> None:
        self.watch = Stopwatch(device)
        watched = []
        for index, stage in stages.items():
            one = WatchedStage(stage, index, ranks * kind.stages_per_rank, device.torch(), group=group)
            one.watch = self.watch
            watched.append(one)
        schedule = get_schedule_class(kind.torch_name)
        self._schedule: Any = schedule(
            watched if issubclass(schedule, PipelineScheduleMulti) else watched[0],
            n_microbatches=micro_batches,
            loss_fn=lambda loss, _labels: scaled(loss),
            scale_grads=False,  # the loss is divided by the number of micro-batches already, which costs nothing
        )
        self._first = any(stage.first for stage in stages.values())

    def run(self, inputs: tuple[Tensor, ...], head: dict[str, Tensor]) -> list[Tensor]:
        """Forward and backward of a whole batch; the scaled losses of its micro-batches where the last stage is."""
        losses: list[Tensor] = []
        entry = inputs if self._first else ()
        with self.watch.span("schedule"):
            self._schedule.step(*entry, target=head["labels"], losses=losses, return_outputs=False, **head)
        return losses


def ideal_bubble(name: str, ranks: int, micro_batches: int, stages_per_rank: int) -> tuple[float, str] | None:
    """The share of its time that a schedule leaves a rank idle if every stage takes equally long; with the formula."""
    if name in ("gpipe", "1f1b"):
        return (ranks - 1) / (micro_batches + ranks - 1), "(p - 1) / (m + p - 1)"
    if name in ("interleaved", "looped-bfs"):
        each, work = stages_per_rank, stages_per_rank * micro_batches
        if micro_batches >= ranks:
            return (ranks - 1) / (work + ranks - 1), f"(p - 1) / ({each} m + p - 1)"
        # The first micro-batch is not back at a rank when this has done its part of all others.
        return 1 - work / (each * ranks + micro_batches - 1), f"1 - {each} m / ({each} p + m - 1), as m < p"
    return None
