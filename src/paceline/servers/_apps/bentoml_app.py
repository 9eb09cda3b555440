"""A model in ONNX Runtime behind BentoML."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import bentoml
from bentoml.exceptions import InvalidArgument
from onnx_model import BadRequest, OnnxModel, read_config

CONFIG = read_config()
BATCHING: dict[str, Any] = {}
if CONFIG["max_batch"] > 1:
    BATCHING = {
        "batchable": True,
        "batch_dim": 0,
        "max_batch_size": CONFIG["max_batch"],
        "max_latency_ms": 60_000,  # who asks decides how long an answer may take
    }


@bentoml.service(
    workers=CONFIG["workers"],
    traffic={"timeout": 3600},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Paceline:
    """BentoML joins lists, so that a request travels in a list of one; `InList` puts it there."""

    def __init__(self) -> None:
        self.model = OnnxModel(CONFIG)

    @bentoml.api(route="/infer", **BATCHING)
    def infer(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            decoded = [self.model.decode(request) for request in requests]
        except BadRequest as error:
            raise InvalidArgument(str(error)) from None
        return [self.model.encode(outputs) for outputs in self.model.run_together(decoded)]


Message = dict[str, Any]


class InList:
    """Puts a request's body into a list under the name of the argument, and takes the answer out of its list."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http" or scope["path"] != "/infer":
            await self.app(scope, receive, send)
            return
        begun = False
        held: list[Message] = []

        async def wrapped() -> Message:
            nonlocal begun
            message = await receive()
            if message["type"] == "http.request":
                before = b"" if begun else b'{"requests":['
                after = b"" if message.get("more_body") else b"]}"
                begun = True
                message = {**message, "body": before + message.get("body", b"") + after}
            return message

        async def unwrapped(message: Message) -> None:
            held.append(message)
            if message["type"] != "http.response.body" or message.get("more_body"):
                return
            start = held[0]
            body = b"".join(part.get("body", b"") for part in held[1:])
            if start["status"] == 200:
                body = body.strip()[1:-1]
            headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
        await self.app({**scope, "headers": headers}, wrapped, unwrapped)


Paceline.add_asgi_middleware(InList)
