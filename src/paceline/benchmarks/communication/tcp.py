"""TCP between hosts, or on the loopback device: connecting, small messages, bulk transfers.

Bandwidth and round trips need a peer at the other end. On the other host run either of

    python -m paceline.benchmarks.communication._tcp_peer --bind ADDRESS
    iperf3 --server

and name it here with `--remote-host HOST[:PORT]`. Without one, a process on this host is the other end, on 127.0.0.1.
"""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro.parameters import (
    BANDWIDTH,
    TIME,
    MicroParameters,
    OneOrMore,
    join_words,
    rate_metric,
    time_metric,
)
from paceline.benchmarks._micro.session import MicroSession, headline
from paceline.benchmarks.communication import _iperf3, _tcp_peer
from paceline.benchmarks.communication._tcp_peer import BUFFER, COUNT, ECHO, GREETING, MAGIC, SWALLOW, receive_exactly
from paceline.core import die_with_parent
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import CaseError, InputError
from paceline.core.metric import Merge
from paceline.core.network import OTHER_HOSTS
from paceline.core.quantity import Duration, Size, show_size
from paceline.core.record import At, Measurement, Record, RecordWarning, Result
from paceline.core.subject import CeilingKind, Description, ShownCeiling, key_word
from paceline.devices.cpu import CpuDevice
from paceline.devices.timeline import monotonic

PATIENCE_SECONDS = 30.0  # of one answer; only a lost peer takes so long
SMALLEST_TRANSFER = 1024**2
TRANSFER_SECONDS = {"own": 0.03, "iperf3": 0.1}  # iperf3 takes a while to begin and to end
ROUND_TRIPS = 30  # a transfer ends with one, the receiver's answer, which must not weigh

CONNECT_TIME = time_metric(
    "connect_time", "from asking for a connection to having it, looking up the name included", Merge.POOLED
)
SUCCESS_RATE = rate_metric("success_rate", "attempts to connect that succeeded", Merge.MEAN, unit="%")
ROUND_TRIP_TIME = time_metric(
    "round_trip_time", "from sending a small message to having all of it back, without Nagle's delay", Merge.POOLED
)
TRANSFER_TIME = TIME.model_copy(update={"description": "time of one transfer, until the receiver has all of it"})


class PeerError(CaseError):
    """The other end cannot be reached, or does not speak our protocol."""


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str, default_port: int | None = None) -> Self:
        """`host:port`, `[address]:port`, or a host alone where a default port is given; otherwise a ValueError."""
        host, separator, port = text.rpartition(":")
        if not separator or (":" in host and not host.endswith("]")):  # a name, or an IPv6 address, without a port
            host, port = text, "" if default_port is None else str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or any(letter.isspace() or letter == "/" for letter in host):
            raise ValueError(f"'{text}' does not name a host; write it like node2:22 or [::1]:22")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"'{text}' needs a port from 1 to 65535; write it like node2:22 or [::1]:22")
        return cls(host, int(port))


def _check_address(text: str, *, default_port: int | None = None) -> str:
    Address.read(text, default_port)
    return text


_AddressWithPort = Annotated[str, AfterValidator(_check_address)]
_Address = Annotated[str, AfterValidator(partial(_check_address, default_port=_tcp_peer.DEFAULT_PORT))]


class TcpParameters(MicroParameters):
    """Whom to connect to, and what to send."""

    endpoints: Annotated[list[_AddressWithPort], OneOrMore, OTHER_HOSTS] = Field(default_factory=list)
    """What to connect to, as host:port; anything that listens there will do"""
    remote_host: Annotated[_Address | None, OTHER_HOSTS] = None
    """Peer for round trips and bandwidth, as host or host:port; unset, and without endpoints, a process on this host"""
    engine: Literal["auto", "own", "iperf3"] = "auto"
    """Who sends in bulk; auto takes our own, or iperf3 where the peer is one"""
    attempts: int = Field(default=20, ge=1, le=10_000)
    """Attempts to connect to each endpoint"""
    connect_timeout: Duration = Field(default=2.0, gt=0)
    """An attempt that takes longer has failed"""
    message_size: Size = Field(default=64, ge=1, le=_tcp_peer.LARGEST_ECHO)
    """Bytes of a message that goes there and back"""
    streams: Annotated[list[Annotated[int, Field(ge=1, le=256)]], OneOrMore] = Field(default=[1, 4], min_length=1)
    """Connections that send at once: one point for each"""
    warm_up: Duration = 1.0
    """Time to spend on warming up each point, at most; it ends sooner when the time is steady"""


@dataclass(frozen=True)
class Attempts:
    """What came of connecting to one host again and again."""

    label: str
    times: list[float]
    failures: list[str]

    @property
    def count(self) -> int:
        return len(self.times) + len(self.failures)

    @property
    def failure(self) -> str:
        """The host, and why the last attempt that failed did."""
        return f"{self.label} ({self.failures[-1]})"


class Tcp(Benchmark[TcpParameters]):
    """Connections made, messages echoed, bulk data sent until the receiver has it."""

    name = "tcp"
    summary = "TCP: success and time of connecting, round trip of small messages, bandwidth of one and several streams"
    category = "communication"
    metrics = (BANDWIDTH, ROUND_TRIP_TIME, CONNECT_TIME, SUCCESS_RATE, TRANSFER_TIME)

    @classmethod
    def title(cls, parameters: TcpParameters) -> str:
        where = [*parameters.endpoints, *([f"peer {parameters.remote_host}"] if parameters.remote_host else [])]
        return join_words(", ".join(where) or "loopback", parameters.engine if parameters.engine != "auto" else "")

    @classmethod
    def check(cls, parameters: TcpParameters, case: Case) -> None:
        if parameters.endpoints and not parameters.remote_host and parameters.engine != "auto":
            message = f"engine = {parameters.engine} needs a remote_host: endpoints are only connected to"
            raise InputError("missing-key", message, key="remote_host")

    @classmethod
    def describe(cls, record: Record, parameters: TcpParameters, environment: Environment) -> Description:
        shown: dict[str, CeilingKind] = {"bandwidth": "link", "round_trip_time": "latency"}
        name = f"tcp to {parameters.remote_host}" if parameters.remote_host else "tcp loopback"
        ceilings = tuple(ShownCeiling(kind=kind, name=name, metric=key) for key, kind in shown.items())
        aliases = _superbench.alias(record, "tcp-connectivity", _superbench_values(record))
        return Description(ceilings=ceilings, aliases=aliases)

    def measure(self, parameters: TcpParameters, context: Context) -> Result:
        if parameters.engine == "iperf3":
            _iperf3.find()
        with ExitStack() as stack:
            targets = {text: Address.read(text) for text in parameters.endpoints}
            peer: Address | None = None
            if parameters.remote_host:
                default_port = _iperf3.DEFAULT_PORT if parameters.engine == "iperf3" else _tcp_peer.DEFAULT_PORT
                peer = Address.read(parameters.remote_host, default_port=default_port)
                targets[parameters.remote_host] = peer
            elif not parameters.endpoints:
                peer = stack.enter_context(local_peer())
                targets["loopback"] = peer
            session = stack.enter_context(MicroSession(parameters, context, CpuDevice()))
            connected = [_connect(label, address, parameters, context) for label, address in targets.items()]
            measurements, facts = _connectivity(connected), {"hosts": list(targets)}
            if peer is not None:
                figures, more_facts = _exchange(session, parameters, peer)
                measurements, facts = [*figures, *measurements], facts | more_facts
        result = session.result(measurements, facts)
        failed = [f"{len(one.failures)} of {one.count} to {one.failure}" for one in connected if one.failures]
        if failed:
            message = f"attempts to connect failed: {', '.join(failed)}"
            remedy = "look for packet loss and full queues of the listener (nstat, ss -lnt), then measure again"
            result.warnings.append(RecordWarning(kind="unreliable", message=message, remedy=remedy))
        return result


def _superbench_values(record: Record) -> dict[str, float]:
    hosts = [host for host in record.facts.get("hosts") or [] if isinstance(host, str)]
    values: dict[str, float] = {}
    for host in hosts:
        at: At = {"host": host} if len(hosts) > 1 else {}  # the only host's figures are the case's own
        made, rate = record.measurement("connect_time", at=at), record.measurement("success_rate", at=at)
        if made is None or rate is None:
            continue
        name, summary = key_word(host), made.summary
        attempts = round(100.0 * summary.count / rate.value)
        seconds = {"min": summary.minimum, "max": summary.maximum, "avg": summary.mean}
        values |= {f"{name}_time_{key}": value / _superbench.MS for key, value in seconds.items()}
        values[f"{name}_successed_count"] = float(summary.count)
        values[f"{name}_failed_count"] = float(attempts - summary.count)
        values[f"{name}_success_rate"] = rate.value
    return values


def _connect(label: str, address: Address, parameters: TcpParameters, context: Context) -> Attempts:
    made = Attempts(label, [], [])
    for _ in range(parameters.attempts):
        begun = monotonic()
        try:
            connection = connect(address, parameters.connect_timeout)
        except OSError as error:
            made.failures.append(str(error.strerror or error))
            continue
        made.times.append(monotonic() - begun)
        connection.close()
    context.report(Progress(phase=f"connecting to {label}"))
    return made


def _connectivity(connected: Sequence[Attempts]) -> list[Measurement]:
    """Of each host, and of all together; a host that was never reached fails the case."""
    lost = [one.failure for one in connected if not one.times]
    if lost:
        raise CaseError(
            f"no attempt out of {connected[0].count} reached {', '.join(lost)}: "
            "check name, port and firewall, and that something listens there"
        )
    groups: list[tuple[At, Sequence[Attempts]]] = [({}, connected)]
    if len(connected) > 1:
        groups += [({"host": one.label}, [one]) for one in connected]
    measurements = []
    for at, group in groups:
        times = [time for one in group for time in one.times]
        share = 100.0 * len(times) / sum(one.count for one in group)
        measurements.append(Measurement.of_samples(CONNECT_TIME, times, at=at))
        measurements.append(Measurement.of_value(SUCCESS_RATE, share, at=at))
    return measurements


def _exchange(
    session: MicroSession, parameters: TcpParameters, peer: Address
) -> tuple[list[Measurement], dict[str, Any]]:
    """Round trips and bandwidth, as far as the peer can."""
    engine: str = parameters.engine
    if engine == "auto":
        try:
            greet(peer, SWALLOW, 0, parameters.connect_timeout).close()
            engine = "own"
        except PeerError:
            engine = "iperf3"
    round_trips: list[Measurement] = []
    is_ours = engine == "own" or parameters.remote_host is None
    if is_ours:
        with echoing(peer, parameters.message_size, parameters.connect_timeout) as there_and_back:
            round_trips.append(session.time(there_and_back, ROUND_TRIP_TIME, each=True).time)
    with ExitStack() as stack:
        if engine == "iperf3" and parameters.remote_host is None:
            peer = Address("127.0.0.1", stack.enter_context(_iperf3.local_server()))
        points = [_bandwidth(session, parameters, peer, engine, streams) for streams in parameters.streams]
    rates = [rate for rate, _ in points]
    facts = {
        "engine": engine,
        "message_size": parameters.message_size if is_ours else None,
        "round_trip": None if is_ours else "not measured: iperf3 does not echo; run our peer on the other host",
        "bandwidth": "bytes that the receiver has, over the time until it said so; connecting is outside"
        + (f"; at least {ROUND_TRIPS} times as long as an answer takes" if engine == "own" else ""),
    }
    return [headline(rates), *round_trips, *rates, *(time for _, time in points)], facts


def _bandwidth(
    session: MicroSession, parameters: TcpParameters, peer: Address, engine: str, streams: int
) -> tuple[Measurement, Measurement]:
    moved: list[int] = []
    enough = TRANSFER_SECONDS[engine]
    with ExitStack() as stack:
        send_each = None
        if engine == "own":
            send_each = stack.enter_context(swallowing(peer, streams, parameters.connect_timeout))
            enough = max(enough, ROUND_TRIPS * min(send_each(0) for _ in range(3)))

        def send(amount: int) -> float:
            if send_each is not None:
                moved.append(amount * streams)
                return send_each(amount)
            sent = _iperf3.send(peer.host, peer.port, amount * streams, streams)
            moved.append(sent.bytes)
            return sent.seconds if sent.bytes else 0.0

        amount = _amount(send, enough)
        moved.clear()
        point = session.time_reported(
            lambda: [send(amount)],
            TRANSFER_TIME,
            f"{'host clock' if engine == 'own' else 'iperf3 itself'}, transfers of {show_size(amount)} each stream",
            at={"streams": streams},
            work=float(amount * streams),
        )
    before = len(point.warm.samples)
    measured = moved[before : before + len(point.timed.samples)]
    if not all(measured):
        raise CaseError(f"iperf3 counted no bytes in one of {len(measured)} transfers: use the engine own")
    return point.rate(BANDWIDTH, sum(measured) / len(measured)), point.time


def _amount(send: Callable[[int], float], enough: float) -> int:
    """Bytes of each stream that make a transfer long enough to be timed."""
    amount = SMALLEST_TRANSFER
    send(amount)  # a new connection starts slowly
    while (seconds := min(send(amount), send(amount))) < enough:
        amount *= 2 if seconds > enough / 4 else 4
    return amount


def connect(address: Address, timeout: float) -> socket.socket:
    """A connection without delays of its own."""
    connection = socket.create_connection((address.host, address.port), timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def greet(address: Address, kind: int, size: int, timeout: float) -> socket.socket:
    """A connection to a peer that is ready to echo or to swallow; anything else is a PeerError."""
    try:
        connection = connect(address, timeout)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise PeerError("too many connections for this process: use fewer streams, or raise ulimit -n") from None
        raise PeerError(f"{address} cannot be reached: {error.strerror or error}") from None
    try:
        connection.sendall(GREETING.pack(MAGIC, kind, size))
        answer = bytearray(len(MAGIC))
        understood = receive_exactly(connection, memoryview(answer)) and bytes(answer) == MAGIC
    except OSError:
        understood = False
    if not understood:
        connection.close()
        raise PeerError(f"{address} is not a peer of Paceline")
    connection.settimeout(PATIENCE_SECONDS)
    return connection


@contextmanager
def echoing(address: Address, size: int, timeout: float) -> Iterator[Callable[[], None]]:
    """A call that sends a message and waits until the whole of it is back."""
    with greet(address, ECHO, size, timeout) as connection:
        message = bytes(size)
        buffer = memoryview(bytearray(size))

        def there_and_back() -> None:
            connection.sendall(message)
            if not receive_exactly(connection, buffer):
                raise PeerError(f"{address} closed the connection")

        yield there_and_back


@contextmanager
def swallowing(address: Address, streams: int, timeout: float) -> Iterator[Callable[[int], float]]:
    """A call that sends so many bytes through every stream at once; seconds until the peer has all of them."""
    with ExitStack() as stack:
        connections = [stack.enter_context(greet(address, SWALLOW, 0, timeout)) for _ in range(streams)]
        data = memoryview(bytes(BUFFER))

        def send_all(amount: int) -> float:
            failures: list[OSError | PeerError] = []

            def send(connection: socket.socket) -> None:
                announced, answer = COUNT.pack(amount), bytearray(COUNT.size)
                try:
                    connection.sendall(announced)
                    for offset in range(0, amount, BUFFER):
                        connection.sendall(data[: amount - offset])
                    if not receive_exactly(connection, memoryview(answer)) or bytes(answer) != announced:
                        raise PeerError("the peer closed the connection")
                except (OSError, PeerError) as error:
                    failures.append(error)

            others = [threading.Thread(target=send, args=(connection,)) for connection in connections[1:]]
            begun = monotonic()
            for thread in others:
                thread.start()
            send(connections[0])
            for thread in others:
                thread.join()
            seconds = monotonic() - begun
            if failures:
                raise PeerError(f"{address} was lost while {streams} streams were sent: {failures[0]}")
            return seconds

        yield send_all


@contextmanager
def local_peer(address: str = "127.0.0.1") -> Iterator[Address]:
    """A peer of our own at an address of this host; it ends with this process, however that ends."""
    command = [sys.executable, die_with_parent.__file__, "-P", "-m", _tcp_peer.__name__]
    command += ["--bind", address, "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as peer:
        try:
            assert peer.stdout is not None
            port = peer.stdout.readline().strip()
            if not port.isdecimal():
                raise PeerError(f"the peer on this host did not start (exit code {peer.wait()})")
            yield Address(address, int(port))
        finally:
            peer.kill()
