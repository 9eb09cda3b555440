"""Copies are checked byte by byte, counted once, and refused where they have no meaning."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.copy import Copy, CopyParameters, HostCopies
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Gpu
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.core.record import Result
from paceline.devices import kind_named
from paceline.devices.base import Described, pcie_bandwidth
from paceline.measure.memory import Peak
from support.refused import refused


def case_of(target: str = "cpu") -> Case:
    return Case(index=0, benchmark="copy", parameters={}, title="", target=target)


def measured(**values: Any) -> Result:
    parameters = CopyParameters.read({"steps": 3, "warm_up": "1ms", **values})
    return Copy().measure(parameters, Context(case=case_of()))


def test_every_size_is_measured_and_the_largest_speaks_for_the_case() -> None:
    result = measured(sizes=["64KiB", "4KiB", "1000000"])
    found = {(m.metric.name, m.at.get("size")): m for m in result.measurements}
    for size in (4096, 65536, 1_000_000):
        assert found["bandwidth", size].work == size
        assert found["bandwidth", size].value == pytest.approx(size / found["time", size].summary.mean)
    assert found["bandwidth", None].value == found["bandwidth", 1_000_000].value
    assert result.facts["direction"] == "h2h"
    assert "cached" in {warning.kind for warning in result.warnings}


def test_a_byte_that_arrives_changed_is_silent_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = HostCopies._seconds

    def corrupting(self: HostCopies, size: int, passes: int) -> float:
        seconds = genuine(self, size, passes)
        self.destination.bytes[77] ^= 1
        return seconds

    monkeypatch.setattr(HostCopies, "_seconds", corrupting)
    with pytest.raises(SilentCorruption, match=r"1 of 4096 bytes copied h2h .* the first at 77"):
        measured(sizes=["4KiB"])


def test_a_copy_that_never_happened_is_silent_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostCopies, "_seconds", lambda *_: 1e-3)
    with pytest.raises(SilentCorruption, match="64 of 64 bytes"):
        measured(sizes=["64"])


@pytest.mark.parametrize("values", [{"direction": "h2d"}, {"direction": "d2d"}, {"both": True}])
def test_a_cpu_has_no_device_to_copy_to(values: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="needs a GPU"):
        measured(**values)


@pytest.mark.parametrize(
    ("values", "code", "key"),
    [
        ({"direction": "h2d", "both": True}, "conflicting-keys", "direction"),
        ({"both": True, "host_memory": "pageable"}, "needs-pinned-memory", "host_memory"),
    ],
)
def test_contradictions_are_refused_before_anything_runs(values: dict[str, Any], code: str, key: str) -> None:
    with refused(code, key=key):
        Copy.check(CopyParameters.read(values), case_of())


def test_the_link_promises_what_its_generation_and_width_say() -> None:
    assert pcie_bandwidth(3, 16) == pytest.approx(15.75e9, rel=1e-3)
    assert pcie_bandwidth(5, 16) == pytest.approx(63.0e9, rel=1e-3)
    assert pcie_bandwidth(1, 1) == pytest.approx(0.25e9)
    assert pcie_bandwidth(99, 16) is None


def test_a_link_that_the_driver_does_not_tell_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(*gpus: Gpu, ways: int = 1) -> Peak | None:
        monkeypatch.setattr(kind_named("cuda"), "describe", lambda: Described(gpus=list(gpus)))
        return host.pcie_peak("cuda:0", ways=ways)

    hidden = Gpu(cuda_index=None, pcie_generation_max=3, pcie_width_max=16)
    known = Gpu(cuda_index=0, pcie_generation=1, pcie_width=4, pcie_generation_max=4, pcie_width_max=8)
    one, two = peak(hidden, known), peak(hidden, known, ways=2)
    assert one is not None and two is not None
    assert two.rate == 2 * one.rate
    assert "generation 4 x8" in one.source
    assert peak(Gpu(cuda_index=0)) is None
    assert peak(hidden) is None
    assert peak() is None
