"""Prompts of the user's own, in the forms that people keep them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.serving.texts import read_chats, read_prompts
from support.refused import refused


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_the_users_prompts_are_read_line_by_line(file: Path) -> None:
    file.write_text('"one"\n\n{"prompt": "two", "more": 1}\n')
    assert read_prompts(file) == ["one", "two"]
    file.write_text('{"text": "x"}\n')
    with refused("not-a-prompt", key="requests.dataset", where=f"dataset {file}, line 1"):
        read_prompts(file)
    file.write_text("\n")
    with refused("no-prompts", key="requests.dataset"):
        read_prompts(file)


TALK = [
    {"from": "human", "value": "How far is the moon?"},
    {"from": "gpt", "value": "Rather far."},
    {"from": "human", "value": "And the sun?"},
]


@pytest.mark.parametrize("is_list", [True, False])
def test_sharegpt_is_read_as_people_have_it(file: Path, is_list: bool) -> None:
    entries = [{"id": "a", "conversations": TALK}, {"id": "b", "conversations": TALK[2:]}]
    file.write_text(json.dumps(entries) if is_list else "\n".join(map(json.dumps, entries)))
    first, second = read_chats(file)
    assert (first.messages, first.answer) == (({"role": "user", "content": "How far is the moon?"},), "Rather far.")
    assert (second.text, second.answer) == ("And the sun?", "")


def test_conversations_without_a_question_are_left_out_of_sharegpt(file: Path) -> None:
    file.write_text(json.dumps([{"conversations": []}, {"conversations": TALK[1:2]}, {"conversations": TALK}]))
    assert [one.text for one in read_chats(file)] == ["How far is the moon?"]
    file.write_text(json.dumps([{"conversations": []}]))
    with refused("not-a-prompt", key="requests.dataset"):
        read_chats(file)


def test_messages_are_sent_as_they_are(file: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How are you?"},
    ]
    lines: list[Any] = [{"messages": messages}, {"messages": messages[:3]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_chats(file)
    assert list(first.messages) == messages
    assert (list(second.messages), second.answer) == (messages[:2], "Hi")
    assert first.text == "Be brief.\nHello\nHi\nHow are you?"


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user"}], [{"role": "pilot", "content": "x"}], ["x"], [{"role": "assistant", "content": "x"}]],
)
def test_messages_that_ask_nothing_are_refused(file: Path, messages: Any) -> None:
    file.write_text(json.dumps({"messages": messages}))
    with refused("not-a-prompt", key="requests.dataset"):
        read_chats(file)
