"""How the ranks of an MPI collective are started, and what is said where that cannot be done."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.benchmarks._micro.tools import ToolError
from paceline.benchmarks.communication import _mpi
from paceline.core.benchmark import Context, Progress
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, OutOfMemory
from support.refused import refused

CONTEXT = Context(case=Case(index=0, benchmark="collective", parameters={}, title="", ranks=2), world_size=2)
WORKER = [sys.executable, "-P", "-m", _mpi.WORKER]


def program(folder: Path, text: str) -> None:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_open_mpi_may_put_more_ranks_on_a_host_than_it_has_cores() -> None:
    found = _mpi.command("mpirun", "mpirun (Open MPI) 4.1.4", 4, None)
    assert found == ["mpirun", "-n", "4", "--oversubscribe", *WORKER]


def test_mpich_is_spoken_to_in_its_own_words(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    found = _mpi.command("mpirun", "HYDRA build details: Version: 4.2.0", 2, str(hosts))
    assert found == ["mpirun", "-n", "2", "-f", str(hosts), *WORKER]


def test_without_mpirun_the_remedy_is_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"mpirun.*apt install openmpi-bin"):
        _mpi.run(CONTEXT, None)


def test_without_mpi4py_the_remedy_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependency, match=r"mpi4py.*\.\[mpi\]"):
        _mpi.run(CONTEXT, None)


def test_a_file_of_hosts_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="pip install '.[mpi]'")
    program(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("missing-file", key="hostfile", value="nowhere.txt"):
        _mpi.run(CONTEXT, "nowhere.txt")


def test_mpirun_sees_nothing_of_what_launched_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_orte_jobid", "1")
    before = dict(os.environ)
    shown = {name for name in _mpi.environment() if not name.startswith("OMPI_ALLOW_RUN_AS_ROOT")}
    assert [name for name in shown if name.startswith(("OMPI_", "PMIX_", "MASTER_", "TORCHELASTIC_"))] == []
    assert not {"RANK", "WORLD_SIZE"} & shown
    assert dict(os.environ) == before


def test_settings_of_a_user_for_open_mpi_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("OMPI_MCA_BTL", "tcp,self")
    assert _mpi.environment()["OMPI_MCA_BTL"] == "tcp,self"


def failing(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    pytest.importorskip("mpi4py", reason="pip install '.[mpi]'")
    program(folder, f'[ "$1" = --version ] && exit 0\n{script}')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def said(line: _mpi.Line) -> str:
    return f"cat <<'END'\n{line}\nEND\n"


def test_ranks_that_need_more_memory_than_there_is_are_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing(monkeypatch, tmp_path, said(_mpi.Failed(rank=1, why="memory", message="MemoryError")) + "exit 1")
    with pytest.raises(OutOfMemory, match=r"rank 1 under mpirun: use smaller sizes"):
        _mpi.run(CONTEXT, None)


def test_what_a_rank_did_not_foresee_is_one_line_with_its_traceback_as_a_detail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = _mpi.Failed(rank=0, why="error", message="ValueError: odd")
    failing(monkeypatch, tmp_path, f"echo 'Traceback (most recent call last):' >&2\n{said(failed)}exit 1")
    with pytest.raises(RuntimeError, match="rank 0 under mpirun: ValueError: odd") as caught:
        _mpi.run(CONTEXT, None)
    assert "Traceback" in caught.value.__notes__[0]


def test_a_rank_that_was_killed_is_told_without_mpiruns_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = "mpirun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed)."
    failing(monkeypatch, tmp_path, f"echo ------ >&2; echo 'Primary job terminated' >&2; echo '{words}' >&2; exit 137")
    with pytest.raises(ToolError) as caught:
        _mpi.run(CONTEXT, None)
    assert str(caught.value) == f"mpirun ended with exit code 137: {words}"


def test_a_traceback_never_becomes_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\\n  File x, line 1\\nImportError: nothing\\n"
    failing(monkeypatch, tmp_path, f"printf '{trace}' >&2; exit 1")
    with pytest.raises(ToolError, match=r"^mpirun ended with exit code 1: ImportError: nothing$"):
        _mpi.run(CONTEXT, None)


def test_sizes_that_were_measured_before_a_failure_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = [_mpi.PointLine(size=1024, samples=[0.5]), _mpi.PointLine(size=2048, samples=[1.0, 2.0])]
    failing(monkeypatch, tmp_path, "".join(map(said, points)) + "exit 1")
    heard: list[Progress] = []
    with pytest.raises(ToolError):
        _mpi.run(replace(CONTEXT, report=heard.append), None)
    assert [(one.metric, one.samples) for one in heard if one.metric] == [
        ("time 1 KiB", (0.5,)),
        ("time 2 KiB", (1.0, 2.0)),
    ]
