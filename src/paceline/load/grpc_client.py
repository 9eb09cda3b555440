"""Unary gRPC calls with messages that are serialised already; the same interface as the HTTP client's."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import Any

from paceline.core.errors import MissingDependency
from paceline.load.trace import BROKEN, OK, REFUSED, SHED, TIMED_OUT, UNREADABLE, Log, clock

INFER = "/inference.GRPCInferenceService/ModelInfer"
CHANNELS = 4  # one TCP connection would be a queue of its own for large messages
TOLD = "x-paceline"
# gRPC's codes by name, as HTTP says the same thing; UNAVAILABLE needs a closer look.
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
_NOBODY = ("failed to connect", "connection refused", "name resolution", "dns resolution", "no route")
_CUT = ("socket closed", "connection reset", "broken pipe", "goaway", "endpoint closing", "transport closed")


class GrpcClient:
    """Sends calls over a few channels in turn; each carries any number at a time."""

    def __init__(
        self,
        log: Log,
        payloads: Sequence[bytes],
        metadata: Sequence[tuple[tuple[str, str], ...]],
        *,
        host: str,
        port: int,
        path: str,
        tls: bool,
        timeout: float,
    ) -> None:
        try:
            self._grpc: Any = importlib.import_module("grpc")
            aio: Any = importlib.import_module("grpc.aio")
        except ImportError:
            raise MissingDependency("grpcio", "install it with: pip install 'paceline[serving]'") from None
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
        ]
        self.log = log
        self._payloads = payloads
        self._metadata = metadata
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._channels = [
            aio.secure_channel(target, self._grpc.ssl_channel_credentials(), options)
            if tls
            else aio.insecure_channel(target, options)
            for _ in range(CHANNELS)
        ]
        self._infer = [channel.unary_unary(path or INFER) for channel in self._channels]

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
        log = self.log
        kind = log.kind(row)
        log.sent[row] = clock()
        call = self._infer[row % CHANNELS](
            self._payloads[kind], timeout=self._timeout, metadata=self._metadata[kind] or None
        )
        try:
            answer = await call
        except self._grpc.RpcError as error:
            status = status_of(error.code().name, error.details() or "")
            if status >= OK:
                log.done[row] = clock()
            log.status[row] = status
        else:
            now = clock()
            # A unary call gives its answer as a whole.
            log.first[row] = log.done[row] = now
            log.size[row] = len(answer)
            log.status[row] = OK
            await self._keep(row, kind, call, answer)
        log.finished(row)

    async def _keep(self, row: int, kind: int, call: Any, answer: bytes) -> None:
        log = self.log
        for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
            for name, value in metadata or ():
                if name == TOLD:
                    log.told[row] = value if isinstance(value, bytes) else value.encode()
        log.keep_body(kind, answer)


def status_of(code: str, details: str) -> int:
    """What gRPC's code means in the words of a trace."""
    if code != "UNAVAILABLE":
        return STATUS.get(code, UNREADABLE)
    said = details.casefold()
    if any(words in said for words in _NOBODY):
        return REFUSED
    return BROKEN if any(words in said for words in _CUT) else SHED
