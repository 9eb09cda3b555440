"""A file without a name leaves nothing behind; memory, full disks and devices in use are refused."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from paceline.benchmarks.storage import disk
from paceline.core.errors import CaseError, InputError, Unsupported
from support.refused import refused

MIB = 1024**2
SHARED_MEMORY = Path("/dev/shm")
in_memory = pytest.mark.skipif(
    disk.file_system_of(SHARED_MEMORY) != "tmpfs", reason="/dev/shm is no tmpfs here: mount one there"
)


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if disk.file_system_of(tmp_path) in disk.IN_MEMORY:
        pytest.skip("temporary files are in memory here: set TMPDIR to a folder on a disk")
    return tmp_path


def test_the_file_has_no_name_but_can_be_opened_and_is_full_of_data(on_disk: Path) -> None:
    with disk.scratch_file(on_disk, 5 * MIB) as place:
        assert list(on_disk.iterdir()) == []
        data = Path(place.path).read_bytes()
        assert len(data) == place.size == 5 * MIB
        assert len(set(data[-4096:])) > 200
    assert not Path(place.path).exists()


def test_a_file_system_without_nameless_files_has_the_name_for_a_moment_only(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def without(path: os.PathLike[str] | str, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", without)
    with disk.scratch_file(on_disk, MIB) as place:
        assert list(on_disk.iterdir()) == []
        assert len(Path(place.path).read_bytes()) == MIB


@in_memory
def test_memory_is_no_disk() -> None:
    with pytest.raises(Unsupported, match="tmpfs, which is memory"), disk.scratch_file(SHARED_MEMORY, MIB):
        pass


def test_too_little_room_is_told_in_numbers(on_disk: Path) -> None:
    words = r"has .* free; a file of .* TiB and 64 MiB to spare do not fit"
    with pytest.raises(Unsupported, match=words), disk.scratch_file(on_disk, 2**60):
        pass


def test_room_that_runs_out_meanwhile_is_no_crash(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unsupported, match="no room for 1 MiB"), disk.scratch_file(on_disk, MIB):
        pass
    assert list(on_disk.iterdir()) == []


def test_a_limit_on_files_says_how_to_raise_it(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_descriptor: int, _data: object) -> int:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "write", too_large)
    with pytest.raises(Unsupported, match="ulimit -f"), disk.scratch_file(on_disk, MIB):
        pass


def test_a_disk_that_fails_is_told_without_a_traceback(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int, _data: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(CaseError, match=r"Input/output error.*dmesg"), disk.scratch_file(on_disk, MIB):
        pass


def test_a_user_without_a_home_has_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(user: int) -> Path:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", homeless)
    assert disk.default_folder() == Path(tempfile.gettempdir())


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with refused("missing-folder", key="folder"), disk.scratch_file(tmp_path / "x", MIB):
        pass


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("/dev/null", "not-a-block-device"),
        ("/etc/hostname", "not-a-block-device"),
        ("/dev/not-there", "missing-device"),
    ],
)
def test_what_is_not_a_block_device_is_refused(name: str, code: str) -> None:
    with refused(code, key="raw_device", value=name), disk.raw_device(name, MIB, writes=True):
        pass


def test_the_device_of_the_root_is_in_use() -> None:
    root = Path("/").stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(root)}:{os.minor(root)}")
    device = Path("/dev") / link.resolve().name
    if not link.exists() or not device.is_block_device():
        pytest.skip("the root is on no block device that can be seen here, as in most containers")
    with pytest.raises(InputError) as caught, disk.raw_device(str(device), MIB, writes=False):
        pass
    assert caught.value.code in ("device-in-use", "unreadable-device")  # without its mount, only the kernel knows


def test_the_innermost_and_last_mount_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        SimpleNamespace(device="/dev/sda1", mountpoint="/", fstype="ext4"),
        SimpleNamespace(device="server:/x", mountpoint="/mnt", fstype="nfs4"),
        SimpleNamespace(device="/dev/sdb", mountpoint="/mnt", fstype="xfs"),
        SimpleNamespace(device="tmpfs", mountpoint="/mnt/a b", fstype="tmpfs"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert disk.file_system_of(Path("/home")) == "ext4"
    assert disk.file_system_of(Path("/mnt/c")) == "xfs"
    assert disk.file_system_of(Path("/mnt/a b/c")) == "tmpfs"
    assert disk.file_system_of(Path("/mntx")) == "ext4"
    mounts.clear()
    assert disk.file_system_of(Path("/mntx")) is None


def test_the_default_folder_is_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk.default_folder() == tmp_path / "paceline" / "disk"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert disk.default_folder().is_dir()
