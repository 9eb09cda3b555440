"""What a request says in each interface, and what an interface has no place for."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.benchmarks.serving.bodies import body_of, check_wire
from paceline.benchmarks.serving.texts import Chat
from paceline.load.parameters import RequestParameters
from paceline.load.request import Wire
from support.refused import refused

PICTURE = "data:image/png;base64,QUJD"
SAID = Chat(
    (
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": PICTURE}}],
        },
    )
)


def body(wire: Wire, chat: Chat = SAID, **wanted: Any) -> dict[str, Any]:
    return body_of(wire, "m", chat, 9, RequestParameters.model_validate(wanted))


def test_each_interface_has_its_own_names_of_the_same() -> None:
    assert body("openai-completions")["prompt"] == "be brief\nwhat?"
    assert body("openai-chat")["messages"] == list(SAID.messages)
    responses = body("openai-responses")
    assert responses["max_output_tokens"] == 9 and "max_tokens" not in responses and "stream_options" not in responses
    assert responses["input"][1]["content"] == [
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": PICTURE},
    ]
    anthropic = body("anthropic-messages", stream=False)
    assert (anthropic["system"], anthropic["max_tokens"], anthropic["stream"]) == ("be brief", 9, False)
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert anthropic["messages"][0]["content"][1] == {"type": "image", "source": source}


def test_texts_of_embeddings_and_documents() -> None:
    texts = Chat(tuple({"role": "user", "content": text} for text in ("a", "b", "c")))
    assert body("openai-embeddings", texts) == {"model": "m", "input": ["a", "b", "c"]}
    assert body("openai-embeddings", Chat(texts.messages[:1])) == {"model": "m", "input": "a"}
    assert body("rerank", texts, extra={"top_n": 1}) == {
        "model": "m",
        "query": "a",
        "documents": ["b", "c"],
        "top_n": 1,
    }


def test_json_is_asked_for_as_each_interface_has_it() -> None:
    schema = {"type": "object"}
    named = {"name": "answer", "schema": schema, "strict": True}
    assert body("openai-chat", json_schema=schema)["response_format"] == {"type": "json_schema", "json_schema": named}
    assert body("openai-chat", json_schema={})["response_format"] == {"type": "json_object"}
    assert body("openai-responses", json_schema=schema)["text"]["format"] == {"type": "json_schema"} | named
    assert body("anthropic-messages", json_schema=schema)["output_config"]["format"]["schema"] == schema
    assert "response_format" not in body("openai-chat", json_schema=schema, extra={"response_format": None})


@pytest.mark.parametrize(
    ("wire", "wanted", "key"),
    [
        ("rerank", {"turns": 2}, "turns"),
        ("openai-embeddings", {"json_schema": {}}, "json_schema"),
        ("openai-embeddings", {"system_tokens": 9}, "system_tokens"),
        ("openai-completions", {"images": 1}, "images"),
        ("openai-chat", {"samples": 2}, "samples"),
    ],
)
def test_what_an_interface_has_no_place_for_is_refused(wire: Wire, wanted: dict[str, Any], key: str) -> None:
    with refused("key-does-not-apply", key=f"requests.{key}"):
        check_wire(wire, RequestParameters.model_validate(wanted))
