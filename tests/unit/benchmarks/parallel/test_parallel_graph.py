"""Where a parallel training is replayed as a CUDA graph, and where that is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel.megatron_core import refuse
from paceline.benchmarks.parallel.parallel import Parallel, _whether_to_capture
from paceline.core.errors import Unsupported
from paceline.devices import Device, DeviceKind, kind_named, open_device


@dataclass
class OfKind:
    kind: DeviceKind


def captures(kind: str, *, compiled: bool = True, **parameters: Any) -> bool:
    return _whether_to_capture(
        ParallelParameters(**parameters), cast("Device", OfKind(kind_named(kind))), compiled=compiled
    )


def test_one_gpu_with_compiled_layers_replays_a_graph() -> None:
    assert captures("cuda")
    assert not captures("cuda", compiled=False)
    assert not captures("cuda", data=2)
    assert not captures("cpu")
    assert not captures("cuda", graph="off")
    assert captures("cuda", compiled=False, graph="on")


@pytest.mark.parametrize(
    ("kind", "parameters", "why"), [("cpu", {}, "a CPU has none"), ("cuda", {"pipeline": 2}, "2 ranks talk")]
)
def test_a_graph_that_cannot_be_is_refused(kind: str, parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsupported, match=f"{why}.*: use --graph auto or off"):
        captures(kind, graph="on", **parameters)


def test_megatron_core_has_no_graph() -> None:
    refuse(ParallelParameters())
    with pytest.raises(Unsupported, match="use --graph auto or off"):
        refuse(ParallelParameters(graph="on"))


@pytest.mark.parametrize(("choice", "compiled"), [("off", False), ("on", True)])
def test_a_record_says_whether_layers_are_compiled(choice: str, compiled: bool) -> None:
    pytest.importorskip("torch")
    parameters = ParallelParameters(precision="fp32", compile=choice)
    assert Parallel().prepare(parameters, open_device("cpu")).facts["compiled"] is compiled
