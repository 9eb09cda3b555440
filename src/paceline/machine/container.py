"""Whether this process runs in a container or a virtual machine, from the traces these leave."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from paceline.core.probe import ROOT, attempt, parse_size, read_int, read_table, read_text

_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest whole page


def cgroup_folders(root: Path, controller: str) -> list[tuple[Path, bool]]:
    """Folders that bind this process, innermost first, each with whether it is of version 2.

    Inside a container the path may be one that only the host can see; then its missing folders are passed over
    and the mount's own root is what binds.
    """
    mount = root / "sys/fs/cgroup"
    folders: list[tuple[Path, bool]] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases, second = [mount, mount / "unified"], True
        elif controller in controllers.split(","):
            bases, second = [mount / controllers, mount / controller], False
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for base in bases:
            folders += [(base / part, second) for part in (inner, *inner.parents) if (base / part).is_dir()]
    return list(dict.fromkeys(folders))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time per period, the tightest of all enclosing groups."""
    quotas: list[float] = []
    for folder, second in cgroup_folders(root, "cpu"):
        if second:
            words = (read_text(folder / "cpu.max") or "").split()
            if len(words) == 2 and words[0] != "max":
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
            if quota and period and quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def cpu_stopped(root: Path = ROOT) -> float | None:
    """Seconds for which the innermost group was stopped because its quota was spent."""
    for folder, _ in cgroup_folders(root, "cpu"):
        table = read_table(folder / "cpu.stat")
        if "throttled_usec" in table:
            return int(table["throttled_usec"]) / 1e6
        if "throttled_time" in table:
            return int(table["throttled_time"]) / 1e9
    return None


def memory_limit(root: Path = ROOT) -> tuple[int, int | None] | None:
    """The tightest limit in bytes and how much of it is taken beyond reclaimable file pages; None for no limit."""
    tightest: tuple[int, int | None] | None = None
    for folder, second in cgroup_folders(root, "memory"):
        limit = read_int(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        if limit is None or limit >= _UNLIMITED or (tightest and tightest[0] <= limit):
            continue
        tightest = (limit, memory_used(folder, second=second))
    return tightest


def memory_used(folder: Path, *, second: bool) -> int | None:
    """Bytes that a control group takes beyond reclaimable file pages; `second` is whether it is of version 2."""
    used = read_int(folder / ("memory.current" if second else "memory.usage_in_bytes"))
    table = read_table(folder / "memory.stat")
    cached = int(table.get("inactive_file") or table.get("total_inactive_file") or 0)
    return max(0, used - cached) if used is not None else None


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that the machine can still hand out, whatever the control group allows."""
    return attempt(lambda: parse_size(read_table(root / "proc/meminfo", limit=256)["MemAvailable"]))


def free_memory(root: Path = ROOT) -> int | None:
    """Bytes that processes here can still take: of the machine, or of the control group if that is less."""
    available = available_memory(root)
    limit = memory_limit(root)
    left = [limit[0] - limit[1]] if limit is not None and limit[1] is not None else []
    return min([*left, *([available] if available is not None else [])], default=None)


def memory_kills(root: Path = ROOT) -> int | None:
    """Processes of the innermost group that the kernel has killed for want of memory, its own or the machine's."""
    for folder, second in cgroup_folders(root, "memory"):
        if (count := memory_kills_in(folder, second=second)) is not None:
            return count
    return None


def memory_kills_in(folder: Path, *, second: bool) -> int | None:
    """The same of one group."""
    count = read_table(folder / ("memory.events" if second else "memory.oom_control")).get("oom_kill", "")
    return int(count) if count.isdecimal() else None


_VENDORS = {
    "qemu": "kvm",
    "kvm": "kvm",
    "amazon ec2": "kvm",
    "google": "kvm",
    "openstack": "kvm",
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "xen": "xen",
    "parallels": "parallels",
    "bochs": "kvm",
}

_RUNTIMES = frozenset(("lxc", "lxc-libvirt", "docker", "podman", "oci", "systemd-nspawn", "rkt", "proot"))


def container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """docker, podman, kubernetes, lxc, another runtime's own name, or none."""
    groups = (read_text(root / "proc/1/cgroup") or "") + (read_text(root / "proc/self/cgroup") or "")
    named = read_text(root / "run/systemd/container") or environ.get("container", "")
    if environ.get("KUBERNETES_SERVICE_HOST") or "kubepods" in groups:
        return "kubernetes"
    if (root / "run/.containerenv").exists() or "libpod" in groups:
        return "podman"
    if named in _RUNTIMES:
        return "lxc" if named.startswith("lxc") else named
    if re.search(r"/docker[/-]", groups):
        return "docker"
    # An image that was unpacked onto a disk of its own keeps the mark, but is not a container any more.
    if (root / ".dockerenv").exists() and not _root_is_a_disk(root):
        return "docker"
    return "lxc" if re.search(r"/lxc[/.]", groups) else "none"


def virtualization(root: Path = ROOT, release: str | None = None, version: str | None = None) -> str:
    """kvm, firecracker, gvisor, hyper-v, vmware, xen, ..., wsl, or none; "vm" for an unknown hypervisor."""
    release = platform.release() if release is None else release
    version = platform.version() if version is None else version
    if release == "4.4.0" and "Sun Jan 10 15:06:54 PST 2016" in version:  # what gVisor always says
        return "gvisor"
    if "microsoft" in release.lower():
        return "wsl"
    identity = root / "sys/class/dmi/id"
    words = " ".join(read_text(identity / name) or "" for name in ("sys_vendor", "product_name", "bios_vendor")).lower()
    if "microsoft" in words and "virtual machine" in words:
        return "hyper-v"
    if "amazon ec2" in words and ".metal" in words:
        return "none"
    if hypervisor := next((kind for mark, kind in _VENDORS.items() if mark in words), None):
        return hypervisor
    command = read_text(root / "proc/cmdline") or ""
    cpuinfo = read_text(root / "proc/cpuinfo", limit=8192) or ""
    tree = read_text(root / "proc/device-tree/compatible") or ""
    guest = bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)) or "dummy-virt" in tree
    if "firecracker" in command or (guest and not words.strip() and "reboot=k panic=1" in command):
        return "firecracker"
    return "vm" if guest else "none"


def _root_is_a_disk(root: Path) -> bool:
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4:5] == ["/"] and len(after.split()) > 1:
            return bool(re.match(r"/dev/(vd|sd|xvd|nvme|root|pmem)", after.split()[1]))
    return False
