"""What is built into this machine, from /sys alone: board, cards, networks, disks and modules of memory."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from paceline.core.environment import Disk, Inventory, MemoryModule, Nic, PciCard
from paceline.core.probe import ROOT, attempt, read_cpu_list, read_int, read_text
from paceline.machine.cpu import describe_cpu

_KINDS = {"0x01": "storage", "0x02": "network", "0x03": "gpu", "0x12": "gpu"}  # by the class of a PCI device
_LINK = {
    "width": "current_link_width",
    "width_max": "max_link_width",
    "speed": "current_link_speed",
    "speed_max": "max_link_speed",
}
_SECTOR = 512  # bytes, whatever the disk's own are
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")
_ETHTOOL, _DRIVER_INFO = 0x8946, struct.pack("I", 3) + bytes(192)
_FIRMWARE = slice(4 + 32 + 32, 4 + 32 + 32 + 32)  # after the name and the version of the driver
_MODULE, _KINDS_OF_MEMORY = 17, {0x18: "DDR3", 0x1A: "DDR4", 0x22: "DDR5", 0x1E: "LPDDR4", 0x23: "LPDDR5"}


def firmware_of(interface: str) -> str | None:
    """What the driver of an interface says of its firmware; anybody may ask."""
    answer = array("B", _DRIVER_INFO)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _ETHTOOL, struct.pack("16sP16x", interface.encode(), answer.buffer_info()[0]))
    return answer.tobytes()[_FIRMWARE].split(b"\0")[0].decode(errors="replace").strip() or None


def describe_inventory(root: Path = ROOT, firmware: Callable[[str], str | None] = firmware_of) -> Inventory:
    """The inventory of the machine whose /sys lies below `root`."""
    dmi = root / "sys/class/dmi/id"

    def said(*names: str) -> str | None:
        return " ".join(text for name in names if (text := read_text(dmi / name))) or None

    return Inventory(
        board=said("sys_vendor", "product_name"),
        bios=said("bios_vendor", "bios_version", "bios_date"),
        nics=attempt(lambda: [*_nics(root, firmware), *_ports(root)]) or [],
        disks=attempt(lambda: list(_disks(root))) or [],
        cards=attempt(lambda: list(_cards(root))) or [],
        modules=attempt(lambda: list(_modules((root / "sys/firmware/dmi/tables/DMI").read_bytes()))),
    )


def _nics(root: Path, firmware: Callable[[str], str | None]) -> Iterator[Nic]:
    for path in sorted(root.glob("sys/class/net/*/device")):
        name, speed = path.parent.name, read_int(path.parent / "speed")
        yield Nic(
            name=name,
            driver=_link(path / "driver"),
            firmware=attempt(partial(firmware, name)),
            speed=f"{speed} Mb/s" if speed and speed > 0 else None,
            state=read_text(path.parent / "operstate"),
            pci=_pci(path),
        )


def _ports(root: Path) -> Iterator[Nic]:
    for path in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        card = path.parents[1]
        yield Nic(
            name=f"{card.name}/{path.name}",
            driver=" ".join(filter(None, (_link(card / "device/driver"), read_text(path / "link_layer")))) or None,
            firmware=read_text(card / "fw_ver"),
            speed=read_text(path / "rate"),
            state=(read_text(path / "state") or "").partition(": ")[2].lower() or None,
            pci=_pci(card / "device"),
        )


def _disks(root: Path) -> Iterator[Disk]:
    for path in sorted(root.glob("sys/block/*")):
        if not path.name.startswith(_NOT_DISKS):
            device, sectors = path / "device", read_int(path / "size")
            yield Disk(
                name=path.name,
                model=" ".join((read_text(device / "model") or "").split()) or None,
                size=sectors * _SECTOR if sectors else None,
                firmware=read_text(device / "firmware_rev") or read_text(device / "rev"),
                pci=_pci(device),
            )


def _cards(root: Path) -> Iterator[PciCard]:
    for path in sorted(root.glob("sys/bus/pci/devices/*")):
        kind = _KINDS.get((read_text(path / "class") or "")[:4])
        if kind is not None:
            above, node = path.resolve().parent.name, read_int(path / "numa_node")
            link = {
                name: text
                for name, file in _LINK.items()
                if (text := read_text(path / file)) and text not in ("0", "255") and not text.startswith("Unknown")
            }
            yield PciCard(
                address=path.name,
                kind=kind,
                device=f"{read_text(path / 'vendor')}:{read_text(path / 'device')}",
                driver=_link(path / "driver"),
                parent=above if above.count(":") == 2 else None,
                numa_node=node if node is not None and node >= 0 else None,
                **link,
            )


def _modules(table: bytes) -> Iterator[MemoryModule]:
    """The filled slots of the firmware's table: structures of a type and a length, each followed by its texts."""
    place = 0
    while place + 4 <= len(table):
        kind, length = table[place], table[place + 1]
        body, end = table[place : place + length], table.find(b"\0\0", place + length)
        if length < 4 or end < 0:
            return
        texts = [text.decode(errors="replace").strip() for text in table[place + length : end].split(b"\0")]
        size = int.from_bytes(body[12:14], "little") if kind == _MODULE and length >= 0x1B else 0
        if size not in (0, 0xFFFF):
            large = int.from_bytes(body[0x1C:0x20], "little") if size == 0x7FFF else None
            unit = 1024 if size & 0x8000 else 1024**2
            yield MemoryModule(
                slot=_text(texts, body[0x10]),
                size=large * 1024**2 if large is not None else (size & 0x7FFF) * unit,
                kind=_KINDS_OF_MEMORY.get(body[0x12]),
                speed=int.from_bytes(body[0x15:0x17], "little") or None,
                part=_text(texts, body[0x1A]),
            )
        place = end + 2


def _text(texts: list[str], number: int) -> str | None:
    return texts[number - 1] or None if 1 <= number <= len(texts) else None


def _link(path: Path) -> str | None:
    return path.resolve().name if path.exists() else None


def _pci(path: Path) -> str | None:
    """The address of the card that a device belongs to."""
    parts = [part for part in path.resolve().parts if part.count(":") == 2 and "." in part]
    return parts[-1] if parts else None


def parts(root: Path = ROOT) -> dict[str, list[int | str]]:
    """What a parameter of a suite can name here, or `each` stand for."""
    nodes = [(node.index, read_cpu_list(node.cpus or "")) for node in describe_cpu(root).numa_nodes]
    usable = attempt(lambda: os.sched_getaffinity(0)) or set()
    return {
        "numa_nodes": [index for index, cpus in nodes if cpus & usable],
        "rdma_devices": sorted(path.name for path in root.glob("sys/class/infiniband/*")),
    }
