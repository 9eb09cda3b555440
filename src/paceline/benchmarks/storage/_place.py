"""Where a disk is measured: in a file that has no name, or on a raw device that somebody named.

A file without a name is gone when the last process that holds it is, however that process ends: nothing is left
behind after a crash or a kill, and nothing has to be swept up later.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.quantity import show_size

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
CHUNK = 4 * 1024**2
SPARE = 64 * 1024**2  # left free, so that nobody else runs out of space meanwhile
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Place:
    """Something that fio can open, and what it is."""

    path: str
    size: int
    what: str
    file_system: str | None = None


@contextmanager
def scratch_file(folder: Path, size: int) -> Iterator[Place]:
    """A file without a name in a folder, full of random bytes; refused in memory and where there is no room."""
    check_folder(folder)
    kind = file_system_of(folder)
    if kind in IN_MEMORY:
        raise Unsupported(f"'{folder}' is {kind}, which is memory and no disk: name a folder on a disk with --folder")
    _check_room(folder, size)
    descriptor = _nameless(folder)
    try:
        _fill(descriptor, size, folder)
        yield Place(f"/proc/{os.getpid()}/fd/{descriptor}", size, f"a file in {folder}", kind)
    finally:
        os.close(descriptor)


def check_folder(folder: Path) -> None:
    """Refuse what is not a folder."""
    if not folder.is_dir():
        code, what = ("not-a-folder", "is not a folder") if folder.exists() else ("missing-folder", "does not exist")
        message = f"folder '{folder}' {what}: name an existing folder on the disk to measure"
        raise InputError(code, message, key="folder", value=str(folder))


def check_raw_device(name: str) -> None:
    """Refuse what is not a block device, or is in use."""
    path = Path(name).resolve()
    try:
        is_block = stat.S_ISBLK(path.stat().st_mode)
    except OSError as error:
        message = f"raw_device '{name}' cannot be inspected: {error.strerror}; lsblk lists devices"
        raise InputError("missing-device", message, key="raw_device", value=name) from None
    if not is_block:
        message = f"raw_device '{name}' is not a block device: a file system is measured with --folder"
        raise InputError("not-a-block-device", message, key="raw_device", value=name)
    used = _use_of(path)
    if used:
        message = f"raw_device '{name}' is in use ({used}): only a device that nothing uses is measured"
        raise InputError("device-in-use", message, key="raw_device", value=name)


@contextmanager
def raw_device(name: str, size: int, *, writes: bool) -> Iterator[Place]:
    """A block device that nothing uses, held so that nothing can mount it meanwhile."""
    check_raw_device(name)
    path = Path(name).resolve()
    try:
        # The kernel refuses this where a file system, a volume or an array holds the device or a part of it.
        descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_EXCL)
    except OSError as error:
        message = f"raw_device '{name}' cannot be opened for itself alone: {error.strerror}"
        raise InputError("unreadable-device", message, key="raw_device", value=name) from None
    try:
        whole = os.lseek(descriptor, 0, os.SEEK_END)
        if whole < size:
            message = f"raw_device '{name}' has {show_size(whole)}, less than --size {show_size(size)}"
            raise InputError("device-too-small", message, key="size", value=size)
        yield Place(str(path), size, f"the first {show_size(size)} of {path}")
    finally:
        os.close(descriptor)


def default_folder() -> Path:
    """A folder of ours in the user's cache, or else among temporary files."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "paceline" / "disk"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter: a user without a home
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def file_system_of(folder: Path, mounts: str | None = None) -> str | None:
    """The kind of file system that a folder lies on; `mounts` is what the kernel says of them."""
    found: tuple[int, str] | None = None
    where = folder.resolve()
    for point, kind, _ in _mounts(mounts):
        # Of mounts on the same point the last one is seen.
        if (where == point or point in where.parents) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), kind
    return found[1] if found else None


def allows_direct(path: str) -> bool:
    """Whether the file system lets a program go past the page cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _check_room(folder: Path, size: int) -> None:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < size + SPARE:
        raise Unsupported(
            f"'{folder}' has {show_size(free)} free; a file of {show_size(size)} and {show_size(SPARE)} to spare do "
            "not fit: use a smaller --size or another --folder"
        )


def _nameless(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = f"folder '{folder}' cannot be written to ({error.strerror}): name another with --folder"
            raise InputError("folder-not-writable", message, key="folder", value=str(folder)) from None
    # File systems without such files: it has a name for a moment.
    try:
        descriptor, name = tempfile.mkstemp(prefix="paceline-disk-", dir=folder)
    except OSError as error:
        raise Unsupported(f"no file can be made in '{folder}' ({error.strerror}): name another with --folder") from None
    Path(name).unlink()
    return descriptor


def _fill(descriptor: int, size: int, folder: Path) -> None:
    """Random bytes, so that a disk that compresses or deduplicates has real work."""
    try:
        for offset in range(0, size, CHUNK):
            data = memoryview(os.urandom(min(CHUNK, size - offset)))
            while data:
                data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _FULL:
            raise Unsupported(
                f"'{folder}' has no room for {show_size(size)} ({error.strerror}): use a smaller --size"
            ) from None
        if error.errno == errno.EFBIG:
            raise Unsupported(
                f"a file of {show_size(size)} is larger than this process or '{folder}' may have ({error.strerror}): "
                "use a smaller --size, or raise the limit (ulimit -f)"
            ) from None
        raise CaseError(
            f"'{folder}' cannot be written to ({error.strerror}): look for a broken disk (dmesg), or use --folder"
        ) from None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _use_of(device: Path) -> str:
    """What the device or a part of it is used for; empty for nothing that can be seen."""
    names = {device, *(Path("/dev") / part.parent.name for part in _parts(device))}
    for point, _, source in _mounts():
        if Path(source).resolve() in names:
            return f"{source} is mounted on {point}"
    try:
        swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    except OSError:
        swaps = []
    return next((f"{line.split()[0]} is swap" for line in swaps if Path(line.split()[0]).resolve() in names), "")


def _parts(device: Path) -> Iterator[Path]:
    yield from Path("/sys/class/block", device.name).glob("*/partition")


def _mounts(text: str | None = None) -> Iterator[tuple[Path, str, str]]:
    """Mount point, kind and source of every mount."""
    if text is None:
        try:
            text = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return
    for line in text.splitlines():
        place, separator, kind = line.partition(" - ")
        places, kinds = place.split(), kind.split()
        if separator and len(places) >= 5 and len(kinds) >= 2:
            # Spaces and the like are written as octal numbers.
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), places[4])
            yield Path(point), kinds[0], kinds[1]
