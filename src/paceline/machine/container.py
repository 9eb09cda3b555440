"""Whether this process runs in a container or a virtual machine, from the traces these leave."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from paceline.core.probe import ROOT, read_text

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
    # An image that was unpacked onto a disk of its own keeps the mark, but is no container any more.
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
    if found := next((kind for mark, kind in _VENDORS.items() if mark in words), None):
        return found
    command = read_text(root / "proc/cmdline") or ""
    guest = _is_guest(root)
    if "firecracker" in command or (guest and not words.strip() and "reboot=k panic=1" in command):
        return "firecracker"
    return "vm" if guest else "none"


def _is_guest(root: Path) -> bool:
    cpuinfo = read_text(root / "proc/cpuinfo", limit=8192) or ""
    tree = read_text(root / "proc/device-tree/compatible") or ""
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)) or "dummy-virt" in tree


def _root_is_a_disk(root: Path) -> bool:
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4:5] == ["/"] and len(after.split()) > 1:
            return bool(re.match(r"/dev/(vd|sd|xvd|nvme|root|pmem)", after.split()[1]))
    return False
