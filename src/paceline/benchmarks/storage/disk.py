"""Reads and writes of a disk through fio: bandwidth, operations per second, latency."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import BANDWIDTH, TIME, MicroParameters, join_words, rate_metric, time_metric
from paceline.benchmarks._micro.session import MicroSession, TimedPoint
from paceline.benchmarks._micro.tools import ToolError, find_tool, run_tool
from paceline.benchmarks.storage._fio import RW, WITHOUT_QUEUE, FioJob, FioWindow, Side, Window, parse, pooled_latency
from paceline.core.benchmark import Benchmark, Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.files import cache_directory
from paceline.core.metric import Merge
from paceline.core.network import FromNetwork
from paceline.core.probe import read_text
from paceline.core.quantity import Duration, Fraction, Size, show_size
from paceline.core.record import Measurement, Record, RecordWarning, Result
from paceline.core.subject import Alias, At, Description, ShownCeiling, key_word
from paceline.devices.cpu import CpuDevice

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
CHUNK = 4 * 1024**2
SPARE = 64 * 1024**2  # left free, so that nobody else runs out of space meanwhile


@dataclass(frozen=True)
class DiskTarget:
    """Something that fio can open, and what it is."""

    path: str
    size: int
    what: str
    file_system: str | None = None


@contextmanager
def scratch_file(folder: Path, size: int) -> Iterator[DiskTarget]:
    """A file without a name in a folder, full of random bytes; refused in memory and where there is no room."""
    check_folder(folder)
    kind = file_system_of(folder)
    if kind in IN_MEMORY:
        raise Unsupported(f"'{folder}' is {kind}, which is memory, not a disk: name a folder on a disk with --folder")
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < size + SPARE:
        raise Unsupported(
            f"'{folder}' has {show_size(free)} free; a file of {show_size(size)} and {show_size(SPARE)} to spare do "
            "not fit: use a smaller --size or another --folder"
        )
    descriptor = _open_nameless(folder)
    try:
        _fill(descriptor, size, folder)
        yield DiskTarget(f"/proc/{os.getpid()}/fd/{descriptor}", size, f"a file in {folder}", kind)
    finally:
        os.close(descriptor)


def check_folder(folder: Path) -> None:
    """Refuse what is not a folder."""
    if not folder.is_dir():
        code, what = ("not-a-folder", "is not a folder") if folder.exists() else ("missing-folder", "does not exist")
        message = f"folder '{folder}' {what}: name an existing folder on the disk to measure"
        raise InputError(code, message, key="folder", value=str(folder))


def check_raw_device(name: str) -> None:
    """Refuse what is not a block device, or in use itself or by a partition of it."""
    path = Path(name).resolve()
    try:
        is_block = stat.S_ISBLK(path.stat().st_mode)
    except OSError as error:
        message = f"raw_device '{name}' cannot be inspected: {error.strerror}; lsblk lists devices"
        raise InputError("missing-device", message, key="raw_device", value=name) from None
    if not is_block:
        message = f"raw_device '{name}' is not a block device: a file system is measured with --folder"
        raise InputError("not-a-block-device", message, key="raw_device", value=name)
    partitions = Path("/sys/class/block", path.name).glob("*/partition")
    names = {path, *(Path("/dev") / part.parent.name for part in partitions)}
    mounts = psutil.disk_partitions(all=True)
    uses = [(mount.device, f"{mount.device} is mounted on {mount.mountpoint}") for mount in mounts]
    swaps = [line.split()[0] for line in (read_text(Path("/proc/swaps")) or "").splitlines()[1:]]
    uses += [(swap, f"{swap} is swap") for swap in swaps]
    use = next((words for source, words in uses if Path(source).resolve() in names), None)
    if use:
        message = f"raw_device '{name}' is in use ({use}): only a device that nothing uses is measured"
        raise InputError("device-in-use", message, key="raw_device", value=name)


@contextmanager
def raw_device(name: str, size: int, *, writes: bool) -> Iterator[DiskTarget]:
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
        yield DiskTarget(str(path), size, f"the first {show_size(size)} of {path}")
    finally:
        os.close(descriptor)


def default_folder() -> Path:
    """A folder of ours in the user's cache, otherwise among temporary files."""
    try:
        folder = cache_directory() / "disk"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, InputError):  # the latter: a user without a home
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


def file_system_of(folder: Path) -> str | None:
    """The kind of file system that a folder lies on."""
    where = folder.resolve()
    above = {str(path) for path in (where, *where.parents)}
    mounts = [mount for mount in psutil.disk_partitions(all=True) if mount.mountpoint in above]
    # Of mounts on the same point the last one is visible.
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else None


def _open_nameless(folder: Path) -> int:
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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
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


SEQUENTIAL_BLOCK = 1024**2
RANDOM_BLOCK = 4096
QUEUE_DEPTH = 32
READ_SHARE = 0.7
WINDOW_SECONDS = 0.3  # fio counts whole milliseconds
WINDOWS_PER_START = 4  # starting fio takes as long as a window
PATIENCE_SECONDS = 120.0

IOPS = rate_metric("iops", "blocks read and written over time", unit="operations/s")
LATENCY = time_metric(
    "latency", "from handing an operation over to its completion; of every operation, counted by fio", Merge.MEAN
)
WINDOW_TIME = TIME.model_copy(update={"description": "time of one window: the same amount of reads and writes each"})


class DiskParameters(MicroParameters):
    """What is read and written, how, and where."""

    pattern: Literal["read", "write", "random-read", "random-write", "mixed", "random-mixed"] = "read"
    """read and write go through the file in order; mixed does both at once; random jumps"""
    block_size: Size | None = Field(default=None, ge=512)
    """Bytes of one operation; unset takes 1 MiB in order and 4 KiB at random"""
    depth: int | None = Field(default=None, ge=1, le=4096)
    """Operations in flight of each job; unset takes 32, or 1 with the engine psync"""
    jobs: int = Field(default=1, ge=1, le=256)
    """Processes that read and write at once, each its own part of the file"""
    read_share: Fraction | None = Field(default=None, gt=0, lt=1)
    """Part of the operations of a mixed pattern that are reads; unset takes 70%"""
    engine: Literal["auto", "io_uring", "libaio", "psync"] = "auto"
    """How operations are handed to the kernel; auto takes the first of them that works here"""
    size: Size = Field(default=256 * 1024**2, ge=1024**2)
    """Bytes of the file"""
    folder: Annotated[str | None, FromNetwork(never="names a folder, and a job may not write outside its own")] = None
    """Folder on the disk to measure; unset takes the user's cache folder. The file in it has no name and stays never"""
    raw_device: Annotated[str | None, FromNetwork(never="names a device of the machine")] = None
    """A block device to measure without a file system, like /dev/nvme1n1; nothing may use it"""
    destroy_data: bool = False
    """Allow a writing pattern to overwrite what is on raw_device"""
    budget: Duration = Field(default=3.0, gt=0)
    """Time to spend on measuring, at most"""
    warm_up: Duration = 1.8
    """Time to spend on warming up, at most; it ends sooner when the time is steady"""


class Disk(Benchmark[DiskParameters]):
    """fio on a file of our own, several equal windows of work, reads and writes reported separately."""

    name = "disk"
    summary = "disk through fio: bandwidth, IOPS and latency of reads and writes, in order, at random and mixed"
    category = "storage"
    metrics = (BANDWIDTH, IOPS, LATENCY, WINDOW_TIME)

    @classmethod
    def title(cls, parameters: DiskParameters) -> str:
        return join_words(
            parameters.pattern,
            show_size(parameters.block_size) if parameters.block_size else "",
            f"depth {parameters.depth}" if parameters.depth else "",
            f"{parameters.jobs} jobs" if parameters.jobs > 1 else "",
            f"{parameters.read_share:.0%} reads" if parameters.read_share else "",
            parameters.engine if parameters.engine != "auto" else "",
            parameters.raw_device or parameters.folder,
        )

    @classmethod
    def check(cls, parameters: DiskParameters, case: Case) -> None:
        device = parameters.raw_device
        if device is not None:
            if case.origin == "network":
                message = "raw_device is not taken from the network: run it on the machine itself"
                raise InputError("not-from-network", message, key="raw_device", value=device)
            if parameters.folder is not None:
                message = f"raw_device and folder '{parameters.folder}' exclude each other: give one of them"
                raise InputError("conflicting-keys", message, key="folder", value=parameters.folder)
            if _writes(parameters) and not parameters.destroy_data:
                message = (
                    f"pattern '{parameters.pattern}' overwrites what is on {device}: add destroy_data: true "
                    "if nothing there is needed, or read only"
                )
                raise InputError("would-destroy-data", message, key="destroy_data", value=False)
        elif parameters.destroy_data:
            message = "destroy_data without raw_device: files of others are never touched"
            raise InputError("key-does-not-apply", message, key="destroy_data", value=True)
        if parameters.engine in WITHOUT_QUEUE and (parameters.depth or 1) > 1:
            message = (
                f"depth = {parameters.depth} with engine {parameters.engine}, which has one operation in flight: "
                "use jobs, io_uring or libaio"
            )
            raise InputError("conflicting-keys", message, key="depth", value=parameters.depth)
        if parameters.read_share is not None and "mixed" not in parameters.pattern:
            message = f"read_share goes with pattern mixed or random-mixed, not '{parameters.pattern}'"
            raise InputError("key-does-not-apply", message, key="read_share", value=parameters.read_share)
        block = _block_size(parameters)
        if parameters.size // parameters.jobs < block:
            message = (
                f"size = {show_size(parameters.size)} is less than a block of {show_size(block)} for each of "
                f"{parameters.jobs} jobs"
            )
            raise InputError("too-small", message, key="size", value=parameters.size)
        if case.origin == "local":  # a path of this machine
            if parameters.folder is not None:
                check_folder(Path(parameters.folder).expanduser())
            if device is not None:
                check_raw_device(device)

    @classmethod
    def describe(cls, record: Record, parameters: DiskParameters, environment: Environment) -> Description:
        ceiling = ShownCeiling(kind="storage", name=f"disk {parameters.pattern}", metric="bandwidth")
        return Description(ceilings=(ceiling,), aliases=_superbench_names(record, parameters))

    def measure(self, parameters: DiskParameters, context: Context) -> Result:
        fio = find_tool("fio", "fio", purpose="reads and writes the disk")
        if parameters.raw_device is not None:
            opened = raw_device(parameters.raw_device, parameters.size, writes=_writes(parameters))
        else:
            folder = Path(parameters.folder).expanduser() if parameters.folder else default_folder()
            opened = scratch_file(folder, parameters.size)
        with opened as target:
            job = _choose_job(fio, target, parameters)
            work = _window_work(fio, job)
            windows: list[FioWindow] = []

            def run_windows() -> list[float]:
                plan = job.windows(WINDOWS_PER_START, work, len(windows), parameters.seed)
                windows.extend(new := _run(fio, job, plan))
                return [one.seconds for one in new]

            with MicroSession(parameters, context, CpuDevice()) as session:
                amount = work * job.jobs
                how = f"fio's own clock, windows of {show_size(amount)}"
                point = session.time_reported(run_windows, WINDOW_TIME, how, work=amount)
        before = len(point.warm.samples)
        measured = windows[before : before + len(point.timed.samples)]
        result = session.result(_measurements(point, measured), _facts(target, job, work))
        if not job.direct:
            what = f"{target.file_system or 'the device'} does not allow O_DIRECT with blocks of"
            message = f"{what} {show_size(job.block_size)}, so the page cache took part"
            remedy = "measure in a folder on another file system, or with blocks of a multiple of 4 KiB"
            result.warnings.append(RecordWarning(kind="buffered", message=message, remedy=remedy))
        return result


def _superbench_names(record: Record, parameters: DiskParameters) -> dict[str, Alias]:
    order = "rand" if parameters.pattern.startswith("random") else "seq"
    kind = parameters.pattern.removeprefix("random-")
    job = f"{order}_{'readwrite' if kind == 'mixed' else kind}"
    device = key_word(str(parameters.raw_device or "").rpartition("/")[2]) or "file"
    block = record.facts.get("block_size")
    values = {f"{device}_{job}_bs": float(block)} if isinstance(block, int | float) else {}
    sides: dict[str, At] = {side: {"direction": side} for side in ("read", "write")} if kind == "mixed" else {kind: {}}
    for side, at in sides.items():
        start = f"{device}_{job}_{side}"
        values |= _superbench.means(record, {f"{start}_iops": ("iops", 1.0)}, at)
        latency = record.measurement("latency", at=at)
        for name, value in (latency.summary.percentiles if latency else {}).items():
            if name in ("95", "99", "99.9"):
                values[f"{start}_lat_ns_{float(name):.1f}"] = value / _superbench.NS
    return _superbench.alias(record, "disk-benchmark", values, part=job)


def _writes(parameters: DiskParameters) -> bool:
    return parameters.pattern not in ("read", "random-read")


def _block_size(parameters: DiskParameters) -> int:
    return parameters.block_size or (RANDOM_BLOCK if parameters.pattern.startswith("random") else SEQUENTIAL_BLOCK)


def _choose_job(fio: str, target: DiskTarget, parameters: DiskParameters) -> FioJob:
    """The job with the first engine that works here, past the page cache where that is possible."""
    block = _block_size(parameters)
    try:
        os.close(os.open(target.path, os.O_RDONLY | os.O_DIRECT))
        ways = [True, False]
    except OSError:  # the file system does not let a program go past the page cache
        ways = [False]
    share = (parameters.read_share or READ_SHARE) if "mixed" in parameters.pattern else None
    engines = [parameters.engine] if parameters.engine != "auto" else ["io_uring", "libaio", "psync"]
    region = target.size // parameters.jobs // block * block
    failures: list[str] = []
    for direct in ways:
        for engine in engines:
            # Tried by reading one block, whatever the job is going to do.
            trial = FioJob(target.path, "read", block, engine, direct, depth=1, jobs=1, region=region)
            try:
                _run(fio, trial, [Window(block)])
            except ToolError as error:
                failures.append(f"{engine}: {error}")
                continue
            return replace(
                trial,
                rw=RW[parameters.pattern],
                depth=1 if engine in WITHOUT_QUEUE else parameters.depth or QUEUE_DEPTH,
                jobs=parameters.jobs,
                read_share=None if share is None else max(1, min(99, round(100 * share))),
            )
    raise Unsupported(f"fio can work with none of its engines on {target.what}: {'; '.join(failures)}")


def _window_work(fio: str, job: FioJob) -> int:
    """Bytes of each job in a window, a multiple of the block, so that a window takes as long as it should."""
    least = job.block_size * job.depth
    work = least
    while True:
        (window,) = _run(fio, job, [Window(work)])
        if window.seconds >= WINDOW_SECONDS / 4:
            amount = window.bytes / job.jobs * WINDOW_SECONDS / window.seconds
            return max(least, round(amount / job.block_size) * job.block_size)
        growth = WINDOW_SECONDS / max(window.seconds, WINDOW_SECONDS / 64)
        work = int(work * max(2.0, growth) // job.block_size) * job.block_size


def _run(fio: str, job: FioJob, windows: Sequence[Window]) -> list[FioWindow]:
    timeout = PATIENCE_SECONDS * len(windows)
    return parse(run_tool(job.command(fio, windows), timeout=timeout).output, len(windows))


def _measurements(point: TimedPoint, windows: Sequence[FioWindow]) -> list[Measurement]:
    """Figures of all operations; where there are reads and writes, of each of them too."""
    groups: list[tuple[At, list[list[Side]]]] = [({}, [one.sides for one in windows])]
    reads = [[one.reads] if one.reads.operations else [] for one in windows]
    writes = [[one.writes] if one.writes.operations else [] for one in windows]
    if any(reads) and any(writes):
        groups += [({"direction": "read"}, reads), ({"direction": "write"}, writes)]
    figures = []
    for at, sides in groups:
        # All work over all time: the mean work of a window over the mean time of a window.
        work = sum(side.bytes for window in sides for side in window) / len(windows)
        operations = sum(side.operations for window in sides for side in window) / len(windows)
        rates = [point.rate(BANDWIDTH, work), point.rate(IOPS, operations)]
        latency = Measurement(metric=LATENCY, at=at, statistic="median", summary=pooled_latency(sides))
        figures += [*(replace(rate, at=at) for rate in rates), latency]
    return [*figures, point.time]


def _facts(target: DiskTarget, job: FioJob, work: int) -> dict[str, Any]:
    # Which part of the data a window touches: what comes again may be answered by a cache of the disk itself.
    passes = work / job.region
    if passes > 1:
        windows = f"each goes {passes:.1f} times over all of the data, which a cache of the disk may hold: see --size"
    elif job.is_random:
        windows = f"each touches {passes:.0%} of the blocks, anywhere"
    else:
        windows = f"each another part of the data; after {job.region // work} of them it begins again"
    return {
        "device": target.what,
        "file_system": target.file_system,
        "engine": job.engine,
        "direct": job.direct,
        "block_size": job.block_size,
        "depth": job.depth,
        "jobs": job.jobs,
        "read_share_percent": job.read_share,
        "fio_options": [option for option in job.options() if not option.startswith("--filename")],
        "windows": windows,
        "outside_the_time": "making the file and starting fio",
    }
