"""Copies between several GPUs and the host at the same time: which they are, that each arrives, and their names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.benchmarks.communication import p2p
from paceline.benchmarks.communication.p2p import Copy, P2p, P2pParameters, at_once, pattern_ends
from paceline.benchmarks.memory.copy import Copy as CopyBenchmark
from paceline.benchmarks.memory.copy import CopyParameters, copy_by
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.record import Outcome, Record
from paceline.devices.base import Device, DeviceKind, FormatSupport
from support.refused import refused


class Stream:
    """A queue whose order is written down."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeKind(DeviceKind):
    name = "fake"

    def __init__(self) -> None:
        self.log: list[str] = []

    def count(self) -> int:
        return 3

    def open(self, index: int) -> Device:
        return FakeGpu(self, index)

    def can_access_peer(self, source: int, target: int) -> bool:
        return True


class FakeGpu(Device):
    """One of several GPUs whose memory is the host's; a kernel copies as its source says."""

    def __init__(self, kind: FakeKind, index: int) -> None:
        super().__init__(kind, "Fake")
        self.index, self.log = index, kind.log

    def torch(self) -> Any:
        return SimpleNamespace(index=self.index)

    def synchronize(self) -> None:
        pass

    def format(self, precision: str) -> FormatSupport:
        raise NotImplementedError

    def stream(self) -> Stream:
        return Stream(f"side {self.index}", self.log)

    def current_stream(self) -> Stream:
        return Stream(f"main {self.index}", self.log)

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        return nullcontext()

    def timeline(self, in_flight: int) -> Any:
        from paceline.devices.cpu import CpuDevice

        return CpuDevice().timeline(in_flight)

    def build_kernel(self, source: str, name: str) -> Callable[..., object]:
        assert f"void {name}(" in source

        def kernel(*, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]) -> None:
            to, sent, words, rest = args
            assert 16 * words + rest == sent.nbytes and rest < block[0]
            to.copy_(sent)

        return kernel


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[FakeGpu]:
    kind, arange = FakeKind(), torch.arange

    def on_host(*arguments: Any, device: Any = None, **more: Any) -> Tensor:
        return arange(*arguments, **more)

    monkeypatch.setattr(torch, "arange", on_host)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(p2p, "kind_of", lambda target: kind)
    monkeypatch.setattr(p2p, "counts", lambda: {"fake": 3})
    return [FakeGpu(kind, index) for index in range(3)]


def measured(**values: Any) -> Record:
    parameters = P2pParameters.read({"size": "1KiB", "steps": 2, "warm_up": "1ms", **values})
    case = Case(index=0, benchmark="p2p", parameters={}, title="", target="fake:0")
    result = P2p().measure(parameters, Context(case=case))
    record = Record(
        run_id="r", case=case, outcome=Outcome.OK, started_at="2026-01-01T00:00:00Z", seconds=1.0,
        measurements=result.measurements, facts=result.facts,
    )  # fmt: skip
    return record.model_copy(update={"aliases": P2p.describe(record, parameters, None).aliases})  # type: ignore[arg-type]


def test_a_pattern_is_every_copy_that_its_name_says() -> None:
    assert pattern_ends("one-to-all", 3) == {0: [(0, 1), (0, 2)], 1: [(1, 0), (1, 2)], 2: [(2, 0), (2, 1)]}
    assert pattern_ends("all-to-one", 3)[2] == [(0, 2), (1, 2)]
    assert len(pattern_ends("all-to-all", 8)[None]) == 56
    assert pattern_ends("host-to-all", 2) == {None: [(None, 0), (None, 1)]}
    assert pattern_ends("all-to-host", 2) == {None: [(0, None), (1, None)]}


@pytest.mark.parametrize(
    ("values", "copies", "keys"),
    [
        ({"pattern": "all-to-all"}, 6, ["gpu_all_to_gpu_all_write_by_dma_bw"]),
        ({"pattern": "one-to-all", "by": "sm"}, 2, [f"gpu{n}_to_gpu_all_write_by_sm_bw" for n in range(3)]),
        ({"pattern": "all-to-one"}, 2, [f"gpu_all_to_gpu{n}_write_by_dma_bw" for n in range(3)]),
        ({"pattern": "host-to-all", "numa_node": 0}, 3, ["cpu_to_gpu_all_by_dma_under_numa0_bw"]),
        ({"pattern": "all-to-host"}, 3, ["gpu_all_to_cpu_by_dma_bw"]),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_a_pattern_counts_all_its_copies_and_has_the_names_of_other_tools(
    values: dict[str, Any], copies: int, keys: list[str]
) -> None:
    record = measured(**values)
    totals = [one for one in record.measurements if one.metric.name == "total_bandwidth" and one.at]
    assert {one.work for one in totals} == {copies * 1024}
    headline = record.measurement("total_bandwidth")
    assert headline is not None
    assert headline.value == min(one.value for one in totals)
    assert sorted(record.aliases["superbench"].values) == keys


@pytest.mark.usefixtures("gpus")
def test_pairs_by_sm_are_other_names_than_by_engine() -> None:
    record = measured(by="sm")
    assert len(record.aliases["superbench"].values) == 6
    assert all("_write_by_sm_bw" in key for key in record.aliases["superbench"].values)


def test_copies_at_once_wait_for_the_main_stream_and_it_for_them(gpus: list[FakeGpu]) -> None:
    copies = [Copy(64, gpus[0], gpus[1], 1), Copy(64, None, gpus[2], 2)]
    at_once(copies, gpus[0].current_stream())()
    begun, ended = gpus[0].log[:3], gpus[0].log[3:]
    assert sorted(begun) == ["side 0 waits for main 0", "side 1 waits for main 0", "side 2 waits for main 0"]
    assert sorted(ended) == ["main 0 waits for side 0", "main 0 waits for side 1", "main 0 waits for side 2"]
    for copy in copies:
        copy.check()


def test_a_copy_that_did_not_arrive_names_both_ends(gpus: list[FakeGpu]) -> None:
    copy = Copy(64, None, gpus[2], 2)
    with pytest.raises(SilentCorruption, match="a copy from the host to GPU 2 is wrong at element 0"):
        copy.check()


def test_a_kernel_copies_every_byte_of_an_odd_size(gpus: list[FakeGpu]) -> None:
    sent, to = torch.randint(0, 256, (1003,), dtype=torch.uint8), torch.zeros(1003, dtype=torch.uint8)
    copier = copy_by("sm", gpus[0])
    copier.copy(to, sent)
    assert torch.equal(to, sent)
    assert "16 bytes" in copier.how


def test_by_sm_takes_pinned_memory_and_a_gpu() -> None:
    case = Case(index=0, benchmark="copy", parameters={}, title="", target="cpu")
    with refused("needs-pinned-memory", key="host_memory"):
        CopyBenchmark.check(CopyParameters(by="sm", host_memory="pageable"), case)
    with pytest.raises(Unsupported, match="by = sm needs a GPU"):
        CopyBenchmark().measure(CopyParameters(by="sm"), Context(case=case))


def test_a_copy_within_the_host_stays_on_the_node_that_was_named() -> None:
    case = Case(index=0, benchmark="copy", parameters={}, title="", target="cpu")
    parameters = CopyParameters.read({"numa_node": 0, "sizes": ["4KiB"], "steps": 2, "warm_up": "1ms"})
    result = CopyBenchmark().measure(parameters, Context(case=case))
    assert result.facts["numa_node"] == 0
    assert CopyBenchmark.title(parameters) == "NUMA node 0 4 KiB"
    with pytest.raises(Unsupported, match="numa_node = 99 does not exist here"):
        CopyBenchmark().measure(CopyParameters(numa_node=99), Context(case=case))


def test_a_kernel_copies_only_where_one_gpu_reaches_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = FakeKind()
    monkeypatch.setattr(FakeKind, "can_access_peer", lambda self, source, target: False)
    with pytest.raises(Unsupported, match="no kernel of GPU 2 reaches the memory of GPU 0: use --by engine"):
        Copy(1024, kind.open(2), kind.open(0), 1, "sm")
