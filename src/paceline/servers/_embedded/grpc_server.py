"""Inference over gRPC: the same model, queue and answers as over HTTP, tensors as raw bytes."""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import Any

from paceline.load import kserve_grpc
from paceline.load.kserve import Message, ProtocolError, Request
from paceline.load.trace import HEADER, Stages
from paceline.servers._embedded.app import App
from paceline.servers._embedded.engines import Arrays
from paceline.servers._embedded.http import MOST_BODY
from paceline.servers._embedded.service import Overloaded, Service, now

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a port to share
    ("grpc.max_receive_message_length", MOST_BODY),
    ("grpc.max_send_message_length", -1),
)


class GrpcServer:
    """Answers calls from the app's service; messages are bytes that no generated code has touched."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._grpc: Any = importlib.import_module("grpc")
        aio: Any = importlib.import_module("grpc.aio")
        self._server = aio.server(options=_OPTIONS)
        handlers = {"ModelInfer": self._grpc.unary_unary_rpc_method_handler(self._infer)}
        self._server.add_generic_rpc_handlers(
            (self._grpc.method_handlers_generic_handler(kserve_grpc.SERVICE, handlers),)
        )

    async def listen(self, host: str, port: int) -> int:
        """Accept calls, and return the port; OSError if the address is not available."""
        if port:  # gRPC itself does not say what is wrong with an address
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        try:
            port = int(self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        return port

    async def close(self, grace: float) -> None:
        """Take no more calls, and end those that are under way after the grace."""
        await self._server.stop(grace)

    async def _infer(self, message: bytes, context: Any) -> bytes:
        received = now()
        codes = self._grpc.StatusCode
        service = await self._service(context)
        answered: asyncio.Future[tuple[Message | Exception, Stages | None]]
        answered = asyncio.get_running_loop().create_future()

        def answer(result: Message | Exception, stages: Stages | None) -> None:
            if not answered.done():  # the client has left in this moment
                answered.set_result((result, stages))

        try:
            model, request = kserve_grpc.decode_request(message)
            await self._require_model(model, context)
            ticket = service.submit(request, received, answer, _encode)
        except ProtocolError as error:
            service.statistics.requests["refused"] += 1
            await context.abort(codes.INVALID_ARGUMENT, str(error))
        except Overloaded as error:
            await context.abort(codes.RESOURCE_EXHAUSTED, str(error))
        try:
            result, stages = await answered
        except asyncio.CancelledError:  # the client has left, or its time is over
            if not ticket.is_answered:
                service.cancel(ticket)
            raise
        if isinstance(result, Exception):
            code = codes.INVALID_ARGUMENT if isinstance(result, ProtocolError) else codes.INTERNAL
            await context.abort(code, self._app.explain(result))
        assert isinstance(result, Message)
        context.set_trailing_metadata(((HEADER, str(stages)),))
        return result.body

    async def _service(self, context: Any) -> Service:
        reason = self._app.reason_not_ready()
        if reason is not None:
            await context.abort(self._grpc.StatusCode.UNAVAILABLE, reason)
        assert self._app.service is not None
        return self._app.service

    async def _require_model(self, model: str, context: Any) -> None:
        if model != self._app.name:
            message = f"there is no model '{model[:200]}'; this server has '{self._app.name}'"
            await context.abort(self._grpc.StatusCode.NOT_FOUND, message)


def _encode(model: str, outputs: Arrays, request: Request) -> Message:
    return Message((kserve_grpc.encode_response(model, outputs, request),))
