"""The whole environment: private things stay out, nothing heavy comes in, and one failure stays alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.core.environment import Environment
from paceline.machine import container, describe, software

Tree = Callable[[dict[str, str]], Path]


def test_secrets_and_homes_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {
        "HF_TOKEN": "hf_hidden1",
        "TORCH_API_KEY": "hidden2",
        "NCCL_SECRET": "hidden3",
        "PYTORCH_PASSWORD": "hidden4",
        "AWS_ACCESS_KEY_ID": "hidden5",
        "PATH": f"/usr/bin:{'/home/person7'}/hidden6",
    }
    shown = {
        "HOME": "/home/person7",
        "TORCH_HOME": "/home/person7/.cache/torch",
        "NCCL_TOPO_FILE": "file:///home/person7/topo.xml",
        "TORCH_EXTENSIONS_DIR": "/data:/home/person7:/tmp",
        "PYTORCH_INDEX": "https://person8:hidden7@example.org/simple?token=hidden8&x=1",
        "NCCL_DEBUG_FILE": "/home/person77/log",
        "OMP_NUM_THREADS": "4",
    }
    for name, value in (hidden | shown).items():
        monkeypatch.setenv(name, value)
    environment = describe()
    text = environment.model_dump_json()
    assert "hidden" not in text
    assert "/home/person7/" not in text
    assert "person8" not in text
    told = environment.variables
    assert told["TORCH_HOME"] == "~/.cache/torch"
    assert told["NCCL_TOPO_FILE"] == "file://~/topo.xml"
    assert told["TORCH_EXTENSIONS_DIR"] == "/data:~:/tmp"
    assert told["PYTORCH_INDEX"] == "https://example.org/simple?token=...&x=1"
    assert told["NCCL_DEBUG_FILE"] == "/home/person77/log", "somebody else's folder is another one"
    assert told["OMP_NUM_THREADS"] == "4"
    assert not set(hidden) & set(told)


def test_every_string_is_scrubbed() -> None:
    nested = {"a": ["/home/me/x", {"b": "ssh://me:pw@host/p"}], "n": 1, "none": None}
    assert software.scrub_all(nested, ["/home/me"]) == {"a": ["~/x", {"b": "ssh://host/p"}], "n": 1, "none": None}


def test_a_home_at_the_root_rewrites_nothing() -> None:
    assert "/" not in software.homes({"HOME": "/"})


def test_describe_is_quick_complete_and_light() -> None:
    code = """
import json, sys, time
from paceline.machine import describe
started = time.perf_counter()
environment = describe()
seconds = time.perf_counter() - started
print(json.dumps([seconds, "torch" in sys.modules, environment.model_dump(mode="json")]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, torch_imported, dumped = json.loads(done.stdout)
    assert not torch_imported
    assert seconds < 1.0
    assert Environment.model_validate(dumped).software.python == ".".join(map(str, sys.version_info[:3]))
    assert dumped["cpu"]["affinity"] >= 1
    assert dumped["memory"]["total"] > 0


@pytest.mark.parametrize(
    "probe",
    [
        "paceline.machine.cpu.describe_cpu",
        "paceline.machine.cpu.describe_memory",
        "paceline.machine.container.container",
        "paceline.machine.software.git",
        "paceline.machine.software.packages",
        "paceline.machine.software.shareable_variables",
        "os.getloadavg",
        "socket.gethostname",
    ],
)
def test_one_failing_probe_fails_alone(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(probe, fail)
    assert describe().software.paceline


def test_torch_build_is_read_as_text(tmp_path: Path) -> None:
    lines = "__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    (tmp_path / "version.py").write_text(lines + "raise RuntimeError('executed')\n")
    assert software.torch_build("cuda", tmp_path) == "12.8"
    assert software.torch_build("hip", tmp_path) is None
    (tmp_path / "version.py").write_text("cuda = '11.8'\n")
    assert software.torch_build("cuda", tmp_path) == "11.8"


def test_packages_are_those_installed() -> None:
    found = software.packages(["pydantic", "no-such-package"])
    assert "pydantic" in found
    assert "no-such-package" not in found


def test_nvidia_libraries_are_found_by_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia_cudnn_cu12-9.1.0.70.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.1.0.70\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert software.packages([])["nvidia-cudnn-cu12"] == "9.1.0.70"


def test_git(tmp_path: Path) -> None:
    def run(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    assert software.git(tmp_path) is None
    run("init")
    assert software.git(tmp_path) is None, "a repository without a commit"
    (tmp_path / "file").write_text("one")
    run("add", "file")
    run("commit", "-m", "first")
    clean = software.git(tmp_path)
    assert clean is not None and clean.dirty is False and len(clean.commit) == 40
    (tmp_path / "file").write_text("two")
    changed = software.git(tmp_path)
    assert changed is not None and changed.dirty is True


def test_git_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 5\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = time.perf_counter()
    assert software.git(tmp_path) is None
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, "none"),
        ({".dockerenv": ""}, {}, "docker"),
        ({".dockerenv": "", "proc/self/mountinfo": "29 1 254:0 / / rw - ext4 /dev/vda rw\n"}, {}, "none"),
        ({".dockerenv": "", "proc/self/mountinfo": "29 1 0:5 / / rw - overlay overlay rw\n"}, {}, "docker"),
        ({"proc/1/cgroup": "0::/docker/abc\n"}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"proc/self/cgroup": "0::/kubepods/pod1\n", ".dockerenv": ""}, {}, "kubernetes"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc-libvirt"}, "lxc"),
        ({}, {"container": "my private name"}, "none"),
    ],
)
def test_containers(files: dict[str, str], environ: dict[str, str], expected: str, tree: Tree) -> None:
    assert container.container(tree(files), environ) == expected


@pytest.mark.parametrize(
    ("files", "release", "expected"),
    [
        ({}, "6.1", "none"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, "6.1", "kvm"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "p5.48xlarge"}, "6.1", "kvm"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c7g.metal"}, "6.1", "none"),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc."}, "6.1", "none"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n"}, "6.1", "vm"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n", "proc/cmdline": "reboot=k panic=1"}, "6.1", "firecracker"),
        ({}, "5.15-microsoft-standard-WSL2", "wsl"),
    ],
)
def test_virtual_machines(files: dict[str, str], release: str, expected: str, tree: Tree) -> None:
    assert container.virtualization(tree(files), release, "") == expected


def test_gvisor_always_says_the_same(tree: Tree) -> None:
    assert container.virtualization(tree({}), "4.4.0", "#1 SMP Sun Jan 10 15:06:54 PST 2016") == "gvisor"
