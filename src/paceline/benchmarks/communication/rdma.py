"""RDMA through perftest: bandwidth and latency of write, read and send.

On one host both ends run here. Between hosts the other one runs the servers, again and again, with the same options:

    while ib_write_bw  --all -F --report_gbits --port 18515 --iters 1000; do :; done &
    while ib_write_lat --all -F                --port 18516 --iters 1000; do :; done &

(ib_read_..., ib_send_... for the other operations), and is named here with `--remote-host HOST`. With `--device all`
each further device has the next two ports.
"""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import TIME, MicroParameters, OneOrMore, join_words, rate_metric, time_metric
from paceline.benchmarks._micro.session import MicroSession, TimedPoint, headline
from paceline.benchmarks._micro.tools import ToolError, find_tool, garbled, last_words, run_tool
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.metric import Merge, Metric
from paceline.core.network import OTHER_HOSTS, WORD, FromNetwork, free_port
from paceline.core.parameters import EachPart
from paceline.core.quantity import Duration, Size, show_size
from paceline.core.record import Measurement, Record, Result
from paceline.core.subject import Description
from paceline.devices.cpu import CpuDevice
from paceline.devices.timeline import monotonic
from paceline.measure import loop

_COLUMN = re.compile(r"#\w+|BW \w+\[[^\]]*\]|MsgRate\[[^\]]*\]|t_\w+\[[^\]]*\]|[\d.]+% percentile\[[^\]]*\]")
# What one of a unit is in bytes per second; its "MB" have always been 2^20 bytes, and newer versions say so.
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}


@dataclass(frozen=True)
class Row:
    """One row of a table: bytes per second of a bandwidth test, seconds of a latency test."""

    size: int
    iterations: int
    typical: float  # the average bandwidth, or the typical latency
    extreme: float | None  # the peak bandwidth, or the 99th percentile of latency; None where it is not reported


def parse_bandwidth(text: str) -> list[Row]:
    """The rows of ib_write_bw and its like; anything else is a ToolError."""
    header, rows = _table(text)
    unit = next((column.partition("[")[2].rstrip("]") for column in header if column.startswith("BW average")), "")
    if unit not in _UNITS:
        raise garbled("perftest", f"no column 'BW average' in a known unit ({', '.join(header)})", text)
    return _figures(rows, f"BW average[{unit}]", f"BW peak[{unit}]", _UNITS[unit], text)


def parse_latency(text: str) -> list[Row]:
    """The rows of ib_write_lat and its like; anything else is a ToolError."""
    header, rows = _table(text)
    columns = ("t_typical[usec]", "t_min[usec]", "t_max[usec]")
    if not set(columns) <= set(header):
        raise garbled("perftest", f"no columns of latencies in microseconds ({', '.join(header)})", text)
    rows = [row for row in rows if all(row[column] > 0 for column in columns)]
    return _figures(rows, "t_typical[usec]", "99% percentile[usec]", 1e-6, text)


def _figures(rows: list[dict[str, float]], typical: str, extreme: str, unit: float, text: str) -> list[Row]:
    figures = [
        Row(int(row["#bytes"]), int(row["#iterations"]), row[typical] * unit, row.get(extreme, 0.0) * unit or None)
        for row in rows
        if row[typical] > 0  # zero: too slow for the digits that are printed
    ]
    if not figures:
        raise garbled("perftest", "its table has no figures", text)
    return figures


def _table(text: str) -> tuple[list[str], list[dict[str, float]]]:
    """The names of the columns and the rows; a table whose last rule is missing was cut off."""
    lines = iter(text.splitlines())
    header = next((_COLUMN.findall(line) for line in lines if line.lstrip().startswith("#bytes")), None)
    if header is None or header[:2] != ["#bytes", "#iterations"]:
        raise garbled("perftest", "it contains no table", text)
    rows: list[dict[str, float]] = []
    for line in lines:
        if line.strip().startswith("-" * 20):
            return header, rows
        words = line.split()
        # Warnings about the clocks of the processor appear between the rows.
        if not words or not words[0].isdecimal():
            continue
        if len(words) < len(header):
            raise garbled("perftest", f"a row has {len(words)} of {len(header)} columns", text)
        numbers: list[float] = []
        for word in words:
            try:
                value = float(word)
            except ValueError:
                raise garbled("perftest", f"'{word[:20]}' is not a number", text) from None
            is_count = len(numbers) < 2  # the size and the iterations
            if not math.isfinite(value) or value < 0 or (is_count and not 1 <= value == int(value)):
                raise garbled("perftest", f"'{word[:20]}' is not a valid figure", text)
            numbers.append(value)
        rows.append(dict(zip(header, numbers, strict=False)))
    raise garbled("perftest", "its table breaks off", text)


DEVICES = Path("/sys/class/infiniband")
ALL = "all"
PORT = 18515
SMALLEST, LARGEST = 2, 8 * 1024**2  # what --all goes through
FEWEST_SWEEPS = 5
SWEEP_SECONDS = 120.0
SERVER_SECONDS = 20.0  # until a server that was just started, or ended its last test, listens again
RETRY_SECONDS = 0.1

BANDWIDTH_AVERAGE = rate_metric("bandwidth_average", "bytes of all messages over the time of all of them")
BANDWIDTH_PEAK = rate_metric(
    "bandwidth_peak", "the best that perftest saw between any two of its messages; absent where it did not look"
)
LATENCY = time_metric(
    "latency",
    "of a typical message, as perftest counts: half a round trip of write and send, a whole one of read",
    Merge.MAXIMUM,
)
LATENCY_99 = time_metric("latency_99", "that 99 % of the messages did not exceed", Merge.MAXIMUM)
MESSAGE_TIME = TIME.model_copy(update={"description": "time of one message among many in flight"})


class RdmaParameters(MicroParameters):
    """What is done, with whom, and through which device."""

    operation: Literal["write", "read", "send"] = "write"
    """Who moves the data: write and read need nothing of the other side's processor"""
    measure: Literal["both", "bandwidth", "latency"] = "both"
    """Which of perftest's programs run"""
    sizes: Annotated[list[Size], OneOrMore] = Field(default=[8, 4096, 64 * 1024, 1024**2, LARGEST], min_length=1)
    """Bytes of a message: powers of two from 2 B to 8 MiB"""
    remote_host: Annotated[str | None, OTHER_HOSTS] = Field(default=None, pattern=r"^[\w.:][\w.:-]*$")
    """Host that runs the servers; unset runs both ends here"""
    port: int = Field(default=PORT, ge=1, le=65534)
    """Port of its bandwidth server; its latency server has the next one"""
    device: Annotated[str | None, FromNetwork.matching(WORD), EachPart("rdma_devices")] = Field(
        default=None, pattern=r"^\w[\w.-]*$"
    )
    """RDMA device, like mlx5_0; unset takes the first; each: one case for each of several; all: all at the same time"""
    queue_pairs: int = Field(default=1, ge=1, le=16384)
    """Connections that carry the messages of the bandwidth, for each device"""
    cuda: int | None = Field(default=None, ge=0)
    """GPU in whose memory the messages lie, on both ends (perftest built with CUDA); unset takes the host's memory"""
    gid_index: int | None = Field(default=None, ge=0, le=255)
    """Which address of the device's port, on Ethernet (RoCE); unset lets perftest choose"""
    iterations: int = Field(default=1000, ge=5)
    """Messages of each size"""
    budget: Duration = Field(default=5.0, gt=0)
    """Time to spend on sweeps through the sizes with each program, at most, but at least 5 sweeps"""


class Rdma(Benchmark[RdmaParameters]):
    """Sweeps of perftest through the sizes of a message, again and again."""

    name = "rdma"
    summary = "RDMA through perftest: peak and average bandwidth and latency of write, read and send"
    category = "communication"
    metrics = (BANDWIDTH_AVERAGE, BANDWIDTH_PEAK, LATENCY, LATENCY_99, MESSAGE_TIME)

    @classmethod
    def title(cls, parameters: RdmaParameters) -> str:
        return join_words(
            parameters.operation,
            parameters.measure if parameters.measure != "both" else "",
            f"with {parameters.remote_host}" if parameters.remote_host else "loopback",
            "all devices" if parameters.device == ALL else parameters.device,
            f"{parameters.queue_pairs} queue pairs" if parameters.queue_pairs > 1 else "",
            f"memory of GPU {parameters.cuda}" if parameters.cuda is not None else "",
        )

    @classmethod
    def check(cls, parameters: RdmaParameters, case: Case) -> None:
        for size in parameters.sizes:
            if not SMALLEST <= size <= LARGEST or size & (size - 1):
                message = f"sizes: {size} is not a power of two from 2 B to 8 MiB, which is what perftest sweeps"
                raise InputError("not-a-power-of-two", message, key="sizes", value=size)

    @classmethod
    def describe(cls, record: Record, parameters: RdmaParameters, environment: Environment) -> Description:
        is_plain = parameters.queue_pairs == 1 and parameters.cuda is None and parameters.device != ALL
        if parameters.remote_host is not None or not is_plain:
            return Description()  # there, two hosts are named by their place in a pattern of traffic
        adapter = re.search(r"\d*$", parameters.device or "")
        number = adapter[0] if adapter and adapter[0] else "0"
        key = f"ib_{parameters.operation}_bw_{{size}}:{number}"
        values = _superbench.means_at(record, {key: ("bandwidth_average", _superbench.GIGA)}, "size")
        aliases = _superbench.alias(record, "ib-loopback", values, part=f"{parameters.operation} {number}")
        return Description(aliases=aliases)

    def measure(self, parameters: RdmaParameters, context: Context) -> Result:
        devices = choose_devices(parameters.device)
        options = ["--all", "-F", "--iters", str(parameters.iterations)]
        if parameters.cuda is not None:
            options.append(f"--use_cuda={parameters.cuda}")
        if parameters.gid_index is not None:
            options += ["--gid-index", str(parameters.gid_index)]

        def sweep(suffix: str, port: int, parse: Callable[[str], list[Row]], *more: str) -> dict[int, list[Row]]:
            tool = find_tool(f"ib_{parameters.operation}_{suffix}", "perftest", purpose="measures RDMA")
            ports = itertools.count(port, 2) if parameters.remote_host else iter(free_port, None)
            commands = [[tool, *options, *more, "--ib-dev", device, "--port", str(next(ports))] for device in devices]
            return _sweeps(commands, parse, parameters, context)

        pairs = ["--qp", str(parameters.queue_pairs)] if parameters.queue_pairs > 1 else []
        measurements: list[Measurement] = []
        with MicroSession(parameters, context, CpuDevice()) as session:
            if parameters.measure != "latency":
                rows = sweep("bw", parameters.port, parse_bandwidth, "--report_gbits", *pairs)
                measurements += _bandwidth(rows, session)
            if parameters.measure != "bandwidth":
                measurements += _latency(sweep("lat", parameters.port + 1, parse_latency), session)
        facts: dict[str, Any] = {
            "device": ", ".join(devices),
            "queue_pairs": parameters.queue_pairs,
            "memory": "the host's" if parameters.cuda is None else f"that of GPU {parameters.cuda}",
            "peer": parameters.remote_host or "this host",
            "perftest_options": options,
            "sweeps": f"the first one of each program warms up; {parameters.iterations} messages of each size",
        }
        return session.result(measurements, facts)


def choose_devices(name: str | None) -> list[str]:
    """The devices to use; without one the case is unsupported."""
    devices = sorted(entry.name for entry in DEVICES.iterdir()) if DEVICES.is_dir() else []
    if not devices:
        raise Unsupported(
            f"this machine has no RDMA device ({DEVICES} is empty): it takes an InfiniBand or RoCE adapter and its "
            "driver (rdma link lists them); in a container pass /dev/infiniband through"
        )
    if name == ALL:
        return devices
    if name is not None and name not in devices:
        raise Unsupported(f"this machine has no RDMA device '{name}': use {', '.join(devices)}")
    return [name or devices[0]]


def _sweeps(
    commands: list[list[str]], parse: Callable[[str], list[Row]], parameters: RdmaParameters, context: Context
) -> dict[int, list[Row]]:
    """The rows of every size, one of each sweep, in the order of the sweeps; several devices run at the same time."""
    name = Path(commands[0][0]).name
    together = _add if parse is parse_bandwidth else _slowest
    by_size: dict[int, list[Row]] = {size: [] for size in parameters.sizes}
    fewest = 1 + (parameters.steps or FEWEST_SWEEPS)
    begun, sweeps = monotonic(), 0
    while sweeps < fewest or (parameters.steps is None and monotonic() - begun < parameters.budget):
        context.report(Progress(phase=f"sweep {sweeps} of {name}" if sweeps else "warming up"))
        with ThreadPoolExecutor(len(commands)) as threads:
            outputs = list(threads.map(lambda command: run_client(command, parameters.remote_host), commands))
        tables = [{row.size: row for row in parse(output)} for output in outputs]
        common = set.intersection(*(set(table) for table in tables))
        rows = {size: together([table[size] for table in tables]) for size in common}
        missing = [show_size(size) for size in parameters.sizes if size not in rows]
        if missing:
            raise ToolError(f"{name} reported no figure for {', '.join(missing)}")
        for size, rows_of_size in by_size.items():
            rows_of_size.append(rows[size])
        sweeps += 1
    return by_size


def _add(rows: list[Row]) -> Row:
    """The bandwidths of several devices together; their peaks need not have been at the same time."""
    peak = rows[0].extreme if len(rows) == 1 else None
    return replace(rows[0], typical=sum(row.typical for row in rows), extreme=peak)


def _slowest(rows: list[Row]) -> Row:
    """Of the latencies of several devices the longest."""
    return max(rows, key=lambda row: row.typical)


def run_client(command: list[str], peer: str | None) -> str:
    """One sweep; a server serves one client and ends. The client is started until the server listens."""
    with tempfile.TemporaryFile() as output, ExitStack() as stack:
        server = None
        if peer is None:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.enter_context(server)
            stack.callback(server.kill)
        deadline = monotonic() + SERVER_SECONDS
        while True:
            try:
                return run_tool([*command, peer or "127.0.0.1"], timeout=SWEEP_SECONDS).output
            except ToolError as error:
                if server is not None and server.poll():
                    output.seek(0)
                    words = last_words(output.read().decode(errors="replace"))
                    name = Path(command[0]).name
                    raise ToolError(f"the server {name} ended with {server.returncode}: {words}") from None
                if "connect" not in str(error).lower() or monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _bandwidth(rows: dict[int, list[Row]], session: MicroSession) -> list[Measurement]:
    averages, peaks, times = [], [], []
    for size, sweeps in rows.items():
        point = _point(session, size, [size / row.typical for row in sweeps], sweeps[0].iterations)
        averages.append(point.rate(BANDWIDTH_AVERAGE, float(size)))
        peaks += _extremes(BANDWIDTH_PEAK, size, sweeps)
        times.append(point.time)
    return [headline(averages), *([headline(peaks)] if peaks else []), *averages, *peaks, *times]


def _latency(rows: dict[int, list[Row]], session: MicroSession) -> list[Measurement]:
    """The smallest message represents the case: what a larger one takes longer is bandwidth."""
    typical, slow = [], []
    for size, sweeps in rows.items():
        point = _point(session, size, [row.typical for row in sweeps], sweeps[0].iterations)
        typical.append(Measurement.of_samples(LATENCY, point.timed.samples, at=point.at))
        slow += _extremes(LATENCY_99, size, sweeps)
    return [headline(typical[:1]), *([headline(slow[:1])] if slow else []), *typical, *slow]


def _extremes(metric: Metric, size: int, sweeps: list[Row]) -> list[Measurement]:
    samples = [row.extreme for row in sweeps[1:] if row.extreme is not None]
    return [Measurement.of_samples(metric, samples, at={"size": size})] if samples else []


def _point(session: MicroSession, size: int, times: list[float], messages: int) -> TimedPoint:
    """A point of the session from the time of one message in every sweep, the first of which warmed up."""
    warm, measured = loop.WarmUp([times[0] * messages], steady=True), times[1:]
    whole = loop.Timed([time * messages for time in measured], loop.Stop.BUDGET, executed=len(measured))
    point = TimedPoint(
        metric=MESSAGE_TIME,
        at={"size": size},
        timed=loop.Timed(measured, loop.Stop.BUDGET, executed=len(measured)),
        warm=warm,
        calls=1,
        timing="perftest itself",
        warnings=tuple(loop.warnings(warm, whole, session.parameters)),
    )
    session.points.append(point)
    return point
