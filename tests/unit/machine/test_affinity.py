"""What a user writes after --affinity, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.errors import InputError
from paceline.machine import fitness
from paceline.machine.cpu import read_affinity, show_cpu_list

ALL = range(8)


def machine(root: Path, isolated: str = "", threads: int = 2, **files: str) -> Path:
    """Eight CPUs, of which N and N + 4 are threads of one core."""
    system = root / "sys/devices/system/cpu"
    (system / "isolated").parent.mkdir(parents=True)
    (system / "isolated").write_text(f"{isolated}\n")
    (system / "online").write_text("0-7\n")
    for cpu in ALL:
        folder = system / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        siblings = f"{cpu % 4},{cpu % 4 + 4}" if threads == 2 else str(cpu)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cpus_are_named_as_the_kernel_does(tmp_path: Path) -> None:
    assert read_affinity("0-2,6", machine(tmp_path), ALL) == {0, 1, 2, 6}
    assert [show_cpu_list(cpus) for cpus in ({3}, {0, 1, 2, 6}, {1, 3, 5})] == ["3", "0-2,6", "1,3,5"]
    assert show_cpu_list([8, 3, 2, 1, 0, 11, 10]) == "0-3,8,10-11"


def test_auto_takes_one_thread_of_each_core_and_leaves_the_first(tmp_path: Path) -> None:
    assert read_affinity("auto", machine(tmp_path / "two"), ALL) == {1, 2, 3}
    assert read_affinity("auto", machine(tmp_path / "one", threads=1), ALL) == {1, 2, 3, 4, 5, 6, 7}
    assert read_affinity("auto", machine(tmp_path / "few"), [0, 1, 4, 5]) == {0, 1}


def test_isolated_ones_may_be_named_though_the_scheduler_does_not_offer_them(tmp_path: Path) -> None:
    root = machine(tmp_path, isolated="6-7")
    assert read_affinity("isolated", root, range(6)) == read_affinity("auto", root, range(6)) == {6, 7}
    assert read_affinity("5-6", root, range(6)) == {5, 6}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("6-9", "no-such-cpu", "CPU 8-9 does not exist here"),
        ("isolated", "no-isolated-cpus", "boot with isolcpus"),
        ("some", "invalid-affinity", "write 0-3, 0,2, auto or isolated"),
        ("", "invalid-affinity", "not a list of CPUs"),
    ],
)
def test_what_is_not_here_is_refused_with_what_to_do(tmp_path: Path, text: str, code: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read_affinity(text, machine(tmp_path), ALL)
    assert refused.value.code == code


def levels(root: Path) -> dict[str, str]:
    findings = fitness.judge_tuning(root)
    assert all(bool(finding.remedy) == (finding.level != "ok") for finding in findings)
    return {finding.subject: finding.level for finding in findings}


def test_what_the_kernel_could_do_is_a_hint_with_its_command(tmp_path: Path) -> None:
    files = {
        "proc__sys__kernel__randomize_va_space": "0",
        "sys__kernel__mm__transparent_hugepage__enabled": "[always] never",
    }
    assert levels(machine(tmp_path, **files)) == {"isolation": "hint", "addresses": "warning", "pages": "hint"}
    (isolation, *_) = fitness.judge_tuning(tmp_path)
    assert "isolcpus=4-7" in isolation.remedy


def test_a_tuned_machine_is_well(tmp_path: Path) -> None:
    files = {
        "proc__sys__kernel__randomize_va_space": "2",
        "sys__kernel__mm__transparent_hugepage__enabled": "always [madvise] never",
        "sys__devices__system__cpu__nohz_full": "6-7",
        "proc__irq__24__smp_affinity_list": "0-5",
    }
    found = levels(machine(tmp_path, isolated="6-7", **files))
    assert found == {"isolation": "ok", "interrupts": "ok", "addresses": "ok", "pages": "ok"}


def test_interrupts_on_isolated_cpus_are_named_with_how_to_move_them(tmp_path: Path) -> None:
    root = machine(tmp_path, isolated="6-7", proc__irq__24__smp_affinity_list="0-7")
    finding = {one.subject: one for one in fitness.judge_tuning(root)}["interrupts"]
    assert finding.level == "warning"
    assert "echo 0-5" in finding.remedy


def test_an_ordinary_machine_without_these_files_has_nothing_to_say(tmp_path: Path) -> None:
    assert levels(tmp_path) == {}
