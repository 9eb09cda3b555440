"""CUDA graphs: a step recorded once and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WARM_UP_STEPS = 3  # libraries allocate their workspaces in the first steps, which a graph must not record


@dataclass(frozen=True)
class _Replay:
    graph: Any
    step: Callable[[], object]  # the graph works in memory that this one holds, so it has to live as long

    def __call__(self) -> None:
        self.graph.replay()


def capture(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph; its inputs and outputs stay where they are in memory."""
    import torch

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _Replay(graph, step)
