"""The body of a request to a language model, as each interface wants it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paceline.benchmarks.serving.texts import Chat, Message, text_of
from paceline.core.errors import InputError
from paceline.load.parameters import RequestParameters
from paceline.load.request import TEXT_WIRES, Wire

_DATA = re.compile(r"data:([^;]+);base64,(.*)", re.DOTALL)


def body_of(wire: Wire, model: str, chat: Chat, length: int, sent: RequestParameters) -> dict[str, Any]:
    """All fields of a request; those of the user's own win, and null leaves one out."""
    body: dict[str, Any] = {"model": model}
    if wire == "openai-embeddings":
        texts = [text_of(one["content"]) for one in chat.messages]
        body["input"] = texts if len(texts) > 1 else texts[0]
    elif wire == "rerank":
        query, *documents = (text_of(one["content"]) for one in chat.messages)
        body |= {"query": query, "documents": documents}
    else:
        body |= {"max_output_tokens" if wire == "openai-responses" else "max_tokens": length}
        body |= {"stream": sent.stream, "temperature": 0.0}
        body |= _asked(wire, chat)
        if sent.stream and wire in ("openai-chat", "openai-completions"):
            body["stream_options"] = {"include_usage": True}
        body |= {"ignore_eos": True} if sent.ignore_eos else {}
        body |= {"min_tokens": min(sent.min_tokens, length)} if sent.min_tokens is not None else {}
        body |= _format(wire, sent.json_schema) if sent.json_schema is not None else {}
    return {name: value for name, value in (body | sent.extra).items() if value is not None}


def _asked(wire: Wire, chat: Chat) -> dict[str, Any]:
    if wire == "openai-completions":
        return {"prompt": chat.text}
    if wire == "openai-chat":
        return {"messages": list(chat.messages)}
    if wire == "openai-responses":
        return {"input": _with_parts(chat.messages, _response_part)}
    system = "\n".join(text_of(one["content"]) for one in chat.messages if one["role"] == "system")
    others = [one for one in chat.messages if one["role"] != "system"]
    return {"messages": _with_parts(others, _anthropic_part)} | ({"system": system} if system else {})


def _with_parts(messages: Sequence[Message], change: Any) -> list[Message]:
    """Messages whose parts, which are written as OpenAI's chat has them, are those of another interface."""
    return [
        one | {"content": [change(part) for part in one["content"]]} if isinstance(one["content"], list) else one
        for one in messages
    ]


def _response_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "input_text", "text": part["text"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"]} if "image_url" in part else part


def _anthropic_part(part: dict[str, Any]) -> dict[str, Any]:
    if "image_url" not in part:
        return part
    url = part["image_url"]["url"]
    data = _DATA.match(url)
    source = {"type": "base64", "media_type": data[1], "data": data[2]} if data else {"type": "url", "url": url}
    return {"type": "image", "source": source}


def _format(wire: Wire, schema: dict[str, Any]) -> dict[str, Any]:
    """What asks for JSON."""
    named = {"name": "answer", "schema": schema, "strict": True}
    if wire == "openai-responses":
        return {"text": {"format": {"type": "json_schema"} | named if schema else {"type": "json_object"}}}
    if wire == "anthropic-messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": schema or {"type": "object"}}}}
    asked = {"type": "json_schema", "json_schema": named} if schema else {"type": "json_object"}
    return {"response_format": asked}


def check_wire(wire: Wire, sent: RequestParameters) -> None:
    """Refuse what an interface has no place for."""
    without: dict[str, tuple[Wire, ...]] = {
        "images": ("openai-completions", "openai-embeddings", "rerank"),
        **dict.fromkeys(
            ("turns", "json_schema", "ignore_eos", "min_tokens", "output_tokens", "system_tokens"),
            ("openai-embeddings", "rerank"),
        ),
    }
    for name, wires in without.items():
        if wire in wires and getattr(sent, name) not in (None, 0, False):
            message = f"requests.{name} is not for wire {wire}: leave it out, or use one of {', '.join(TEXT_WIRES)}"
            raise InputError("key-does-not-apply", message, key=f"requests.{name}")
    if wire in TEXT_WIRES and sent.samples.highest != 1:
        message = f"requests.samples is how many texts an embedding or a reranking takes; wire {wire} has one prompt"
        raise InputError("key-does-not-apply", message, key="requests.samples")
