"""How the ranks of an MPI collective are started, and what is said where that cannot be done."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline.benchmarks.communication import _mpi
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency, Unsupported

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
    with pytest.raises(MissingDependency, match=r"mpi4py.*paceline\[mpi\]"):
        _mpi.run(CONTEXT, None)


def test_a_file_of_hosts_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="pip install 'paceline[mpi]'")
    program(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"hosts = nowhere\.txt is no file"):
        _mpi.run(CONTEXT, "nowhere.txt")


def test_mpirun_sees_nothing_of_what_launched_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_orte_jobid", "1")
    before = dict(os.environ)
    with _mpi._outside_of_launchers():
        left = [name for name in os.environ if name.startswith(("OMPI_", "PMIX_", "MASTER_", "TORCHELASTIC_"))]
        assert left == []
        assert "RANK" not in os.environ
        assert "WORLD_SIZE" not in os.environ
    assert dict(os.environ) == before


def test_settings_of_a_user_for_open_mpi_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("OMPI_MCA_BTL", "tcp,self")
    with _mpi._outside_of_launchers():
        assert os.environ["OMPI_MCA_BTL"] == "tcp,self"
