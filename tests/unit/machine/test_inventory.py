"""What is built into a machine, from the files of a scripted one."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from paceline.core.environment import Disk, Inventory, MemoryModule, Nic, PciCard
from paceline.machine.inventory import describe_inventory, firmware_of, parts

BRIDGE, GPU, CARD, NVME = "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


def module(size: int, speed: int, texts: bytes) -> bytes:
    """A structure of type 17: slot, kind, speed and the number of the part."""
    body = bytearray(0x28)
    body[0], body[1] = 17, len(body)
    struct.pack_into("<H", body, 12, size)
    body[0x10], body[0x12], body[0x1A] = 1, 0x22, 2
    struct.pack_into("<H", body, 0x15, speed)
    struct.pack_into("<I", body, 0x1C, 128 * 1024)
    return bytes(body) + texts + b"\0\0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    files = {
        "sys/class/dmi/id/sys_vendor": "Acme",
        "sys/class/dmi/id/product_name": "Node 8",
        "sys/class/dmi/id/bios_version": "1.2",
        "sys/class/dmi/id/bios_date": "01/02/2026",
        "sys/block/loop0/size": "100",
        f"sys/devices/pci0000:00/{BRIDGE}/class": "0x060400",
    }
    for address, kind, width in ((GPU, "0x030200", 16), (CARD, "0x020000", 8), (NVME, "0x010802", 4)):
        files |= {
            f"sys/devices/pci0000:00/{BRIDGE}/{address}/{name}": text
            for name, text in {
                "class": kind,
                "vendor": "0x10de",
                "device": "0x2335",
                "numa_node": "-1" if address == NVME else "1",
                "current_link_width": str(width),
                "max_link_width": "16",
                "current_link_speed": "2.5 GT/s PCIe",
                "max_link_speed": "32.0 GT/s PCIe",
            }.items()
        }
    card, nvme = (f"sys/devices/pci0000:00/{BRIDGE}/{address}" for address in (CARD, NVME))
    files |= {
        f"{card}/net/eth0/speed": "100000",
        f"{card}/net/eth0/operstate": "up",
        f"{card}/infiniband/mlx5_0/fw_ver": "28.39.1002",
        f"{card}/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        f"{card}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        f"{card}/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        f"{nvme}/nvme/nvme0/model": "Fast  Disk",
        f"{nvme}/nvme/nvme0/firmware_rev": "GDC5",
        f"{nvme}/nvme/nvme0/nvme0n1/size": "2048",
        "sys/bus/pci/drivers/mlx5_core/new_id": "",
        "sys/devices/virtual/net/lo/speed": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    links = {
        "sys/class/net/eth0": f"{card}/net/eth0",
        "sys/class/net/lo": "sys/devices/virtual/net/lo",
        f"{card}/net/eth0/device": card,
        f"{card}/driver": "sys/bus/pci/drivers/mlx5_core",
        "sys/class/infiniband/mlx5_0": f"{card}/infiniband/mlx5_0",
        f"{card}/infiniband/mlx5_0/device": card,
        "sys/block/nvme0n1": f"{nvme}/nvme/nvme0/nvme0n1",
        f"{nvme}/nvme/nvme0/nvme0n1/device": f"{nvme}/nvme/nvme0",
        **{
            f"sys/bus/pci/devices/{address}": f"sys/devices/pci0000:00/{BRIDGE}/{address}"
            for address in (GPU, CARD, NVME)
        },
        f"sys/bus/pci/devices/{BRIDGE}": f"sys/devices/pci0000:00/{BRIDGE}",
    }
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / target)
    table = module(0, 0, b"DIMM A0\0none") + module(0x7FFF, 4800, b"DIMM A1\0M321")
    (tmp_path / "sys/firmware/dmi/tables").mkdir(parents=True)
    (tmp_path / "sys/firmware/dmi/tables/DMI").write_bytes(table + module(64, 3200, b"DIMM B1\0M40"))
    return tmp_path


def test_everything_is_listed(machine: Path) -> None:
    seen = describe_inventory(machine, lambda name: f"of {name}")
    assert (seen.board, seen.bios) == ("Acme Node 8", "1.2 01/02/2026")
    assert seen.nics == [
        Nic(name="eth0", driver="mlx5_core", firmware="of eth0", speed="100000 Mb/s", state="up", pci=CARD),
        Nic(
            name="mlx5_0/1",
            driver="mlx5_core InfiniBand",
            firmware="28.39.1002",
            speed="400 Gb/sec (4X NDR)",
            state="active",
            pci=CARD,
        ),
    ]
    assert seen.disks == [Disk(name="nvme0n1", model="Fast Disk", size=1 << 20, firmware="GDC5", pci=NVME)]
    gpu, card, disk = seen.cards
    assert gpu == PciCard(
        address=GPU,
        kind="gpu",
        device="0x10de:0x2335",
        parent=BRIDGE,
        numa_node=1,
        width=16,
        width_max=16,
        speed="2.5 GT/s PCIe",
        speed_max="32.0 GT/s PCIe",
    )
    assert (card.kind, card.driver, card.width) == ("network", "mlx5_core", 8)
    assert (disk.kind, disk.numa_node) == ("storage", None)
    assert seen.modules == [
        MemoryModule(slot="DIMM A1", size=128 << 30, kind="DDR5", speed=4800, part="M321"),
        MemoryModule(slot="DIMM B1", size=64 << 20, kind="DDR5", speed=3200, part="M40"),
    ]


def test_its_facts_are_what_machines_of_a_kind_share(machine: Path) -> None:
    assert describe_inventory(machine, lambda _name: "22.1").facts == {
        "board": "Acme Node 8",
        "BIOS": "1.2 01/02/2026",
        "NICs": "1 x mlx5_core InfiniBand firmware 28.39.1002 400 Gb/sec (4X NDR), "
        "1 x mlx5_core firmware 22.1 100000 Mb/s",
        "disks": "1 x Fast Disk firmware GDC5",
        "PCIe links": "1 x gpu x16 32.0 GT/s PCIe, 1 x network x8 32.0 GT/s PCIe, 1 x storage x4 32.0 GT/s PCIe",
        "memory modules": "1 x DDR5 128 GiB M321, 1 x DDR5 64 MiB M40",
    }


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert describe_inventory(tmp_path) == Inventory()
    assert Inventory().facts == {}


def test_a_broken_table_of_the_firmware_gives_what_comes_before(machine: Path) -> None:
    path = machine / "sys/firmware/dmi/tables/DMI"
    path.write_bytes(module(64, 3200, b"DIMM B1\0M40") + b"\x11\x02")
    assert [one.slot for one in describe_inventory(machine).modules or ()] == ["DIMM B1"]


def test_any_user_may_ask_the_driver_of_a_real_interface() -> None:
    for name in os.listdir("/sys/class/net"):  # noqa: PTH208
        try:
            firmware = firmware_of(name)
        except OSError:  # no such driver
            continue
        assert firmware is None or firmware.isprintable()


def test_the_parts_that_a_suite_can_name(machine: Path) -> None:
    usable = min(os.sched_getaffinity(0))
    for node, cpus in {0: str(usable), 1: f"{usable}-4000", 2: "", 3: "5000"}.items():
        folder = machine / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    assert parts(machine) == {"numa_nodes": [0, 1], "rdma_devices": ["mlx5_0"]}
