"""Whether the kernel killed for memory: certain where the control group counts it, a guess where the machine does."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.runner.execute import MemoryKills, kills_for_memory

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


class Machine:
    """What a kernel tells in its files."""

    def __init__(self, root: Path, own: str = "0::/outer/inner\n") -> None:
        self.root = root
        self.write("proc/self/cgroup", own)
        self.write("proc/vmstat", "nr_free_pages 5\noom_kill 7\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def killer(self, path: str, text: str) -> str:
        """Who killed, as a file changes meanwhile."""
        before = kills_for_memory(self.root)
        self.write(path, text)
        return kills_for_memory(self.root).killer_since(before)


@pytest.mark.parametrize(
    ("own", "path", "form"),
    [
        ("0::/outer/inner\n", "outer/inner/memory.events", EVENTS),
        ("0::/\n", "memory.events", EVENTS),  # a container sees its own group as the root
        ("0::/seen/by/the/host\n", "memory.events", EVENTS),  # or a path that only its host can see
        ("0::/outer/without/memory\n", "outer/memory.events", EVENTS),  # the nearest group that counts memory
        ("4:memory:/docker/abc\n0::/\n", "memory/docker/abc/memory.oom_control", CONTROL),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", CONTROL),
    ],
)
def test_what_the_own_control_group_counts_is_certain(tmp_path: Path, own: str, path: str, form: str) -> None:
    machine = Machine(tmp_path, own)
    machine.write(f"sys/fs/cgroup/{path}", form.format(4))
    assert machine.killer(f"sys/fs/cgroup/{path}", form.format(5)) == "the kernel"
    assert machine.killer("proc/vmstat", "oom_kill 9\n") == "", "it was a process of somebody else"


def test_a_group_around_it_does_not_count_where_it_has_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("sys/fs/cgroup/outer/inner/memory.events", EVENTS.format(0))
    machine.write("sys/fs/cgroup/outer/memory.events", EVENTS.format(0))
    assert machine.killer("sys/fs/cgroup/outer/memory.events", EVENTS.format(1)) == ""


@pytest.mark.parametrize("told", ["", EVENTS.format("?"), "low 0\nhigh 0\n"], ids=["nothing", "garbled", "too old"])
def test_without_that_it_is_a_guess_by_what_the_machine_counts(tmp_path: Path, told: str) -> None:
    machine = Machine(tmp_path)
    machine.write("sys/fs/cgroup/outer/inner/memory.events", told)
    assert machine.killer("proc/vmstat", "oom_kill 8\n") == "probably the kernel"
    assert machine.killer("proc/vmstat", "oom_kill 8\n") == ""


def test_a_kernel_that_tells_nothing_is_not_blamed(tmp_path: Path) -> None:
    assert kills_for_memory(tmp_path).killer_since(kills_for_memory(tmp_path)) == ""
    assert kills_for_memory(tmp_path) == MemoryKills(group=None, machine=0)
