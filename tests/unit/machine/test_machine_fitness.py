"""Fitness is decided by functions over what was seen, so they are tested with literals."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.environment import Cpu, Ecc, Gpu, GpuProcess, Memory
from paceline.machine import fitness
from paceline.machine.conditions import Conditions
from paceline.machine.fitness import GIB, ClockState, FitnessFinding, clock_state, jitter, timer_resolution

BEFORE = Conditions(target="cpu", clock=0.0, cpus=4, cpu_seconds=0.0, busy_seconds=0.0, own_seconds=0.0)


def level(finding: FitnessFinding | None) -> str | None:
    if finding is not None:
        assert finding.message
        assert bool(finding.remedy) == (finding.level != "ok"), "whatever is not well has a remedy"
    return finding.level if finding else None


@pytest.mark.parametrize(("busy", "expected"), [(1.0, "ok"), (3.0, "warning"), (9.0, "problem")])
def test_load(busy: float, expected: str) -> None:
    after = BEFORE.model_copy(update={"clock": 2.5, "cpu_seconds": 10.0, "busy_seconds": busy, "own_seconds": 0.5})
    assert level(fitness.judge_load(BEFORE, after)) == expected
    assert fitness.judge_load(BEFORE, BEFORE) is None


def test_processor() -> None:
    assert level(fitness.judge_governor(Cpu(governor="performance"))) == "ok"
    assert level(fitness.judge_governor(Cpu(governor="powersave"))) == "warning"
    assert fitness.judge_governor(Cpu()) is None
    assert level(fitness.judge_boost(Cpu(boost=True))) == "hint"
    assert level(fitness.judge_boost(Cpu(boost=False))) == "warning"
    assert fitness.judge_boost(Cpu()) is None
    assert level(fitness.judge_quota(Cpu(affinity=8))) == "ok"
    assert level(fitness.judge_threads(Cpu(logical_cores=8, physical_cores=4))) == "hint"
    assert level(fitness.judge_threads(Cpu(logical_cores=8, physical_cores=8))) == "ok"
    assert fitness.judge_threads(Cpu()) is None
    short = fitness.judge_quota(Cpu(affinity=8, quota=2.5))
    assert level(short) == "warning"
    assert short is not None and "OMP_NUM_THREADS=2" in short.remedy


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (Memory(), None),
        (Memory(total=64 * GIB, available=32 * GIB), "ok"),
        (Memory(total=64 * GIB, available=3 * GIB), "warning"),
        (Memory(total=64 * GIB, available=GIB // 2), "problem"),
        (Memory(total=64 * GIB, available=60 * GIB, limit=8 * GIB, limit_used=7 * GIB + GIB // 2), "problem"),
        (Memory(total=64 * GIB, available=60 * GIB, limit=8 * GIB, limit_used=GIB), "ok"),
    ],
)
def test_memory(memory: Memory, expected: str | None) -> None:
    assert level(fitness.judge_memory(memory)) == expected


def test_swap_and_disks() -> None:
    assert level(fitness.judge_swap(Memory(swap_used=0))) == "ok"
    assert level(fitness.judge_swap(Memory(swap_used=GIB))) == "warning"
    assert fitness.judge_swap(Memory()) is None
    disks = fitness.judge_disks({"a": 50 * GIB, "b": 2 * GIB, "c": 5, "d": None})
    assert [level(finding) for finding in disks] == ["ok", "warning", "problem"]


def test_time() -> None:
    assert level(fitness.judge_timer(40e-9, "tsc")) == "ok"
    assert level(fitness.judge_timer(40e-9, "hpet")) == "warning"
    assert level(fitness.judge_timer(1e-3, None)) == "problem"
    assert [level(fitness.judge_jitter(value)) for value in (0.01, 0.1, 0.9)] == ["ok", "warning", "problem"]
    assert level(fitness.judge_clock(ClockState(synchronised=True, offset=0.001, largest_error=0.02))) == "ok"
    assert level(fitness.judge_clock(ClockState(synchronised=False, offset=0.0, largest_error=16.0))) == "warning"
    assert level(fitness.judge_clock(ClockState(synchronised=True, offset=-3.0, largest_error=0.1))) == "warning"
    assert fitness.judge_clock(None) is None


FIT = Gpu(
    index=0,
    name="NVIDIA H200",
    persistence=True,
    throttle_reasons=["gpu-idle"],
    processes=[],
    memory_used=600 * 1024**2,
    ecc=Ecc(enabled=True, uncorrected_volatile=0, uncorrected_aggregate=0, corrected_volatile=3),
    pcie_width=16,
    pcie_width_max=16,
    power_limit_watts=700,
    power_limit_default_watts=700,
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "ok"),
        ({"throttle_reasons": ["hw-thermal-slowdown"]}, "problem"),
        ({"throttle_reasons": ["sw-power-cap"]}, "warning"),
        ({"throttle_reasons": None, "processes": None, "persistence": None}, "ok"),
        ({"persistence": False}, "warning"),
        ({"processes": [GpuProcess(pid=1)]}, "ok"),
        ({"processes": [GpuProcess(pid=2, name="train")]}, "warning"),
        ({"memory_used": 30 * GIB}, "warning"),
        ({"ecc": Ecc(uncorrected_volatile=1)}, "problem"),
        ({"ecc": Ecc(uncorrected_aggregate=1)}, "warning"),
        ({"ecc": Ecc(remap_failed=True)}, "problem"),
        ({"ecc": Ecc(remap_pending=True)}, "warning"),
        ({"pcie_width": 8}, "warning"),
        ({"power_limit_watts": 400}, "warning"),
    ],
)
def test_gpu(change: dict[str, object], expected: str) -> None:
    (finding,) = fitness.judge_gpus([FIT.model_copy(update=change)], own_pid=1)
    assert level(finding) == expected


def test_no_gpu_is_no_problem() -> None:
    (finding,) = fitness.judge_gpus([], own_pid=1)
    assert level(finding) == "ok"


def test_absent_programs_are_a_note_that_says_what_for_and_how_to_get_them() -> None:
    everything = fitness.judge_programs(set(fitness.OPTIONAL_PROGRAMS))
    assert level(everything) == "ok"
    assert "apt" not in everything.message
    some = fitness.judge_programs({"mpirun", "cc", "iperf3"})
    assert level(some) == "ok", "what is optional is no warning"
    assert "fio (disk)" in some.message
    assert "ib_write_bw (rdma)" in some.message
    assert some.message.endswith("sudo apt install fio perftest")
    assert "iperf3" not in some.message


def test_a_compiler_by_any_name_is_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def programs() -> str:
        return next(one.message for one in fitness.check(jitter_seconds=0.01) if one.subject == "programs")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "cc (benchmarks in C" in programs()
    for name in ("clang", "my-compiler", "fio"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert "cc (" not in programs()
    assert "fio (" not in programs()
    (tmp_path / "clang").unlink()
    assert "cc (" in programs()
    monkeypatch.setenv("CC", "my-compiler --fast")
    assert "cc (" not in programs()


def test_worst() -> None:
    def one(value: fitness.Level) -> FitnessFinding:
        return FitnessFinding(level=value, subject="x", message="x")

    assert fitness.worst([]) == "ok"
    assert fitness.worst([one("ok"), one("warning")]) == "warning"
    assert fitness.worst([one("problem"), one("warning")]) == "problem"


def test_probes_of_this_machine() -> None:
    assert 0 < timer_resolution() < 1e-3
    assert 0 <= jitter(0.02) < 100
    state = clock_state()
    assert state is None or state.largest_error >= 0
    findings = fitness.check(jitter_seconds=0.05)
    assert {"load", "memory", "disk", "timer", "jitter", "programs"} <= {finding.subject for finding in findings}
