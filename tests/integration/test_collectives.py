"""Collectives among real ranks: right data, bandwidths of the whole, and wrong data that fails the case."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.communication import _mpi
from paceline.benchmarks.communication._exchange import OPERATIONS
from paceline.core.errors import SilentCorruption
from paceline.core.record import CauseKind, Outcome, Record
from support.cli import Sandbox

SHORT = {"steps": 3, "warm_up": "50ms"}
SIZES = ["64B", "96KiB"]
SHARED_MEMORY = Path("/dev/shm")

CORRUPT_WORKER = """
import sys
from paceline.benchmarks.communication import _mpi_worker


class Corrupt(_mpi_worker.MpiExchange):
    def call(self):
        super().call()
        if self.payload.rank == 1:
            self.payload.received[7] += 1


_mpi_worker.main(sys.argv[1], Corrupt)
"""


@pytest.fixture
def mpirun() -> str:
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is not here: apt-get install openmpi-bin")
    pytest.importorskip("mpi4py", reason="mpi4py is not here: pip install '.[mpi]'")
    return found


def measured(sandbox: Sandbox, *cases: dict[str, Any], code: int = 0) -> list[Record]:
    done = sandbox.ask("run", sandbox.suite(*cases), "--no-report", "--target", "cpu")
    assert done.returncode == code, done.stderr + done.stdout
    assert sandbox.left_behind() == []
    return sandbox.load().records


def assert_bandwidths_follow_from_times(record: Record, ranks: int) -> None:
    assert record.outcome is Outcome.OK, record.cause
    assert record.facts["ranks"] == ranks
    factor = OPERATIONS[record.case.parameters["operation"]].factor(ranks)
    sweep = [m for m in record.measurements if m.metric.name == "time" and not m.scope and m.at]
    assert [m.at["size"] for m in sweep] == [64, 96 * 1024]
    for at in ({"size": 64}, {"size": 96 * 1024}, {}):
        size = at.get("size", 96 * 1024)
        time, bus, algorithm = (record.measurement(n, at=at) for n in ("time", "bus_bandwidth", "algorithm_bandwidth"))
        assert time is not None
        assert bus is not None
        assert algorithm is not None
        assert algorithm.value == pytest.approx(size * len(time.samples) / sum(time.samples))
        assert bus.value == pytest.approx(factor * algorithm.value)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_operation_over_gloo(sandbox: Sandbox, ranks: int) -> None:
    common = {"benchmark": "collective", "ranks": ranks, "sizes": SIZES, **SHORT}
    placed = [
        common | {"operation": operation, "in_place": in_place}
        for operation in ("all-gather", "reduce-scatter")
        for in_place in (True, False)
    ]
    records = measured(sandbox, common | {"operation": list(OPERATIONS)}, *placed)
    assert len(records) == 10
    for record in records:
        assert_bandwidths_follow_from_times(record, ranks)
        assert record.facts["backend"] == "gloo"
        slowest = max(
            sum(m.samples)
            for m in record.measurements
            if m.metric.name == "time" and m.scope and m.at == {"size": 96 * 1024}
        )
        whole = record.measurement("time")
        assert whole is not None
        assert sum(whole.samples) == pytest.approx(slowest)


@pytest.mark.parametrize("good_calls", [0, pytest.param(1, marks=pytest.mark.long)])
def test_one_wrong_element_on_one_rank_fails_the_case_before_or_after_timing(sandbox: Sandbox, good_calls: int) -> None:
    case = {"benchmark": "corrupt-collective", "ranks": 2, "operation": "all-gather", "sizes": "64KiB"}
    (record,) = measured(sandbox, case | {"good_calls": good_calls} | SHORT, code=1)
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert record.cause.kind is CauseKind.CORRUPTION
    assert record.cause.rank == 1
    assert record.cause.message.startswith("rank 1 received a wrong element in all-gather of 64 KiB: element 7 is ")
    assert "expected" in record.cause.message
    assert record.seconds < 60  # nobody waits for a rank that has failed


@pytest.mark.long
def test_what_cannot_be_is_unsupported_with_what_to_do(sandbox: Sandbox) -> None:
    common = {"benchmark": "collective", "sizes": "64B", **SHORT}
    alone, nccl, place, short = measured(
        sandbox,
        common,
        common | {"ranks": 2, "backend": "nccl"},
        common | {"ranks": 2, "in_place": False},
        common | {"ranks": 2, "backend": "mpi", "precision": "bf16"},
        code=1,  # nothing was measured
    )
    for record, words in (
        (alone, "use --ranks 2 or more"),
        (nccl, "nccl is not measured on cpu: use backend = gloo"),
        (place, "all-reduce of torch works in place only"),
        (short, "use fp32"),
    ):
        assert record.outcome is Outcome.UNSUPPORTED
        assert record.cause is not None
        assert words in record.cause.message


@pytest.mark.long
def test_every_operation_over_mpi(sandbox: Sandbox, mpirun: str) -> None:
    common = {"benchmark": "collective", "backend": "mpi", "ranks": 2, "sizes": SIZES, **SHORT}
    records = measured(sandbox, common | {"operation": list(OPERATIONS)})
    assert len(records) == 6
    for record in records:
        assert_bandwidths_follow_from_times(record, 2)
        assert record.facts["library"]
        assert {m.scope for m in record.measurements} == {""}  # the case's ranks are not those that measured


def test_a_wrong_element_over_mpi_is_silent_corruption(sandbox: Sandbox, mpirun: str) -> None:
    script = sandbox.write("corrupt.py", CORRUPT_WORKER)
    parameters = {"backend": "mpi", "sizes": [64], "steps": 3, "warm_up": 0.05}
    case = {"index": 0, "benchmark": "collective", "parameters": parameters, "title": "", "ranks": 2}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = [mpirun, "-n", "2", "--oversubscribe", sys.executable, script, json.dumps(case)]
    done = sandbox.call(words, env=root)
    assert done.returncode == 0, done.stderr
    with pytest.raises(SilentCorruption, match="rank 1 received a wrong element in all-reduce of 64 B: element 7 is"):
        _mpi.read(done.stdout, 2)


def test_ranks_under_mpirun_end_with_a_case_that_takes_too_long(sandbox: Sandbox, mpirun: str) -> None:
    case = {"benchmark": "collective", "backend": "mpi", "ranks": 2, "budget": "10min", "warm_up": "10min"}
    before = set(SHARED_MEMORY.iterdir())
    (record,) = measured(sandbox, case | {"timeout": "12s"}, code=1)  # and nothing is left behind
    assert record.outcome is Outcome.TIMEOUT
    segments = [path for path in set(SHARED_MEMORY.iterdir()) - before if "_segment." in path.name]
    assert [path for path in segments if not is_mapped(path)] == []  # those of others are in use
    assert list((sandbox.folder / "tmp").iterdir()) == []


def is_mapped(path: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(path) in maps.read_text(errors="replace"):
                return True
    return False


def test_ranks_under_mpirun_that_ask_for_too_much_memory_say_so_in_a_line(sandbox: Sandbox, mpirun: str) -> None:
    case = {"benchmark": "collective", "backend": "mpi", "ranks": 2, "sizes": "1000TiB", **SHORT}
    (record,) = measured(sandbox, case, code=1)
    assert record.outcome is Outcome.OUT_OF_MEMORY
    assert record.cause is not None
    assert "use smaller sizes" in record.cause.message
    assert "Traceback" not in record.cause.message


def test_a_sweep_that_failed_keeps_its_points_apart(sandbox: Sandbox) -> None:
    pytest.importorskip("mpi4py", reason="pip install '.[mpi]'")
    small = _mpi.PointLine(size=1024, samples=[1.0, 1.0])
    large = _mpi.PointLine(size=2048, samples=[5.0])
    script = f'#!/bin/sh\n[ "$1" = --version ] && exit 0\ncat <<END\n{small}\n{large}\nEND\nexit 1\n'
    (sandbox.work / "mpirun").write_text(script)
    (sandbox.work / "mpirun").chmod(0o755)
    words = ["run", "collective", "--backend", "mpi", "--ranks", "2", "--target", "cpu", "--no-report"]
    assert sandbox.ask(*words, env={"PATH": f"{sandbox.work}:/usr/bin:/bin"}).returncode == 1
    (record,) = sandbox.load().records
    assert {one.metric.name: one.samples for one in record.measurements} == {
        "time 1 KiB": [1.0, 1.0],
        "time 2 KiB": [5.0],
    }


def test_without_mpirun_the_case_says_what_to_install(sandbox: Sandbox) -> None:
    words = ["run", "collective", "--backend", "mpi", "--ranks", "2", "--target", "cpu", "--no-report"]
    done = sandbox.ask(*words, env={"PATH": str(sandbox.work)})
    assert done.returncode == 1
    (record,) = sandbox.load().records
    assert record.cause is not None
    assert record.cause.kind is CauseKind.MISSING_DEPENDENCY
    assert "apt install openmpi-bin" in record.cause.message


@pytest.mark.long
def test_computation_and_collective_alone_and_together(sandbox: Sandbox) -> None:
    case = {"benchmark": "compute-during-collective", "ranks": 2, "size": "256KiB", "matmul_size": 64, **SHORT}
    (record,) = measured(sandbox, case)
    assert record.outcome is Outcome.OK, record.cause
    assert min(record.facts["repeats"].values()) >= 1
    for rank in range(2):
        scope = f"rank {rank}"

        def value(name: str, compute: str = "", scope: str = scope) -> float:
            found = record.measurement(name, scope, {"compute": compute} if compute else {})
            assert found is not None, name
            return found.value

        for compute in ("multiply", "matmul"):
            alone, together = value(f"{compute}_time"), value(f"{compute}_time_together")
            collective, whole = value("collective_time"), value("together_time", compute)
            assert value(f"{compute}_slowdown") == pytest.approx(together / alone)
            moved = value("collective_time_together", compute)
            assert value("collective_slowdown", compute) == pytest.approx(moved / collective)
            hidden = (alone + collective - whole) / min(alone, collective)
            assert value("overlap", compute) == pytest.approx(100 * hidden)
            assert whole >= max(together, moved) * 0.999
    assert record.measurement("overlap") is not None
