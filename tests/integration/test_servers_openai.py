"""transformers serve with a generated Llama, installed and started for real: chats, completions, streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.load.request import Endpoint
from paceline.servers.base import Need
from support import server_software as tools
from support.server_software import Software, environments, software  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long

LLAMA = Need(model="generated/llama:layers=2,width=32,vocabulary=128", allow_import=True)
TOKENS = 6


def ask(endpoint: Endpoint, prompt: str, *, stream: bool) -> list[dict[str, Any]]:
    """The events of an answer; only one if it does not stream."""
    text = {"messages": [{"role": "user", "content": prompt}]} if "chat" in endpoint.path else {"prompt": prompt}
    body = {"model": endpoint.model, "max_tokens": TOKENS, "temperature": 0, "stream": stream} | text
    with tools.post(endpoint, json.dumps(body).encode(), {"Content-Type": "application/json"}) as answer:
        if not stream:
            return [json.loads(answer.read())]
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.decode().strip().removeprefix("data: ") for line in answer if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def text_of(event: dict[str, Any]) -> str:
    choice = event["choices"][0]
    return str((choice.get("message") or choice.get("delta") or choice).get("content") or choice.get("text") or "")


def test_a_generated_language_model_chats_and_streams(software: Software) -> None:  # noqa: F811
    with software.started("transformers-serve", LLAMA) as server:
        texts = set()
        for wire in ("openai-chat", "openai-completions"):  # requests of other wires have another form
            assert wire in server.wires
            endpoint = server.endpoint(wire)
            (whole,) = ask(endpoint, "baba beba biba", stream=False)
            assert whole["usage"]["completion_tokens"] == TOKENS
            assert len(text_of(whole).split()) == TOKENS
            parts = [text_of(event) for event in ask(endpoint, "baba beba biba", stream=True)]
            assert "".join(parts) == text_of(whole)
            assert len([part for part in parts if part]) == TOKENS  # a word at a time
            texts.add(text_of(whole))
        assert len(texts) == 1
        assert tools.listened_at(server.processes()) == {"127.0.0.1"}
        assert server.describe()["versions"]["transformers"] == "5.22.2"
        tools.kill_all(server.processes())
        tools.wait_until_dead(server)
