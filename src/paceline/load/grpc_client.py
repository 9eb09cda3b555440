"""Unary gRPC calls with messages that are serialised already; the same interface as the HTTP client's."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

from paceline.core.errors import MissingDependency
from paceline.load.server_timing import HEADER
from paceline.load.trace import BROKEN, OK, REFUSED, SHED, TIMED_OUT, UNREADABLE, Log, clock

if TYPE_CHECKING:
    from paceline.load.task import WorkerTask

CHANNELS = 4  # one TCP connection would be a queue of its own for large messages
# The HTTP status that means the same as a code of gRPC; UNAVAILABLE depends on its details.
STATUS = {
    "OK": OK,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": TIMED_OUT,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
_NO_CONNECTION = ("failed to connect", "connection refused", "name resolution", "dns resolution", "no route")
_CONNECTION_LOST = (
    "socket closed",
    "connection reset",
    "broken pipe",
    "goaway",
    "endpoint closing",
    "transport closed",
)


def require_grpc() -> None:
    """Refuse where gRPC is not installed."""
    if importlib.util.find_spec("grpc") is None:
        raise MissingDependency("grpcio", "install it with: pip install '.[serving]'")


class GrpcClient:
    """Sends calls over a few channels in rotation; each carries any number at a time."""

    def __init__(self, log: Log, task: WorkerTask) -> None:
        require_grpc()
        self._grpc: Any = importlib.import_module("grpc")
        aio: Any = importlib.import_module("grpc.aio")
        endpoint = task.endpoint
        target = f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *unlimited]
        self.log = log
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._channels = [
            aio.secure_channel(target, self._grpc.ssl_channel_credentials(), options)
            if endpoint.tls
            else aio.insecure_channel(target, options)
            for _ in range(CHANNELS)
        ]
        self._infer = [channel.unary_unary(endpoint.path) for channel in self._channels]

    def send(self, row: int) -> None:
        """Start this call now; returns at once."""
        self.log.dispatched[row] = clock()
        call = self._loop.create_task(self._call(row))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Cancel what is under way and close the channels."""
        for call in tuple(self._calls):
            call.cancel()
        for channel in self._channels:
            await channel.close()

    async def _call(self, row: int) -> None:
        log, task = self.log, self.task
        kind = log.kind(row)
        log.sent[row] = clock()
        call = self._infer[row % CHANNELS](
            task.payloads[kind], timeout=task.timeout, metadata=task.metadata[kind] or None
        )
        try:
            answer = await call
        except self._grpc.RpcError as error:
            status = status_of(error.code().name, error.details() or "")
            if status >= OK:
                log.done[row] = clock()
            log.status[row] = status
        else:
            log.first[row] = log.done[row] = clock()  # a unary call gives its answer as a whole
            log.size[row] = len(answer)
            log.status[row] = OK
            for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
                for name, value in metadata or ():
                    if name == HEADER:
                        log.timing[row] = value if isinstance(value, bytes) else value.encode()
            log.keep_body(kind, answer)
            if task.outputs is not None:
                log.judge_later(row, answer)
        log.finished(row)


def status_of(code: str, details: str) -> int:
    """The status in a trace that a code of gRPC means."""
    if code != "UNAVAILABLE":
        return STATUS.get(code, UNREADABLE)
    if any(words in details.casefold() for words in _NO_CONNECTION):
        return REFUSED
    return BROKEN if any(words in details.casefold() for words in _CONNECTION_LOST) else SHED
