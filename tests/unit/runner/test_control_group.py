"""Control groups of both versions in scripted trees that have the kernel's files, and a real one where it can be."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.runner import control_group
from paceline.runner.control_group import ControlGroup
from support.scripted_ranks import PATIENCE_SECONDS

FREE = "MemAvailable: 1000000 kB\n"


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A machine whose /proc says which group this process is in, and whose groups have these files."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/meminfo": FREE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_1_has_a_folder_in_each_hierarchy(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    files = {f"{base}/memory/user/memory.usage_in_bytes": "1", f"{base}/pids/cgroup.procs": ""}
    root = tree(tmp_path, "4:memory:/user\n8:pids:/\n", files)
    group = ControlGroup.make(root)
    memory, pids = (folder.path for folder in group.folders)
    assert (memory.parent, pids.parent) == (root / base / "memory/user", root / base / "pids")
    assert [entry.name for entry in group.entries] == ["cgroup.procs"] * 2
    assert (memory / "memory.swappiness").read_text() == "0"
    assert int((pids / "pids.max").read_text()) >= 4096

    (memory / "memory.usage_in_bytes").write_text("7000")
    (memory / "memory.stat").write_text("total_inactive_file 5000\n")
    group.bound_memory(10_000)
    assert group.bounds_memory
    assert (memory / "memory.limit_in_bytes").read_text() == "12000", "what can be reclaimed is not counted"

    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (memory / "memory.failcnt").write_text("9\n")
    assert (group.memory_kills(), group.times_at_ceiling()) == (3, 9)


def delegated(root: Path, processes: str) -> tuple[Path, Path]:
    base = root / "sys/fs/cgroup/app.scope"
    files = {"cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": "", "cgroup.procs": processes}
    tree(root, "0::/app.scope\n", {f"sys/fs/cgroup/app.scope/{name}": text for name, text in files.items()})
    return root, base


def test_version_2_enables_controllers_for_one_folder(tmp_path: Path) -> None:
    root, base = delegated(tmp_path, "")
    group = ControlGroup.make(root)
    (folder,) = (one.path for one in group.folders)
    assert folder.parent == base
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (folder / "memory.swap.max").read_text() == "0"
    assert int((folder / "pids.max").read_text()) >= 4096
    (folder / "memory.current").write_text("7000")
    group.bound_memory(10_000)
    assert (folder / "memory.max").read_text() == "17000"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n")
    assert (group.memory_kills(), group.times_at_ceiling()) == (1, 5)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A group that hands out controllers only while no process is in it, as the kernel's do."""

    def make_busy(base: Path) -> None:
        real = control_group._Folder.write

        def write(self: control_group._Folder, name: str, value: object) -> bool:
            if self.path == base and name == "cgroup.subtree_control" and self.processes:
                return False
            if name == "cgroup.procs":
                left = (base / name).read_text().split()
                (base / name).write_text(" ".join(word for word in left if word != str(value)))
            return real(self, name, value)

        monkeypatch.setattr(control_group._Folder, "write", write)

    return make_busy


def test_in_version_2_the_runner_goes_one_level_down_if_it_is_alone(
    tmp_path: Path, busy: Callable[[Path], None]
) -> None:
    root, base = delegated(tmp_path, f"{os.getpid()}\n")
    busy(base)
    ControlGroup.make(root)
    assert (base / "paceline-runner/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"
    (root / "proc/self/cgroup").write_text("0::/app.scope/paceline-runner\n")
    (folder,) = ControlGroup.make(root).folders
    assert folder.path.parent == base, "the next group is next to the runner's, not within it"


def test_in_version_2_processes_of_others_stay_where_they_are(tmp_path: Path, busy: Callable[[Path], None]) -> None:
    root, base = delegated(tmp_path, f"{os.getpid()} 1\n")
    busy(base)
    group = ControlGroup.make(root)
    assert (base / "cgroup.procs").read_text().split() == [str(os.getpid()), "1"]
    assert (base / "cgroup.subtree_control").read_text() == ""
    group.bound_memory(10_000)
    assert not group.bounds_memory, "the runner has to watch"
    assert len(group.folders) == 1, "it can still be ended as one"


@pytest.mark.parametrize("cgroup", ["", "4:memory:/user\n", "0::/\n"])
def test_without_a_folder_that_one_may_write_to_there_is_no_group(tmp_path: Path, cgroup: str) -> None:
    group = ControlGroup.make(tree(tmp_path, cgroup, {}))
    group.bound_memory(10_000)
    assert (group.folders, group.entries, group.bounds_memory, group.memory_kills()) == ([], [], False, None)
    group.end()


def test_empty_groups_of_runners_that_were_killed_are_removed(tmp_path: Path) -> None:
    root = tree(tmp_path, "8:pids:/\n", {"sys/fs/cgroup/pids/cgroup.procs": "", "proc/77/comm": "python"})
    pids = root / "sys/fs/cgroup/pids"
    for name in ("paceline-76-ab", "paceline-77-ab", "paceline-runner", "others-76-ab"):
        (pids / name).mkdir()
    (pids / "paceline-78-ab").mkdir()
    (pids / "paceline-78-ab/cgroup.procs").write_text("5")  # somebody is in it, as a file in a real folder is not
    ControlGroup.make(root)
    names = {path.name for path in pids.iterdir() if path.is_dir() and str(os.getpid()) not in path.name}
    assert names == {"paceline-77-ab", "paceline-78-ab", "paceline-runner", "others-76-ab"}


def test_a_group_of_this_machine_ends_what_is_in_it() -> None:
    group = ControlGroup.make()
    if not group.folders:
        pytest.skip("this user may not make control groups here")
    folders = [folder.path for folder in group.folders]
    with subprocess.Popen(
        ["setsid", "sh", "-c", "read line; setsid sleep 600 & sleep 600"], stdin=subprocess.PIPE
    ) as shell:
        for entry in group.entries:
            entry.write_text(str(shell.pid))
        assert shell.stdin is not None
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(group.folders[0].processes) < 3:
            assert time.monotonic() < deadline
        group.end()
        assert shell.wait(10) in (-9, 128 + 9), "the shell may first notice the end of its child"
    assert not any(folder.exists() for folder in folders)
