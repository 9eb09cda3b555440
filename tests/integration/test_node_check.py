"""The suite `node-check` without a GPU: everything that has a meaning is measured, the rest says why not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from paceline.core.record import CauseKind, Outcome, Record
from paceline.devices import device_count
from support.cli import sandbox_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(device_count() > 0, reason="this is about a machine without a GPU"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("fio", "mpirun", "cc"))), reason="needs fio, mpirun and cc: see apt-packages.txt"
    ),
]

MEASURED = {
    "gemm",
    "matmul",
    "sharding-matmul",
    "stream",
    "copy",
    "memory-latency",
    "collective",
    "compute-during-collective",
    "tcp",
    "disk",
    "known-answers",
    "training-fingerprint",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, with_long: bool) -> Iterator[list[Record]]:
    """The suite or some of it, with little time for each case; it ends well although some are not possible here."""
    with sandbox_in(tmp_path_factory.mktemp("node") / "sandbox") as sandbox:
        some = [] if with_long else ["--only", "tcp", "--only", "p2p", "--only", "rdma"]
        short = ["--set", "budget=50ms", "--set", "warm_up=20ms"]
        done = sandbox.run("run", "node-check", *short, *some, "--no-report", timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sandbox.left_behind() == []
        yield sandbox.load().records


@pytest.mark.long
def test_what_has_a_meaning_on_a_cpu_is_measured(records: list[Record]) -> None:
    ok = {record.case.benchmark for record in records if record.outcome is Outcome.OK}
    assert ok == MEASURED
    assert {record.case.ranks for record in records if record.case.benchmark == "collective"} == {2, 4}
    backends = {record.case.parameters["backend"] for record in records if record.case.benchmark == "collective"}
    assert "mpi" in backends


def test_what_has_none_says_what_to_do(records: list[Record]) -> None:
    causes = {r.case.benchmark: r.cause for r in records if r.outcome is Outcome.UNSUPPORTED}
    assert set(causes) == {"p2p", "rdma"}
    assert all(cause and cause.kind is CauseKind.UNSUPPORTED for cause in causes.values())
    assert "several GPUs" in causes["p2p"].message  # type: ignore[union-attr]
    assert "adapter" in causes["rdma"].message  # type: ignore[union-attr]


def test_every_figure_that_leads_is_there_with_its_category(records: list[Record]) -> None:
    from paceline.core.benchmark import BENCHMARKS

    for record in records:
        if record.outcome is Outcome.OK:
            assert record.measurement(BENCHMARKS.registry().get(record.case.benchmark).primary) is not None, (
                record.case.title
            )
            assert record.case.category in ("compute", "memory", "communication", "storage", "training")
