"""CUDA graphs: a step recorded once and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable

WARM_UP_STEPS = 3  # libraries allocate their workspaces in the first steps, which a graph must not record


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

    def replay() -> None:
        graph.replay()

    replay.step = step  # type: ignore[attr-defined]  # the graph works in memory that the step's owner holds
    return replay
