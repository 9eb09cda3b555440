"""The worker's loop in C: the same requests at the same times, for several times as many of them on one core.

It sends ready-made bytes over plain HTTP/1.1 and reads whole answers; tensors are checked when the load is over. What
needs more than that (`obstacle` says what) goes through the client in Python, as everything does without a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import CaseError, InputError
from paceline.load.expected import Expected
from paceline.load.http_client import judged, reachable_address, sweep_every
from paceline.load.live import EVERY, RECENT, write_line
from paceline.load.request import ALONE, ClientChoice, ClientName, Endpoint, Prepared
from paceline.load.trace import MOST_HELD, OK, Log, clock
from paceline.measure import native

if TYPE_CHECKING:
    from paceline.load.task import WorkerTask

SOURCE = Path(__file__).with_name("client.c")
WIRES = ("kserve-json", "kserve-binary", "http")
_ENDED, _STOPPED, _TIME_TO_TELL, _FULL = range(4)
_LOOPS = ("open", "closed", "burst")
_FOREVER = 2**63 - 1
_STATUSES = 1000
_PORTION = 2**18  # bytes of failed answers: while so many are read, nothing is sent
_ROW = np.dtype([(name, np.int64) for name in (
    "intended", "dispatched", "sent", "first", "done", "size",
    "timing_at", "timing_length", "body_at", "body_length", "status",
)])  # fmt: skip
_POINTERS = ("payloads", "lengths", "kinds", "due", "order", "intended", "up", "down", "to_keep", "good", "held")
_NUMBERS = (
    "payloads_number", "kinds_number", "number", "ways", "start", "last_start", "requests", "most", "limit", "timeout",
    "sweep_every",
)  # fmt: skip


class _Task(ctypes.Structure):
    """`struct task` of the C source."""

    _fields_ = (
        ("address", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("think_time", ctypes.c_double),
        ("down_bandwidth", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("loop", "most_held", "stop")),
        *((name, ctypes.c_void_p) for name in ("rows", "bodies", "timings")),
        *((name, ctypes.c_int64) for name in ("rows_number", "bodies_length", "timings_length")),
        *((name, ctypes.c_int64) for name in ("retried", "ended", "failed")),
        ("recent", ctypes.c_int64 * RECENT),
        ("recent_number", ctypes.c_int64),
    )


def obstacle(endpoint: Endpoint, requests: Iterable[Prepared], *, streaming: bool) -> str:
    """Why such requests need the client in Python; empty if they do not."""
    if endpoint.tls:
        return "TLS"
    if streaming or endpoint.wire not in WIRES:
        return f"the protocol {endpoint.wire}{' as a stream' if streaming else ''}"
    if any(one.fresh.words or one.turn != ALONE for one in requests):
        return "requests that are made as they are sent"
    if endpoint.expected is not None and endpoint.expected.needs_body:
        return "a check of what answers contain"
    return ""


def chosen(
    wanted: ClientChoice | None, endpoint: Endpoint, requests: Iterable[Prepared], *, streaming: bool, here: bool = True
) -> tuple[ClientName, str]:
    """Which client sends, and why it is not the one in C; `here`: from this machine, others see for themselves."""
    if wanted == "python":
        return "python", "load.client = python"
    if why := obstacle(endpoint, requests, streaming=streaming):
        if wanted == "c":
            message = f"the client in C cannot do this: {why}; set load.client to auto or python"
            raise InputError("unfit-client", message, key="load.client", value=wanted, suggestion="auto")
        return "python", f"{why} is beyond the client in C"
    if wanted == "c" and here:
        native.load(SOURCE)
    why = missing() if here else ""
    return ("python" if why else "c"), why


def missing() -> str:
    """Why this machine has no client in C; empty if it has one, which is built now if it never was."""
    try:
        native.load(SOURCE)
    except CaseError as error:
        return str(error)
    return ""


class NativeRun:
    """The requests of one task on their way, sent by the C code."""

    def __init__(self, task: WorkerTask, log: Log) -> None:
        self._task, self._log = task, log
        self._library = native.load(SOURCE)
        self._library.begin.restype = ctypes.c_void_p
        self._address = reachable_address(task.endpoint.host, task.endpoint.port)
        if task.live:
            os.set_blocking(sys.stdout.fileno(), False)
        self._kept: list[object] = []  # what the C code points at
        expected = task.endpoint.expected or Expected(status=(str(OK),))
        self._good = np.array([expected.has_status(code) for code in range(_STATUSES)])

    def complete(self, start: int, stop: int) -> None:
        """From the agreed instant until every request was answered or given up, or `stop` can be read."""
        made = self._made(start, stop)
        run = ctypes.c_void_p(self._library.begin(ctypes.byref(made)))
        if not run:
            raise _error("begin")
        since, tell_at = start, start + int(EVERY * 1e9) if self._task.live else _FOREVER
        while True:
            why = self._library.proceed(run, ctypes.c_int64(tell_at))
            if why == _TIME_TO_TELL:
                self._tell(made, since)
                since = clock()
                tell_at = since + int(EVERY * 1e9)
            elif why == _FULL:
                self._read_bodies(made)
                self._library.forget_bodies(run)
            else:
                break
        if why not in (_ENDED, _STOPPED):
            raise _error("go on")
        self._library.end(run)
        self._done = made

    def _tell(self, made: _Task, since: int) -> None:
        rows, recent = self._rows(made), made.recent[: min(RECENT, made.recent_number)]
        latencies = (rows["done"][recent] - rows["intended"][recent]) // 1000
        write_line(sys.stdout.fileno(), [(clock() - since) / 1e9, made.ended, made.failed, latencies.tolist()])
        made.ended = made.failed = made.recent_number = 0

    def _made(self, start: int, stop: int) -> _Task:
        task, endpoint = self._task, self._task.endpoint
        number = len(task.intended) if task.loop == "open" else task.users
        leaving = np.zeros(number) if task.loop != "open" else task.intended
        leaving = leaving + task.up if task.up is not None and task.loop == "open" else leaving
        order = np.argsort(leaving, kind="stable")
        held = np.zeros(_STATUSES, bool) if endpoint.expected is None else ~self._good
        held[OK] |= task.outputs is not None
        payloads = (ctypes.c_char_p * len(task.payloads))(*task.payloads)
        self._kept.append(payloads)
        return _Task(
            address=self._address.encode(),
            port=str(endpoint.port).encode(),
            payloads=ctypes.addressof(payloads),
            payloads_number=len(payloads),
            lengths=self._pointer([len(one) for one in task.payloads], np.int64),
            kinds=self._pointer(task.kinds, np.int32),
            kinds_number=len(task.kinds),
            due=self._pointer(start + np.rint(leaving[order] * 1e9).astype(np.int64), np.int64),
            order=self._pointer(order, np.int64),
            intended=self._pointer(start + np.rint(task.intended * 1e9).astype(np.int64), np.int64),
            number=number,
            up=None if task.up is None else self._pointer(task.up, np.float64),
            down=None if task.down is None else self._pointer(task.down, np.float64),
            ways=len(next((way for way in (task.up, task.down) if way is not None), ())),
            to_keep=self._pointer(np.full(len(payloads), task.keep), np.int32),
            good=self._pointer(self._good, np.uint8),
            held=self._pointer(held, np.uint8),
            start=start,
            last_start=start + int(task.duration * 1e9),
            requests=-1 if task.requests is None else task.requests,
            most=-1 if task.most is None else task.most,
            limit=task.limit,
            timeout=int(task.timeout * 1e9),
            sweep_every=int(sweep_every(task.timeout) * 1e9),
            think_time=task.think_time,
            down_bandwidth=task.down_bandwidth,
            loop=_LOOPS.index(task.loop),
            most_held=MOST_HELD if endpoint.expected is None else _PORTION,
            stop=stop,
        )

    def _pointer(self, values: Any, dtype: Any) -> int:
        array = np.ascontiguousarray(values, dtype)
        self._kept.append(array)
        return array.ctypes.data

    @staticmethod
    def _rows(made: _Task) -> NDArray[Any]:
        """What is known of each request by now; the C code may move it later."""
        if not made.rows_number:
            return np.empty(0, _ROW)
        size = made.rows_number * _ROW.itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(made.rows), _ROW)

    def _read_bodies(self, made: _Task) -> None:
        """Judge the answers that are held, and keep some, in the order in which they came."""
        task, log, rows = self._task, self._log, self._rows(made)
        held = np.flatnonzero(rows["body_at"] >= 0)
        held = held[np.argsort(rows["done"][held], kind="stable")]
        bodies: dict[tuple[int, int], bytes] = {}
        columns = (rows[name][held].tolist() for name in ("body_at", "body_length", "status"))
        for row, at, length, status in zip(held.tolist(), *columns, strict=True):
            body = bodies.get((at, length))
            if body is None:
                body = bodies[at, length] = ctypes.string_at(made.bodies + at, length) if length else b""
            if status == OK:
                log.keep_body(log.kind(row), body)
                if task.outputs is not None:
                    log.bodies[row] = body
            if task.endpoint.expected is not None:
                rows["status"][row], problem = judged(task.endpoint.expected, status, body)
                if problem:
                    log.add_cause(problem)
        rows["body_at"][held] = -1
        log.settle()

    def write_log(self) -> None:
        """All that happened, once it has ended."""
        log, made = self._log, self._done
        self._read_bodies(made)
        rows = self._rows(made)
        rows["status"][self._good[rows["status"]]] = OK
        log.number, log.retried = len(rows), made.retried
        log.intended, log.dispatched, log.sent, log.first, log.done, log.status, log.size = (
            rows[name].tolist() for name in ("intended", "dispatched", "sent", "first", "done", "status", "size")
        )
        timings = ctypes.string_at(made.timings, made.timings_length) if made.timings_length else b""
        log.timing = [
            timings[at : at + length] if at >= 0 else None
            for at, length in zip(rows["timing_at"].tolist(), rows["timing_length"].tolist(), strict=True)
        ]


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"the client in C cannot {what}: {os.strerror(number)}")


def stop_descriptor() -> int:
    """Readable once the parent has ended the load; from now on that ends this process no more.

    Python itself cannot act on a signal before the C code returns.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader
